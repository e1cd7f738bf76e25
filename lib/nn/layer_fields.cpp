// Layers as keys and values, and back.
#include <algorithm>
#include <optional>
#include <stdexcept>

#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/nn/layer_spec.hpp"

namespace lockstep::nn {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint64_t most_width = std::uint64_t{1} << 31;
constexpr std::uint64_t most_filters = std::uint64_t{1} << 20;
constexpr std::uint64_t most_window = std::uint64_t{1} << 15;

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

/// The fields of one layer, as they are asked for.
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

  /// Which of `words`; the first where the key is not there.
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
  return Dense{fields.count("width", most_width), fields.activation()};
}

LayerSpec convolution(const Reader& fields) {
  fields.require_known({"filters", "kernel", "padding", "activation"});
  const bool valid = fields.choice("padding", {"valid", "same"}) == 0;
  return Convolution{fields.count("filters", most_filters), fields.count("kernel", most_window),
                     valid ? Padding::valid : Padding::same, fields.activation()};
}

LayerSpec pool(Pooling pooling, const Reader& fields) {
  fields.require_known({"size"});
  return Pool{pooling, fields.count("size", most_window)};
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

}  // namespace lockstep::nn
