#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/nn/network_shape.hpp"

namespace lockstep::nn {
namespace {

void require_image(const FeatureShape& input) {
  if (input.image) return;
  throw ConfigError("takes images, but " + std::to_string(input.size()) +
                        " values without rows and columns come in",
                    "place it before flatten and dense layers, and give data with rows and columns "
                    "(IDX, NPY, CIFAR or pictures), not CSV or TFRecord");
}

FeatureShape limited(const FeatureShape& shape) {
  const double values = static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
                        static_cast<double>(shape.channels);
  if (values <= static_cast<double>(max_values)) return shape;
  throw ConfigError("gives more than 2^40 values an example", "make it smaller");
}

using Words = std::vector<std::string>;

constexpr std::uint64_t max_width = std::uint64_t{1} << 31;
constexpr std::uint64_t max_vocabulary = std::uint64_t{1} << 24;  // exact in float
constexpr std::uint64_t max_filters = std::uint64_t{1} << 20;
constexpr std::uint64_t max_window = std::uint64_t{1} << 15;

[[noreturn]] void fail_unknown(const std::string& what, const std::string& word,
                               const Words& known) {
  throw ConfigError(what + " '" + word + "' is none of " + joined(known),
                    did_you_mean(nearest(word, known)));
}

/// Reads and checks the fields of one layer.
class Reader {
 public:
  explicit Reader(const Fields& fields) : fields_(fields) {}

  std::uint64_t count(const char* key, std::uint64_t max) const {
    const FieldValue& value = required(key);
    const auto* number = std::get_if<std::uint64_t>(&value);
    if (number != nullptr && *number >= 1 && *number <= max) return *number;
    std::string given = literal_of(value);  // integers below 0 are numbers as others
    if (given.starts_with('-') && given.ends_with(".0")) given.resize(given.size() - 2);
    throw ConfigError(std::string(key) + ": " + given + " is not a whole number in [1, " +
                          std::to_string(max) + "]",
                      "give one in this range");
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
    throw ConfigError(std::string(key) + ": " + literal_of(value) + " is not a number in [0, 1)",
                      "give one in this range");
  }

  /// The index of the value in `words`; 0 if the key is missing.
  std::size_t choice(const char* key, const Words& words) const {
    const FieldValue* value = find(key);
    if (value == nullptr) return 0;
    const auto* word = std::get_if<std::string>(value);
    if (word == nullptr) {
      throw ConfigError(
          std::string(key) + ": " + literal_of(*value) + " is none of " + joined(words),
          "give one of them, in quotes");
    }
    const auto index = index_of(words, *word);
    if (!index) fail_unknown(std::string(key) + ":", *word, words);
    return *index;
  }

  std::uint64_t count(const char* key, std::uint64_t max, std::uint64_t otherwise) const {
    return find(key) == nullptr ? otherwise : count(key, max);
  }

  Activation activation(Activation otherwise) const {
    if (find("activation") == nullptr) return otherwise;
    return choice("activation", {"relu", "identity"}) == 0 ? Activation::relu
                                                           : Activation::identity;
  }

  void require_known(Words keys) const {
    keys.insert(keys.begin(), "kind");
    keys.insert(keys.end(), {"name", "from", "freeze"});
    for (const auto& [key, value] : fields_) {
      if (!contains(keys, key)) fail_unknown("key", key, keys);
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

/// The key of an activation that is identity by default, as files had it before the key existed.
void add_activation(Fields& fields, Activation activation) {
  if (activation == Activation::relu) fields.emplace_back("activation", "relu");
}

LayerFunction read_dense(const Reader& fields) {
  fields.require_known({"width", "activation"});
  return Dense{fields.count("width", max_width), fields.activation(Activation::relu)};
}

}  // namespace

FeatureShape Dense::output_of(const FeatureShape& input) const {
  if (!input.image) return flat(width);
  throw ConfigError("takes a row of values, but an image of " + text_of(input) + " comes in",
                    "put a layer of kind = \"flatten\" before it");
}

double Dense::weights(const FeatureShape& input) const {
  return (static_cast<double>(input.size()) + 1) * static_cast<double>(width);
}

double Dense::multiply_adds(const FeatureShape& input) const {
  return static_cast<double>(input.size()) * static_cast<double>(width);
}

std::string Dense::text() const { return "dense " + std::to_string(width); }

Fields Dense::fields() const {
  return {{"kind", "dense"}, {"width", std::uint64_t{width}}, {"activation", name_of(activation)}};
}

namespace {

LayerFunction read_convolution(const Reader& fields) {
  fields.require_known({"filters", "kernel", "stride", "padding", "activation"});
  const bool valid = fields.choice("padding", {"valid", "same"}) == 0;
  return Convolution{fields.count("filters", max_filters), fields.count("kernel", max_window),
                     valid ? Padding::valid : Padding::same, fields.activation(Activation::relu),
                     fields.count("stride", max_window, 1)};
}

}  // namespace

FeatureShape Convolution::output_of(const FeatureShape& input) const {
  require_image(input);
  const auto windows = [&](std::size_t origins) { return (origins - 1) / stride + 1; };
  if (padding == Padding::same) {
    return limited({windows(input.rows), windows(input.columns), filters, true});
  }
  if (kernel > input.rows || kernel > input.columns) {
    throw ConfigError("a kernel of " + std::to_string(kernel) + " on an image of " + text_of(input),
                      "use a smaller kernel, or padding = \"same\"");
  }
  return limited(
      {windows(input.rows - kernel + 1), windows(input.columns - kernel + 1), filters, true});
}

double Convolution::weights(const FeatureShape& input) const {
  const auto side = static_cast<double>(kernel);
  return (side * side * static_cast<double>(input.channels) + 1) * static_cast<double>(filters);
}

double Convolution::multiply_adds(const FeatureShape& input) const {
  const auto side = static_cast<double>(kernel);
  return side * side * static_cast<double>(input.channels) *
         static_cast<double>(output_of(input).size());
}

std::string Convolution::text() const {
  const std::string side = std::to_string(kernel);
  return "conv " + std::to_string(filters) + "@" + side + "x" + side +
         (stride > 1 ? " stride " + std::to_string(stride) : "");
}

Fields Convolution::fields() const {
  Fields fields = {
      {"kind", "conv"}, {"filters", std::uint64_t{filters}}, {"kernel", std::uint64_t{kernel}}};
  if (stride != 1) fields.emplace_back("stride", std::uint64_t{stride});
  fields.emplace_back("padding", padding == Padding::same ? "same" : "valid");
  fields.emplace_back("activation", name_of(activation));
  return fields;
}

namespace {

template <Pooling pooling>
LayerFunction read_pool(const Reader& fields) {
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
    throw ConfigError("windows of " + std::to_string(size) + " on an image of " + text_of(input),
                      "use a smaller size, or fewer layers before it");
  }
  return {input.rows / size, input.columns / size, input.channels, true};
}

std::string Pool::text() const { return kind_of(pooling) + (" " + std::to_string(size)); }

Fields Pool::fields() const { return {{"kind", kind_of(pooling)}, {"size", std::uint64_t{size}}}; }

namespace {

LayerFunction read_global_pool(const Reader& fields) {
  fields.require_known({"pooling"});
  return GlobalPool{fields.choice("pooling", {"average", "max"}) == 0 ? Pooling::average
                                                                      : Pooling::max};
}

const char* name_of(Pooling pooling) { return pooling == Pooling::max ? "max" : "average"; }

}  // namespace

FeatureShape GlobalPool::output_of(const FeatureShape& input) const {
  require_image(input);
  return flat(input.channels);
}

std::string GlobalPool::text() const { return std::string("global-pool ") + name_of(pooling); }

Fields GlobalPool::fields() const {
  return {{"kind", "global-pool"}, {"pooling", name_of(pooling)}};
}

namespace {

LayerFunction read_dropout(const Reader& fields) {
  fields.require_known({"rate"});
  return Dropout{fields.share("rate")};
}

}  // namespace

Fields Flatten::fields() const { return {{"kind", "flatten"}}; }

std::string Dropout::text() const { return "dropout " + literal_of(FieldValue(rate)); }

Fields Dropout::fields() const { return {{"kind", "dropout"}, {"rate", rate}}; }

namespace {

LayerFunction read_batch_norm(const Reader& fields) {
  fields.require_known({"momentum", "activation"});
  return BatchNorm{fields.share("momentum", BatchNorm().momentum),
                   fields.activation(Activation::identity)};
}

}  // namespace

Fields LayerNorm::fields() const { return {{"kind", "layer-norm"}}; }

Fields BatchNorm::fields() const {
  Fields fields = {{"kind", "batch-norm"}, {"momentum", momentum}};
  add_activation(fields, activation);
  return fields;
}

namespace {

LayerFunction read_add(const Reader& fields) {
  fields.require_known({"activation"});
  return Add{fields.activation(Activation::identity)};
}

LayerFunction read_concatenate(const Reader& fields) {
  fields.require_known({});
  return Concatenate{};
}

void require_several(std::span<const FeatureShape> inputs) {
  if (inputs.size() > 1) return;
  throw ConfigError("takes two or more inputs, but one comes in",
                    "name them: from = [\"a\", \"b\"]");
}

}  // namespace

FeatureShape Add::output_of(std::span<const FeatureShape> inputs) const {
  require_several(inputs);
  for (const FeatureShape& input : inputs) {
    if (input == inputs[0]) continue;
    throw ConfigError("adds inputs of equal shape, but " + text_of(inputs[0]) + " and " +
                          text_of(input) + " come in",
                      "give them equal shapes: a convolution of kernel 1 with the same stride and "
                      "filters makes a shortcut fit");
  }
  return inputs[0];
}

Fields Add::fields() const {
  Fields fields = {{"kind", "add"}};
  add_activation(fields, activation);
  return fields;
}

Fields Concatenate::fields() const { return {{"kind", "concatenate"}}; }

FeatureShape Concatenate::output_of(std::span<const FeatureShape> inputs) const {
  require_several(inputs);
  FeatureShape all = inputs[0];
  all.channels = 0;
  for (const FeatureShape& input : inputs) {
    all.channels += input.channels;
    if (input.rows == all.rows && input.columns == all.columns && input.image == all.image)
      continue;
    throw ConfigError("joins the channels of images of equal rows and columns, or values, but " +
                          text_of(inputs[0]) + " and " + text_of(input) + " come in",
                      "give them equal rows and columns: use the same stride and pooling");
  }
  return limited(all);
}

namespace {

LayerFunction read_embedding(const Reader& fields) {
  fields.require_known({"vocabulary", "width"});
  return Embedding{fields.count("vocabulary", max_vocabulary), fields.count("width", max_width)};
}

}  // namespace

FeatureShape Embedding::output_of(const FeatureShape& input) const {
  if (!input.image) return limited({1, input.size(), width, true});
  if (input.channels == 1) return limited({input.rows, input.columns, width, true});
  throw ConfigError("takes one value a pixel, but an image of " + text_of(input) + " comes in",
                    "put a layer of kind = \"flatten\" before it");
}

std::string Embedding::text() const {
  return "embedding " + std::to_string(width) + " of " + std::to_string(vocabulary);
}

Fields Embedding::fields() const {
  return {{"kind", "embedding"},
          {"vocabulary", std::uint64_t{vocabulary}},
          {"width", std::uint64_t{width}}};
}

namespace {

/// Throws ConfigError for what no checkpoint could hold.
void require_text(const std::string& text, const std::string& what) {
  if (is_utf8(text)) return;
  throw ConfigError(what + " is not UTF-8: " + in_quotes(text), "write it in UTF-8");
}

void require_savable(const std::string& key, const FieldValue& value) {
  const std::string what = "'" + key + "' of LayerKind::fields()";
  if (const auto* const number = std::get_if<double>(&value)) {
    if (std::isfinite(*number)) return;
    throw ConfigError(what + " is not finite", "give a finite number");
  }
  if (const auto* const text = std::get_if<std::string>(&value)) require_text(*text, what);
  if (const auto* const texts = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& text : *texts) require_text(text, what);
  }
}

}  // namespace

FeatureShape Custom::output_of(const FeatureShape& input) const {
  if (kind == nullptr) {
    throw ConfigError("a custom layer without a LayerKind",
                      "give Custom{kind}, or nn::custom(layer)");
  }
  const std::string name = kind->name();
  if (name.empty()) {
    throw ConfigError("a custom layer without a name",
                      "give it one, by which checkpoints are read: name()");
  }
  if (is_built_in(name)) {
    throw ConfigError("a built-in layer is of kind '" + name + "'",
                      "give LayerKind::name() another name");
  }
  require_text(name, "LayerKind::name()");
  for (const auto& [key, value] : kind->fields()) {
    if (key == "kind" || key == "name" || key == "from" || key == "freeze") {
      throw ConfigError("LayerKind '" + name + "' has the key '" + key + "', which is LayerSpec's",
                        "give LayerKind::fields() another key");
    }
    require_text(key, "a key of LayerKind::fields()");
    require_savable(key, value);
  }
  const FeatureShape output = limited(kind->output_of(input));
  if (output.size() == 0) {
    throw ConfigError("its output has 0 values", "give the shape of its output, as in flat(8)");
  }
  return output;
}

Fields Custom::fields() const {
  if (kind == nullptr) return {{"kind", "custom"}};
  Fields fields = kind->fields();
  fields.insert(fields.begin(), {"kind", kind->name()});
  return fields;
}

namespace {

template <class Spec>
LayerFunction read_plain(const Reader& fields) {
  fields.require_known({});
  return Spec{};
}

/// The built-in layers: the name in files, and the function that reads the keys.
struct BuiltIn {
  const char* kind;
  LayerFunction (*read)(const Reader& fields);
};
constexpr std::array built_in = {
    BuiltIn{"dense", read_dense},
    BuiltIn{"conv", read_convolution},
    BuiltIn{"max-pool", read_pool<Pooling::max>},
    BuiltIn{"average-pool", read_pool<Pooling::average>},
    BuiltIn{"global-pool", read_global_pool},
    BuiltIn{"flatten", read_plain<Flatten>},
    BuiltIn{"dropout", read_dropout},
    BuiltIn{"layer-norm", read_plain<LayerNorm>},
    BuiltIn{"batch-norm", read_batch_norm},
    BuiltIn{"add", read_add},
    BuiltIn{"concatenate", read_concatenate},
    BuiltIn{"embedding", read_embedding},
};

Custom read_custom(const LayerKinds::Read& read, const std::string& name, const Fields& fields) {
  try {
    Custom layer{read(fields)};
    if (layer.kind != nullptr) return layer;
  } catch (const std::bad_variant_access&) {  // std::get<double> of a text
  } catch (const std::out_of_range&) {        // fields.at(1) of one
  }
  throw ConfigError("kind '" + name + "' cannot be made of its keys (" +
                        joined(fields, ", ", &Fields::value_type::first) + ") and their values",
                    "let its constructor read what its fields() gives");
}

void require_plain_name(const std::string& key, const std::string& name) {
  const bool usable = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  });
  if (usable) return;
  throw ConfigError(key + ": '" + name + "' is not a name of letters, digits and -_./",
                    "use a name such as \"block1.add\"");
}

}  // namespace

Fields fields_of(const LayerSpec& layer) {
  Fields fields =
      std::visit([](const auto& function) { return function.fields(); }, layer.function);
  auto at = fields.begin() + 1;
  if (!layer.name.empty()) at = fields.insert(at, {"name", layer.name}) + 1;
  if (layer.from.size() == 1) fields.insert(at, {"from", layer.from[0]});
  if (layer.from.size() > 1) fields.insert(at, {"from", layer.from});
  if (layer.frozen) fields.emplace_back("freeze", true);
  return fields;
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

void require_layer_name(const std::string& name) {
  require_plain_name("name", name);
  if (name != input_name) return;
  throw ConfigError("name: 'input' is the network's input", "use another name");
}

namespace {

std::string name_in(const FieldValue& value) {
  const auto* name = std::get_if<std::string>(&value);
  if (name == nullptr)
    throw ConfigError("name: " + literal_of(value) + " is not a text", "put it in quotes");
  require_layer_name(*name);
  return *name;
}

Words sources_in(const FieldValue& value) {
  Words from;
  if (const auto* name = std::get_if<std::string>(&value)) from = {*name};
  if (const auto* list = std::get_if<Words>(&value)) from = *list;
  if (from.empty()) {
    throw ConfigError("from: " + literal_of(value) + " names no layer",
                      "give a name, or a list of names: from = [\"a\", \"b\"]");
  }
  for (const std::string& name : from) require_plain_name("from", name);
  return from;
}

bool truth_in(const FieldValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth;
  throw ConfigError("freeze: " + literal_of(value) + " is neither true nor false",
                    "write freeze = true");
}

LayerFunction function_of(const Fields& fields, const LayerKinds& own) {
  Words kinds;
  for (const BuiltIn& layer : built_in) kinds.emplace_back(layer.kind);
  for (const auto& name : own.names()) kinds.push_back(name);
  const Reader reader(fields);
  const auto kind = std::find_if(fields.begin(), fields.end(),
                                 [](const auto& field) { return field.first == "kind"; });
  if (kind == fields.end()) throw ConfigError("no 'kind'", "give one of " + joined(kinds));
  const std::size_t chosen = reader.choice("kind", kinds);
  if (chosen < built_in.size()) return built_in[chosen].read(reader);
  return read_custom(*own.find(kinds[chosen]), kinds[chosen], fields);
}

}  // namespace

void require_valid(const LayerFunction& function) {
  if (std::holds_alternative<Custom>(function)) return;
  function_of(std::visit([](const auto& one) { return one.fields(); }, function), {});
}

LayerSpec layer_of(const Fields& fields, const LayerKinds& own) {
  std::string name;
  Words from;
  bool frozen = false;
  Fields others;
  for (const auto& [key, value] : fields) {
    if (key == "name") {
      name = name_in(value);
    } else if (key == "from") {
      from = sources_in(value);
    } else if (key == "freeze") {
      frozen = truth_in(value);
    } else {
      others.emplace_back(key, value);
    }
  }
  LayerSpec layer = {function_of(others, own), std::move(name), std::move(from)};
  layer.frozen = frozen;
  return layer;
}

std::string literal_of(const FieldValue& value) {
  if (const auto* count = std::get_if<std::uint64_t>(&value)) return std::to_string(*count);
  if (const auto* number = std::get_if<double>(&value)) return shortest(*number);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return '"' + *text + '"';
  return '[' + joined(std::get<Words>(value), ", ", literal_of) + ']';
}

}  // namespace lockstep::nn
