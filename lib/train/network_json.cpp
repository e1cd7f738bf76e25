#include "lockstep/train/network_json.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/table.hpp"
#include "lockstep/nn/network_shape.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

constexpr double max_weights = 9007199254740992.0;  // 2^53: exact in double
constexpr std::size_t max_side = std::size_t{1} << 20;
constexpr std::uint64_t max_classes = std::numeric_limits<std::int32_t>::max();

ordered_json field_json(const nn::FieldValue& value) {
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

/// The layers in network.json: widths of an mlp, or a list of layers.
ordered_json shape_json(const nn::NetworkShape& shape) {
  if (shape.is_mlp()) {
    return {{"model", "mlp"}, {"widths", shape.widths()}, {"activation", "relu"}};
  }
  ordered_json layers = ordered_json::array();
  for (const auto& layer : shape.layers) {
    ordered_json fields;
    for (const auto& [key, value] : nn::fields_of(layer)) fields[key] = field_json(value);
    layers.push_back(std::move(fields));
  }
  const auto& input = shape.input;
  const auto lengths = input.image
                           ? std::vector<std::size_t>{input.rows, input.columns, input.channels}
                           : std::vector<std::size_t>{input.size()};
  return {{"model", "layers"}, {"input", lengths}, {"layers", std::move(layers)}};
}

ordered_json number_json(const data::TableColumn& column) {
  return {{"name", column.name}, {"mean", column.mean}, {"deviation", column.deviation}};
}

ordered_json table_json(const data::TableSchema& table) {
  ordered_json columns = ordered_json::array();
  for (const data::TableColumn& column : table.columns) {
    if (column.categories.empty()) {
      columns.push_back(number_json(column));
    } else {
      columns.push_back({{"name", column.name}, {"categories", column.categories}});
    }
  }
  ordered_json left_out = ordered_json::array();
  for (const auto& [name, reason] : table.left_out) {
    left_out.push_back({{"name", name}, {"reason", reason}});
  }
  ordered_json json;
  if (table.is_multi_label()) {
    json["labels"] = table.label_names();
  } else if (table.is_regression()) {
    for (const data::TableColumn& target : table.targets) {
      json["targets"].push_back(number_json(target));
    }
  } else {
    json["label"] = table.label;
    json["classes"] = table.classes;
  }
  if (!table.weight.empty()) json["weight"] = table.weight;
  json["columns"] = std::move(columns);
  json["left_out"] = std::move(left_out);
  json["header"] = table.has_header;
  json["standardized"] = table.standardized;
  json["missing"] = data::name_of(table.missing);
  return json;
}

ordered_json pictures_json(const data::PictureSchema& pictures) {
  ordered_json json = {{"size", {pictures.size.rows, pictures.size.columns}},
                       {"channels", pictures.channels},
                       {"classes", pictures.classes}};
  if (pictures.path_column.empty()) return json;
  json["path_column"] = pictures.path_column;
  json["label_column"] = pictures.label_column;
  json["header"] = pictures.has_header;
  return json;
}

void require_known(const ordered_json& json, const char* key, const char* known,
                   const JsonPlace& place) {
  const std::string value = text_in(json, key, place);
  if (value == known) return;
  fail(place, std::string("'") + key + "' is '" + value + "'; this version supports " + known);
}

nn::NetworkShape mlp_in(const ordered_json& json, const JsonPlace& place) {
  require_known(json, "activation", "relu", place);
  const auto widths = counts_in(json, "widths", place);
  const bool usable = widths.size() >= 2 && std::count(widths.begin(), widths.end(), 0U) == 0 &&
                      widths.back() <= max_classes;
  if (!usable) fail(place, "'widths' are not those of a network: features, hidden layers, classes");
  try {
    return {widths.front(), {widths.begin() + 1, widths.end() - 1}, widths.back()};
  } catch (const ConfigError& error) {
    fail(place, "'widths': " + error.problem());
  }
}

nn::FeatureShape input_in(const ordered_json& json, const JsonPlace& place) {
  const auto sides = counts_in(json, "input", place);
  std::uint64_t left = nn::max_values;
  const bool usable = (sides.size() == 1 || sides.size() == 3) &&
                      std::all_of(sides.begin(), sides.end(),
                                  [&left](auto side) { return side >= 1 && (left /= side) >= 1; });
  if (!usable) {
    fail(place,
         "'input' is neither [features] nor [rows, columns, channels] with at most 2^40 values");
  }
  if (sides.size() == 1) return nn::flat(sides[0]);
  return {sides[0], sides[1], sides[2], true};
}

bool is_texts(const ordered_json& json) {
  return json.is_array() &&
         std::all_of(json.begin(), json.end(), [](const auto& item) { return item.is_string(); });
}

nn::LayerSpec layer_in(const ordered_json& json, const JsonPlace& place,
                       const nn::LayerKinds& kinds) {
  if (!json.is_object()) fail(place, "'layers' has an entry that is not an object");
  nn::Fields fields;
  for (const auto& [key, value] : json.items()) {
    if (value.is_boolean()) {
      fields.emplace_back(key, value.get<bool>());
    } else if (value.is_string()) {
      fields.emplace_back(key, value.get<std::string>());
    } else if (value.is_number_unsigned()) {
      fields.emplace_back(key, value.get<std::uint64_t>());
    } else if (value.is_number()) {
      fields.emplace_back(key, value.get<double>());
    } else if (is_texts(value)) {
      fields.emplace_back(key, value.get<std::vector<std::string>>());
    } else {
      fail(place, "'layers' has '" + key + "', which is neither text, a number, true nor false");
    }
  }
  return nn::layer_of(fields, kinds);
}

nn::NetworkShape layers_in(const ordered_json& json, const JsonPlace& place,
                           const nn::LayerKinds& kinds) {
  const ordered_json& list = field(json, "layers", place);
  if (!list.is_array() || list.empty()) fail(place, "'layers' is not a list of layers");
  const nn::FeatureShape input = input_in(json, place);
  try {
    std::vector<nn::LayerSpec> layers;
    for (const auto& layer : list) layers.push_back(layer_in(layer, place, kinds));
    const auto* last = std::get_if<nn::Dense>(&layers.back().function);
    if (last == nullptr || !layers.back().name.empty() || !layers.back().from.empty() ||
        last->activation != Activation::identity || last->width > max_classes) {
      fail(place, "'layers' does not end with a dense layer to the classes");
    }
    const std::size_t classes = last->width;
    const bool frozen = layers.back().frozen;
    layers.pop_back();
    nn::NetworkShape shape(input, std::move(layers), classes);
    shape.layers.back().frozen = frozen;
    return shape;
  } catch (const ConfigError& error) {
    throw DataError(place.path.string() + ": 'layers': " + error.problem(),
                    (error.remedy().empty() ? "" : error.remedy() + "; or ") + place.remedy +
                        "; a layer of a program's own is known to programs that give its kind: "
                        "apps/examples/06_custom_layer.cpp evaluates such a checkpoint");
  }
}

/// Reads `model` and its fields; throws DataError if `parameters` is not the network's number of
/// weights.
nn::NetworkShape shape_in(const ordered_json& json, const JsonPlace& place,
                          const nn::LayerKinds& kinds) {
  const bool listed = text_in(json, "model", place) == "layers";
  if (!listed) require_known(json, "model", "mlp", place);
  std::vector<std::string_view> keys = {"model", "loss", "parameters", "divide_by",
                                        "data",  "step", "examples",   "weights_hash"};
  for (const char* key : {"table", "pictures"}) {
    if (json.contains(key)) keys.emplace_back(key);
  }
  if (listed) {
    keys.insert(keys.end(), {"input", "layers"});
  } else {
    keys.insert(keys.end(), {"widths", "activation"});
  }
  require_keys(json, keys, place);
  nn::NetworkShape shape = listed ? layers_in(json, place, kinds) : mlp_in(json, place);
  if (shape.weights() >= max_weights || count_in(json, "parameters", place) != shape.parameters()) {
    fail(place, std::string("'parameters' is not the number of weights of a network of these '") +
                    (listed ? "layers'" : "widths'"));
  }
  return shape;
}

float divisor_in(const ordered_json& json, const JsonPlace& place) {
  const auto divisor = static_cast<float>(number_in(json, "divide_by", place));
  if (!std::isfinite(divisor) || divisor <= 0) fail(place, "'divide_by' is not a number above 0");
  return divisor;
}

std::vector<std::string> texts_in(const ordered_json& json, const char* key,
                                  const JsonPlace& place) {
  const auto& list = field(json, key, place);
  if (list.empty() || !is_texts(list)) {
    fail(place, std::string("'") + key + "' is not a list of texts");
  }
  return list.get<std::vector<std::string>>();
}

bool flag_in(const ordered_json& json, const char* key, const JsonPlace& place) {
  const auto& value = field(json, key, place);
  if (!value.is_boolean()) fail(place, std::string("'") + key + "' is neither true nor false");
  return value.get<bool>();
}

data::TableColumn column_of_numbers(const ordered_json& json, const JsonPlace& place) {
  data::TableColumn column = {.name = text_in(json, "name", place)};
  require_keys(json, {"name", "mean", "deviation"}, place);
  column.mean = number_in(json, "mean", place);
  column.deviation = number_in(json, "deviation", place);
  if (!std::isfinite(column.mean) || !std::isfinite(column.deviation) || column.deviation <= 0) {
    fail(place, "'mean' and 'deviation' are not a finite number and one above 0");
  }
  return column;
}

data::TableColumn column_in(const ordered_json& json, const JsonPlace& place) {
  if (!json.contains("categories")) return column_of_numbers(json, place);
  require_keys(json, {"name", "categories"}, place);
  return {.name = text_in(json, "name", place), .categories = texts_in(json, "categories", place)};
}

std::shared_ptr<const data::TableSchema> table_in(const ordered_json& json,
                                                  const nn::NetworkShape& shape,
                                                  const JsonPlace& place) {
  if (!json.contains("table")) return nullptr;
  const auto& object = field(json, "table", place);
  std::vector<std::string_view> keys = {"columns", "left_out", "header", "standardized", "missing"};
  auto table = std::make_shared<data::TableSchema>();
  if (object.is_object() && object.contains("targets")) {
    keys.emplace_back("targets");
    table->task = data::Task::regression;
    for (const auto& target : list_in(object, "targets", place)) {
      table->targets.push_back(column_of_numbers(target, place));
    }
  } else if (object.is_object() && object.contains("labels")) {
    keys.emplace_back("labels");
    table->task = data::Task::multi_label;
    for (std::string& name : texts_in(object, "labels", place)) {
      table->targets.push_back({.name = std::move(name)});
    }
  } else {
    keys.insert(keys.end(), {"label", "classes"});
    table->label = text_in(object, "label", place);
    table->classes = texts_in(object, "classes", place);
  }
  if (object.is_object() && object.contains("weight")) {
    keys.emplace_back("weight");
    table->weight = text_in(object, "weight", place);
  }
  require_keys(object, keys, place);
  for (const auto& column : list_in(object, "columns", place)) {
    table->columns.push_back(column_in(column, place));
  }
  for (const auto& one : list_in(object, "left_out", place)) {
    require_keys(one, {"name", "reason"}, place);
    table->left_out.emplace_back(text_in(one, "name", place), text_in(one, "reason", place));
  }
  table->has_header = flag_in(object, "header", place);
  table->standardized = flag_in(object, "standardized", place);
  table->has_moments = true;
  const auto missing = data::missing_named(text_in(object, "missing", place));
  if (!missing) fail(place, "'missing' is none of error, mean and zero");
  table->missing = *missing;
  const bool has_classes = table->task == data::Task::classification;
  const std::size_t outputs = has_classes ? table->classes.size() : table->targets.size();
  if (table->features() != shape.features || outputs != shape.classes) {
    fail(place, "'table' has " + std::to_string(table->features()) + " features and " +
                    std::to_string(outputs) + (has_classes ? " classes" : " targets") +
                    ", which the network has not");
  }
  return table;
}

std::shared_ptr<const data::PictureSchema> pictures_in(const ordered_json& json,
                                                       const nn::NetworkShape& shape,
                                                       const JsonPlace& place) {
  if (!json.contains("pictures")) return nullptr;
  const auto& object = field(json, "pictures", place);
  require_keys(object, {"size", "channels", "classes", "path_column", "label_column", "header"},
               place);
  const auto size = counts_in(object, "size", place);
  const auto channels = count_in(object, "channels", place);
  const bool usable = size.size() == 2 && (channels == 1 || channels == 3) &&
                      std::all_of(size.begin(), size.end(),
                                  [](auto side) { return side >= 1 && side <= max_side; });
  if (!usable) fail(place, "'pictures' has no 'size' [rows, columns] and 1 or 3 'channels'");
  auto pictures = std::make_shared<data::PictureSchema>();
  pictures->size = {size[0], size[1]};
  pictures->channels = static_cast<std::size_t>(channels);
  pictures->classes = texts_in(object, "classes", place);
  if (object.contains("path_column")) {
    pictures->path_column = text_in(object, "path_column", place);
    pictures->label_column = text_in(object, "label_column", place);
    pictures->has_header = flag_in(object, "header", place);
  }
  if (pictures->features() != shape.features || pictures->classes.size() != shape.classes) {
    fail(place, "'pictures' has " + std::to_string(pictures->features()) + " features and " +
                    std::to_string(pictures->classes.size()) +
                    " classes, which the network has not");
  }
  return pictures;
}

}  // namespace

std::vector<std::string> CheckpointInfo::class_names() const {
  if (table != nullptr) return table->class_names();
  if (pictures != nullptr) return pictures->classes;
  return {};
}

std::string network_json(const nn::NetworkShape& shape, const std::string& loss,
                         const CheckpointInfo& info, std::uint64_t weights_hash) {
  ordered_json json = shape_json(shape);
  json["loss"] = loss;
  json["parameters"] = shape.parameters();
  json["divide_by"] = info.divide_by;
  const auto replace = ordered_json::error_handler_t::replace;
  json["data"] = ordered_json::parse(ordered_json(info.data).dump(-1, ' ', false, replace));
  if (info.table != nullptr) json["table"] = table_json(*info.table);
  if (info.pictures != nullptr) json["pictures"] = pictures_json(*info.pictures);
  json["step"] = info.step;
  json["examples"] = info.examples;
  json["weights_hash"] = to_hex(weights_hash);
  return json.dump(2) + "\n";
}

void require_describes(const CheckpointInfo& info, const nn::NetworkShape& shape) {
  const JsonPlace place = {.path = "CheckpointInfo",
                           .remedy = "describe the data that the network was trained on"};
  try {
    const auto json = ordered_json::parse(network_json(shape, nn::default_loss, info, 0));
    divisor_in(json, place);
    table_in(json, shape, place);
    pictures_in(json, shape, place);
  } catch (const DataError& error) {
    throw ConfigError(error.problem(), error.remedy());
  } catch (const ordered_json::type_error&) {
    throw ConfigError("CheckpointInfo: a name or class is not UTF-8", "write it in UTF-8");
  }
}

SavedNetwork network_in(const ordered_json& json, const JsonPlace& place,
                        const nn::LayerKinds& kinds) {
  const nn::NetworkShape shape = shape_in(json, place, kinds);
  return {
      {},
      shape,
      {count_in(json, "step", place), count_in(json, "examples", place), divisor_in(json, place),
       text_in(json, "data", place), table_in(json, shape, place), pictures_in(json, shape, place)},
      text_in(json, "loss", place),
      hash_in(json, "weights_hash", place)};
}

}  // namespace lockstep::train
