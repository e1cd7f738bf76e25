#include "lockstep/nn/layer_spec.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::nn {
namespace {

constexpr double max_values = 1099511627776.0;  // 2^40 per example: 4 TB

std::string image_text(const FeatureShape& shape) {
  return std::to_string(shape.rows) + "x" + std::to_string(shape.columns) + "x" +
         std::to_string(shape.channels);
}

void require_image(const FeatureShape& input) {
  if (input.image) return;
  throw ConfigError("takes images, but " + std::to_string(input.size()) +
                        " values without rows and columns come in",
                    "place it before flatten and dense layers, and give data that says its rows "
                    "and columns: IDX or NPY");
}

FeatureShape limited(const FeatureShape& shape) {
  const double values = static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
                        static_cast<double>(shape.channels);
  if (values <= max_values) return shape;
  throw ConfigError("gives more than 2^40 values an example", "make it smaller");
}

using Words = std::vector<std::string>;

constexpr std::uint64_t max_width = std::uint64_t{1} << 31;
constexpr std::uint64_t max_filters = std::uint64_t{1} << 20;
constexpr std::uint64_t max_window = std::uint64_t{1} << 15;

std::string among(const Words& words) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

[[noreturn]] void fail_unknown(const std::string& what, const std::string& word,
                               const Words& known) {
  const auto guess = nearest(word, known);
  throw ConfigError(what + " '" + word + "' is none of " + among(known),
                    guess ? "did you mean '" + *guess + "'?" : "");
}

/// Reads and checks the fields of one layer.
class Reader {
 public:
  explicit Reader(const Fields& fields) : fields_(fields) {}

  std::uint64_t count(const char* key, std::uint64_t max) const {
    const FieldValue& value = required(key);
    const auto* number = std::get_if<std::uint64_t>(&value);
    if (number != nullptr && *number >= 1 && *number <= max) return *number;
    throw ConfigError(std::string(key) + ": " + literal_of(value) +
                      " is not a whole number in [1, " + std::to_string(max) + "]");
  }

  double share(const char* key, std::optional<double> otherwise = std::nullopt) const {
    if (otherwise && find(key) == nullptr) return *otherwise;
    const FieldValue& value = required(key);
    const auto* whole = std::get_if<std::uint64_t>(&value);
    const auto* number = std::get_if<double>(&value);
    const double share = whole != nullptr    ? static_cast<double>(*whole)
                         : number != nullptr ? *number
                                             : -1.0;
    if (share >= 0 && share < 1) return share;
    throw ConfigError(std::string(key) + ": " + literal_of(value) + " is not a number in [0, 1)");
  }

  /// The index of the value in `words`; 0 if the key is missing.
  std::size_t choice(const char* key, const Words& words) const {
    const FieldValue* value = find(key);
    if (value == nullptr) return 0;
    const auto* word = std::get_if<std::string>(value);
    if (word == nullptr) throw ConfigError(std::string(key) + " is none of " + among(words));
    const auto found = std::find(words.begin(), words.end(), *word);
    if (found == words.end()) fail_unknown(std::string(key) + ":", *word, words);
    return static_cast<std::size_t>(found - words.begin());
  }

  Activation activation() const {
    return choice("activation", {"relu", "identity"}) == 0 ? Activation::relu
                                                           : Activation::identity;
  }

  void require_known(Words keys) const {
    keys.insert(keys.begin(), "kind");
    for (const auto& [key, value] : fields_) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) fail_unknown("key", key, keys);
    }
  }

 private:
  const FieldValue* find(const char* key) const {
    const auto found = std::find_if(fields_.begin(), fields_.end(),
                                    [&](const auto& field) { return field.first == key; });
    return found == fields_.end() ? nullptr : &found->second;
  }
  const FieldValue& required(const char* key) const {
    const FieldValue* value = find(key);
    if (value == nullptr) throw ConfigError(std::string("no '") + key + "'", "give it a value");
    return *value;
  }

  const Fields& fields_;
};

const char* name_of(Activation activation) {
  return activation == Activation::relu ? "relu" : "identity";
}

LayerSpec read_dense(const Reader& fields) {
  fields.require_known({"width", "activation"});
  return Dense{fields.count("width", max_width), fields.activation()};
}

}  // namespace

FeatureShape Dense::output_of(const FeatureShape& input) const {
  if (!input.image) return flat(width);
  throw ConfigError("takes a row of values, but an image of " + image_text(input) + " comes in",
                    "put a layer of kind = \"flatten\" before it");
}

double Dense::weights(const FeatureShape& input) const {
  return (static_cast<double>(input.size()) + 1) * static_cast<double>(width);
}

std::string Dense::text() const { return "dense " + std::to_string(width); }

Fields Dense::fields() const {
  return {{"kind", "dense"}, {"width", std::uint64_t{width}}, {"activation", name_of(activation)}};
}

namespace {

LayerSpec read_convolution(const Reader& fields) {
  fields.require_known({"filters", "kernel", "padding", "activation"});
  const bool valid = fields.choice("padding", {"valid", "same"}) == 0;
  return Convolution{fields.count("filters", max_filters), fields.count("kernel", max_window),
                     valid ? Padding::valid : Padding::same, fields.activation()};
}

}  // namespace

FeatureShape Convolution::output_of(const FeatureShape& input) const {
  require_image(input);
  if (padding == Padding::same) return limited({input.rows, input.columns, filters, true});
  if (kernel > input.rows || kernel > input.columns) {
    throw ConfigError(
        "a kernel of " + std::to_string(kernel) + " on an image of " + image_text(input),
        "use a smaller kernel, or padding = \"same\"");
  }
  return limited({input.rows - kernel + 1, input.columns - kernel + 1, filters, true});
}

double Convolution::weights(const FeatureShape& input) const {
  const auto side = static_cast<double>(kernel);
  return (side * side * static_cast<double>(input.channels) + 1) * static_cast<double>(filters);
}

std::string Convolution::text() const {
  const std::string side = std::to_string(kernel);
  return "conv " + std::to_string(filters) + "@" + side + "x" + side;
}

Fields Convolution::fields() const {
  return {{"kind", "conv"},
          {"filters", std::uint64_t{filters}},
          {"kernel", std::uint64_t{kernel}},
          {"padding", padding == Padding::same ? "same" : "valid"},
          {"activation", name_of(activation)}};
}

namespace {

template <Pooling pooling>
LayerSpec read_pool(const Reader& fields) {
  fields.require_known({"size"});
  return Pool{pooling, fields.count("size", max_window)};
}

const char* kind_of(Pooling pooling) {
  return pooling == Pooling::max ? "max-pool" : "average-pool";
}

}  // namespace

FeatureShape Pool::output_of(const FeatureShape& input) const {
  require_image(input);
  if (size > input.rows || size > input.columns) {
    throw ConfigError("windows of " + std::to_string(size) + " on an image of " + image_text(input),
                      "use a smaller size, or fewer layers before it");
  }
  return {input.rows / size, input.columns / size, input.channels, true};
}

std::string Pool::text() const { return kind_of(pooling) + (" " + std::to_string(size)); }

Fields Pool::fields() const { return {{"kind", kind_of(pooling)}, {"size", std::uint64_t{size}}}; }

namespace {

LayerSpec read_dropout(const Reader& fields) {
  fields.require_known({"rate"});
  return Dropout{fields.share("rate")};
}

}  // namespace

std::string Dropout::text() const { return "dropout " + literal_of(FieldValue(rate)); }

Fields Dropout::fields() const { return {{"kind", "dropout"}, {"rate", rate}}; }

namespace {

LayerSpec read_batch_norm(const Reader& fields) {
  fields.require_known({"momentum"});
  return BatchNorm{fields.share("momentum", BatchNorm().momentum)};
}

}  // namespace

Fields BatchNorm::fields() const { return {{"kind", "batch-norm"}, {"momentum", momentum}}; }

FeatureShape Custom::output_of(const FeatureShape& input) const {
  const std::string name = kind->name();
  if (is_built_in(name)) {
    throw ConfigError("a built-in layer is of kind '" + name + "'",
                      "give LayerKind::name() another name");
  }
  return limited(kind->output_of(input));
}

Fields Custom::fields() const {
  Fields fields = kind->fields();
  fields.insert(fields.begin(), {"kind", kind->name()});
  return fields;
}

namespace {

template <class Spec>
LayerSpec read_plain(const Reader& fields) {
  fields.require_known({});
  return Spec{};
}

/// The built-in layers: the name in files, and the function that reads the keys.
struct BuiltIn {
  const char* kind;
  LayerSpec (*read)(const Reader& fields);
};
constexpr std::array built_in = {
    BuiltIn{"dense", read_dense},
    BuiltIn{"conv", read_convolution},
    BuiltIn{"max-pool", read_pool<Pooling::max>},
    BuiltIn{"average-pool", read_pool<Pooling::average>},
    BuiltIn{"flatten", read_plain<Flatten>},
    BuiltIn{"dropout", read_dropout},
    BuiltIn{"layer-norm", read_plain<LayerNorm>},
    BuiltIn{"batch-norm", read_batch_norm},
};

Custom read_custom(const LayerKinds::Read& read, const std::string& name, const Fields& fields) {
  try {
    Custom layer{read(fields)};
    if (layer.kind != nullptr) return layer;
  } catch (const std::bad_variant_access&) {  // std::get<double> of a text
  }
  throw ConfigError("kind '" + name + "' cannot be made of its keys and values");
}

}  // namespace

FeatureShape output_of(const LayerSpec& layer, const FeatureShape& input) {
  return std::visit([&](const auto& spec) { return spec.output_of(input); }, layer);
}

double weights_of(const LayerSpec& layer, const FeatureShape& input) {
  return std::visit(
      [&](const auto& spec) -> double {
        if constexpr (requires { spec.weights(input); }) return spec.weights(input);
        return 0;
      },
      layer);
}

bool sums_over_batch(const LayerSpec& layer) {
  return std::visit(
      [](const auto& spec) {
        if constexpr (requires { spec.sums_over_batch(); }) return spec.sums_over_batch();
        return false;
      },
      layer);
}

std::string text_of(const LayerSpec& layer) {
  return std::visit([](const auto& spec) { return spec.text(); }, layer);
}

Fields fields_of(const LayerSpec& layer) {
  return std::visit([](const auto& spec) { return spec.fields(); }, layer);
}

bool is_built_in(const std::string& kind) {
  return std::any_of(built_in.begin(), built_in.end(),
                     [&](const BuiltIn& layer) { return kind == layer.kind; });
}

void LayerKinds::add(const std::string& name, Read read) {
  if (is_built_in(name) || find(name) != nullptr) {
    throw std::invalid_argument("LayerKinds: the name '" + name + "' is taken");
  }
  kinds_.emplace_back(name, std::move(read));
}

const LayerKinds::Read* LayerKinds::find(const std::string& name) const noexcept {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(),
                                  [&](const auto& kind) { return kind.first == name; });
  return found == kinds_.end() ? nullptr : &found->second;
}

Words LayerKinds::names() const {
  Words names;
  for (const auto& [name, read] : kinds_) names.push_back(name);
  return names;
}

LayerSpec layer_of(const Fields& fields, const LayerKinds& own) {
  Words kinds;
  for (const BuiltIn& layer : built_in) kinds.emplace_back(layer.kind);
  for (const auto& name : own.names()) kinds.push_back(name);
  const Reader reader(fields);
  const auto kind = std::find_if(fields.begin(), fields.end(),
                                 [](const auto& field) { return field.first == "kind"; });
  if (kind == fields.end()) throw ConfigError("no 'kind'", "give one of " + among(kinds));
  const std::size_t chosen = reader.choice("kind", kinds);
  if (chosen < built_in.size()) return built_in[chosen].read(reader);
  return read_custom(*own.find(kinds[chosen]), kinds[chosen], fields);
}

std::string literal_of(const FieldValue& value) {
  if (const auto* count = std::get_if<std::uint64_t>(&value)) return std::to_string(*count);
  if (const auto* number = std::get_if<double>(&value)) return shortest(*number);
  return '"' + std::get<std::string>(value) + '"';
}

namespace {

bool is_dense(const LayerSpec& layer, Activation activation) {
  const auto* dense = std::get_if<Dense>(&layer);
  return dense != nullptr && dense->activation == activation;
}

}  // namespace

NetworkShape::NetworkShape(std::size_t feature_count, const std::vector<std::size_t>& hidden,
                           std::size_t class_count)
    : input(flat(feature_count)), features(feature_count), classes(class_count) {
  for (const std::size_t width : hidden) layers.emplace_back(Dense{width, Activation::relu});
  layers.emplace_back(Dense{classes, Activation::identity});
}

NetworkShape::NetworkShape(const FeatureShape& from, std::vector<LayerSpec> hidden,
                           std::size_t class_count)
    : input(from), layers(std::move(hidden)), features(from.size()), classes(class_count) {
  layers.emplace_back(Dense{classes, Activation::identity});
  FeatureShape shape = input;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    try {
      shape = output_of(layers[i], shape);
    } catch (const ConfigError& error) {
      const bool last = i + 1 == layers.size();
      throw ConfigError(
          (last ? "the last layer, to the classes, " : "layer " + std::to_string(i + 1) + " (") +
          text_of(layers[i]) + (last ? ": " : "): ") + error.what());
    }
  }
}

bool NetworkShape::is_mlp() const {
  return !input.image && !layers.empty() && is_dense(layers.back(), Activation::identity) &&
         std::all_of(layers.begin(), layers.end() - 1,
                     [](const LayerSpec& layer) { return is_dense(layer, Activation::relu); });
}

std::vector<std::size_t> NetworkShape::widths() const {
  std::vector<std::size_t> all = {features};
  for (const LayerSize& size : sizes()) all.push_back(size.output.size());
  return all;
}

std::vector<LayerSize> NetworkShape::sizes() const {
  std::vector<LayerSize> all;
  FeatureShape shape = input;
  for (const LayerSpec& layer : layers) {
    const FeatureShape output = output_of(layer, shape);
    all.push_back({shape, output, weights_of(layer, shape)});
    shape = output;
  }
  return all;
}

double NetworkShape::weights() const {
  double sum = 0;
  for (const LayerSize& size : sizes()) sum += size.weights;
  return sum;
}

double NetworkShape::row_values() const {
  auto values = static_cast<double>(features);
  const auto all = sizes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::holds_alternative<Flatten>(layers[i])) continue;
    values += 2 * static_cast<double>(all[i].output.size());  // its output and its gradient
  }
  return values;
}

double NetworkShape::exchanged_values() const {
  const auto all = sizes();
  double values = all.empty() || all[0].weights > 0 ? 0 : static_cast<double>(features);
  for (const LayerSize& size : all) {
    if (size.weights == 0) continue;
    values += static_cast<double>(size.input.size()) + static_cast<double>(size.output.size());
  }
  return values;
}

bool NetworkShape::sums_over_batch() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return nn::sums_over_batch(layer); });
}

std::string NetworkShape::text() const {
  std::string text = std::to_string(features);
  if (is_mlp()) {
    const auto all = widths();
    for (std::size_t i = 1; i < all.size(); ++i) text += "-" + std::to_string(all[i]);
    return text;
  }
  if (input.image) {
    text = std::to_string(input.rows) + "x" + std::to_string(input.columns) + "x" +
           std::to_string(input.channels);
  }
  for (const LayerSpec& layer : layers) text += ", " + text_of(layer);
  return text;
}

std::vector<LayerSpec> lenet_layers() {
  return {Convolution{20, 5, Padding::valid, Activation::relu},
          Pool{Pooling::max, 2},
          Convolution{50, 5, Padding::valid, Activation::relu},
          Pool{Pooling::max, 2},
          Flatten{},
          Dense{500, Activation::relu}};
}

}  // namespace lockstep::nn
