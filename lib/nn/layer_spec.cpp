#include "lockstep/nn/layer_spec.hpp"

#include <algorithm>
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

FeatureShape windows(const Convolution& layer, const FeatureShape& input) {
  require_image(input);
  if (layer.padding == Padding::same) {
    return limited({input.rows, input.columns, layer.filters, true});
  }
  if (layer.kernel > input.rows || layer.kernel > input.columns) {
    throw ConfigError(
        "a kernel of " + std::to_string(layer.kernel) + " on an image of " + image_text(input),
        "use a smaller kernel, or padding = \"same\"");
  }
  return limited(
      {input.rows - layer.kernel + 1, input.columns - layer.kernel + 1, layer.filters, true});
}

FeatureShape windows(const Pool& layer, const FeatureShape& input) {
  require_image(input);
  if (layer.size > input.rows || layer.size > input.columns) {
    throw ConfigError(
        "windows of " + std::to_string(layer.size) + " on an image of " + image_text(input),
        "use a smaller size, or fewer layers before it");
  }
  return {input.rows / layer.size, input.columns / layer.size, input.channels, true};
}

FeatureShape outputs(const Dense& layer, const FeatureShape& input) {
  if (!input.image) return flat(layer.width);
  throw ConfigError("takes a row of values, but an image of " + image_text(input) + " comes in",
                    "put a layer of kind = \"flatten\" before it");
}

FeatureShape outputs(const Custom& layer, const FeatureShape& input) {
  const std::string name = layer.kind->name();
  if (is_built_in(name)) {
    throw ConfigError("a built-in layer is of kind '" + name + "'",
                      "give LayerKind::name() another name");
  }
  return limited(layer.kind->output_of(input));
}

/// Calls the first of `cases` that accepts the layer.
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

FeatureShape output_of(const LayerSpec& layer, const FeatureShape& input) {
  return std::visit(
      Overloaded{[&](const Dense& dense) { return outputs(dense, input); },
                 [&](const Convolution& convolution) { return windows(convolution, input); },
                 [&](const Pool& pool) { return windows(pool, input); },
                 [&](const Flatten&) { return flat(input.size()); },
                 [&](const Custom& custom) { return outputs(custom, input); },
                 [&](const auto&) { return input; }},
      layer);
}

double weights_of(const LayerSpec& layer, const FeatureShape& input) {
  const auto channels = static_cast<double>(input.channels);
  return std::visit(Overloaded{[&](const Dense& dense) {
                                 return (static_cast<double>(input.size()) + 1) *
                                        static_cast<double>(dense.width);
                               },
                               [&](const Convolution& convolution) {
                                 const auto kernel = static_cast<double>(convolution.kernel);
                                 return (kernel * kernel * channels + 1) *
                                        static_cast<double>(convolution.filters);
                               },
                               [&](const LayerNorm&) { return 2 * channels; },
                               [&](const BatchNorm&) { return 4 * channels; },
                               [&](const Custom& custom) { return custom.kind->weights(input); },
                               [](const auto&) { return 0.0; }},
                    layer);
}

bool sums_over_batch(const LayerSpec& layer) {
  const auto* custom = std::get_if<Custom>(&layer);
  return custom != nullptr ? custom->kind->sums_over_batch()
                           : std::holds_alternative<BatchNorm>(layer);
}

std::string text_of(const LayerSpec& layer) {
  const auto text = [](std::size_t count) { return std::to_string(count); };
  return std::visit(
      Overloaded{
          [&](const Dense& dense) { return "dense " + text(dense.width); },
          [&](const Convolution& c) {
            return "conv " + text(c.filters) + "@" + text(c.kernel) + "x" + text(c.kernel);
          },
          [&](const Pool& pool) {
            return (pool.pooling == Pooling::max ? "max-pool " : "average-pool ") + text(pool.size);
          },
          [](const Flatten&) { return std::string("flatten"); },
          [](const Dropout& dropout) { return "dropout " + literal_of(FieldValue(dropout.rate)); },
          [](const LayerNorm&) { return std::string("layer-norm"); },
          [](const BatchNorm&) { return std::string("batch-norm"); },
          [](const Custom& custom) { return custom.kind->text(); }},
      layer);
}

namespace {

using Words = std::vector<std::string>;

constexpr std::uint64_t max_width = std::uint64_t{1} << 31;
constexpr std::uint64_t max_filters = std::uint64_t{1} << 20;
constexpr std::uint64_t max_window = std::uint64_t{1} << 15;

const char* name_of(Activation activation) {
  return activation == Activation::relu ? "relu" : "identity";
}

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

  std::uint64_t count(const char* key, std::uint64_t most) const {
    const FieldValue& value = required(key);
    const auto* number = std::get_if<std::uint64_t>(&value);
    if (number != nullptr && *number >= 1 && *number <= most) return *number;
    throw ConfigError(std::string(key) + ": " + literal_of(value) +
                      " is not a whole number in [1, " + std::to_string(most) + "]");
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

const Words& built_in_kinds() {
  static const Words kinds = {"dense",   "conv",    "max-pool",   "average-pool",
                              "flatten", "dropout", "layer-norm", "batch-norm"};
  return kinds;
}

LayerSpec dense(const Reader& fields) {
  fields.require_known({"width", "activation"});
  return Dense{fields.count("width", max_width), fields.activation()};
}

LayerSpec convolution(const Reader& fields) {
  fields.require_known({"filters", "kernel", "padding", "activation"});
  const bool valid = fields.choice("padding", {"valid", "same"}) == 0;
  return Convolution{fields.count("filters", max_filters), fields.count("kernel", max_window),
                     valid ? Padding::valid : Padding::same, fields.activation()};
}

LayerSpec pool(Pooling pooling, const Reader& fields) {
  fields.require_known({"size"});
  return Pool{pooling, fields.count("size", max_window)};
}

Custom custom(const LayerKinds::Read& read, const std::string& name, const Fields& fields) {
  try {
    Custom layer{read(fields)};
    if (layer.kind != nullptr) return layer;
  } catch (const std::bad_variant_access&) {  // std::get<double> of a text
  }
  throw ConfigError("kind '" + name + "' cannot be made of its keys and values");
}

struct FieldsOf {
  Fields operator()(const Dense& layer) const {
    return {{"kind", "dense"},
            {"width", std::uint64_t{layer.width}},
            {"activation", name_of(layer.activation)}};
  }
  Fields operator()(const Convolution& layer) const {
    return {{"kind", "conv"},
            {"filters", std::uint64_t{layer.filters}},
            {"kernel", std::uint64_t{layer.kernel}},
            {"padding", layer.padding == Padding::same ? "same" : "valid"},
            {"activation", name_of(layer.activation)}};
  }
  Fields operator()(const Pool& layer) const {
    return {{"kind", layer.pooling == Pooling::max ? "max-pool" : "average-pool"},
            {"size", std::uint64_t{layer.size}}};
  }
  Fields operator()(const Flatten&) const { return {{"kind", "flatten"}}; }
  Fields operator()(const Dropout& layer) const {
    return {{"kind", "dropout"}, {"rate", layer.rate}};
  }
  Fields operator()(const LayerNorm&) const { return {{"kind", "layer-norm"}}; }
  Fields operator()(const BatchNorm& layer) const {
    return {{"kind", "batch-norm"}, {"momentum", layer.momentum}};
  }
  Fields operator()(const Custom& layer) const {
    Fields fields = layer.kind->fields();
    fields.insert(fields.begin(), {"kind", layer.kind->name()});
    return fields;
  }
};

}  // namespace

Fields fields_of(const LayerSpec& layer) { return std::visit(FieldsOf(), layer); }

bool is_built_in(const std::string& kind) {
  const Words& kinds = built_in_kinds();
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
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
  Words kinds = built_in_kinds();
  for (const auto& name : own.names()) kinds.push_back(name);
  const Reader reader(fields);
  const auto kind = std::find_if(fields.begin(), fields.end(),
                                 [](const auto& field) { return field.first == "kind"; });
  if (kind == fields.end()) throw ConfigError("no 'kind'", "give one of " + among(kinds));
  const std::size_t chosen = reader.choice("kind", kinds);
  if (const auto* read = own.find(kinds[chosen])) return custom(*read, kinds[chosen], fields);
  switch (chosen) {
    case 0: return dense(reader);
    case 1: return convolution(reader);
    case 2: return pool(Pooling::max, reader);
    case 3: return pool(Pooling::average, reader);
    case 4: reader.require_known({}); return Flatten{};
    case 5: reader.require_known({"rate"}); return Dropout{reader.share("rate")};
    case 6: reader.require_known({}); return LayerNorm{};
    default:
      reader.require_known({"momentum"});
      return BatchNorm{reader.share("momentum", BatchNorm().momentum)};
  }
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
