#include "lib/train/saved_shape.hpp"

#include <algorithm>
#include <limits>

#include "lib/base/errors.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

constexpr double most_weights = 9007199254740992.0;  // 2^53: exact in double
constexpr std::size_t most_side = std::size_t{1} << 20;
constexpr std::uint64_t most_classes = std::numeric_limits<std::int32_t>::max();

void require_known(const ordered_json& json, const char* key, const char* known,
                   const JsonPlace& place) {
  const std::string value = text_in(json, key, place);
  if (value == known) return;
  fail(place, std::string("'") + key + "' is '" + value + "'; this version knows " + known);
}

nn::NetworkShape mlp_in(const ordered_json& json, const JsonPlace& place) {
  require_known(json, "activation", "relu", place);
  const auto widths = counts_in(json, "widths", place);
  const bool usable = widths.size() >= 2 && std::count(widths.begin(), widths.end(), 0U) == 0 &&
                      widths.back() <= most_classes;
  if (!usable) fail(place, "'widths' are not those of a network: features, hidden layers, classes");
  return {widths.front(), {widths.begin() + 1, widths.end() - 1}, widths.back()};
}

nn::Extent input_in(const ordered_json& json, const JsonPlace& place) {
  const auto sides = counts_in(json, "input", place);
  const bool usable = (sides.size() == 1 || sides.size() == 3) &&
                      std::all_of(sides.begin(), sides.end(),
                                  [](auto side) { return side >= 1 && side <= most_side; });
  if (!usable) fail(place, "'input' is neither [features] nor [rows, columns, channels]");
  if (sides.size() == 1) return nn::flat(sides[0]);
  return {sides[0], sides[1], sides[2], true};
}

nn::LayerSpec layer_in(const ordered_json& json, const JsonPlace& place,
                       const nn::LayerKinds& kinds) {
  if (!json.is_object()) fail(place, "'layers' has an entry that is no object");
  nn::Fields fields;
  for (const auto& [key, value] : json.items()) {
    if (value.is_string()) {
      fields.emplace_back(key, value.get<std::string>());
    } else if (value.is_number_unsigned()) {
      fields.emplace_back(key, value.get<std::uint64_t>());
    } else if (value.is_number()) {
      fields.emplace_back(key, value.get<double>());
    } else {
      fail(place, "'layers' has '" + key + "', which is neither text nor a number");
    }
  }
  return nn::layer_of(fields, kinds);
}

nn::NetworkShape list_in(const ordered_json& json, const JsonPlace& place,
                         const nn::LayerKinds& kinds) {
  const ordered_json& list = field(json, "layers", place);
  if (!list.is_array() || list.empty()) fail(place, "'layers' is no list of layers");
  const nn::Extent input = input_in(json, place);
  try {
    std::vector<nn::LayerSpec> layers;
    for (const auto& layer : list) layers.push_back(layer_in(layer, place, kinds));
    const auto* last = std::get_if<nn::Dense>(&layers.back());
    if (last == nullptr || last->activation != Activation::identity || last->width > most_classes) {
      fail(place, "'layers' does not end with a dense layer to the classes");
    }
    const std::size_t classes = last->width;
    layers.pop_back();
    return {input, std::move(layers), classes};
  } catch (const ConfigError& error) {
    throw DataError(place.path.string() + ": 'layers': " + error.what(),
                    place.remedy +
                        "; layers of a program's own are known to programs alone that "
                        "give their kinds (LayerKinds)");
  }
}

}  // namespace

nn::NetworkShape shape_in(const ordered_json& json, const JsonPlace& place,
                          const nn::LayerKinds& kinds) {
  const bool listed = text_in(json, "model", place) == "layers";
  if (!listed) require_known(json, "model", "mlp", place);
  nn::NetworkShape shape = listed ? list_in(json, place, kinds) : mlp_in(json, place);
  if (shape.weights() >= most_weights ||
      count_in(json, "parameters", place) != shape.parameters()) {
    fail(place, std::string("'parameters' is not the number of weights of a network of these '") +
                    (listed ? "layers'" : "widths'"));
  }
  return shape;
}

}  // namespace lockstep::train
