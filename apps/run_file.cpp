#include "apps/run_file.hpp"

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "apps/flag_names.hpp"
#include "apps/toml_settings.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"

namespace lockstep::apps {
namespace {

constexpr const char* layer_key = "layer";

nn::FieldValue field_value(const toml::node& node, const std::string& place) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  if (const auto* number = node.as_integer()) {
    if (number->get() >= 0) return static_cast<std::uint64_t>(number->get());
    return static_cast<double>(number->get());
  }
  if (const auto* number = node.as_floating_point()) return number->get();
  const auto* list = node.as_array();
  if (list != nullptr && (list->empty() || list->is_homogeneous<std::string>())) {
    std::vector<std::string> texts;
    for (const auto& text : *list) texts.push_back(text.as_string()->get());
    return texts;
  }
  throw ConfigError(place + ": is neither text nor a number, nor a list of texts",
                    "write text in quotes, as in \"3x3\"");
}

nn::LayerSpec layer_in(const toml::node& node, const std::string& path) {
  const std::string line = place_of(path, node.source());
  const std::string begin = line + ": layer";
  const auto* table = node.as_table();
  if (table == nullptr) throw ConfigError(begin + ": not a table", "write [[layer]]");
  nn::Fields fields;
  for (const auto& [key, value] : *table) {
    const std::string place = place_of(path, key.source()) + ": layer: ";
    fields.emplace_back(key.str(), field_value(value, place + std::string(key.str())));
  }
  try {
    nn::LayerSpec layer = nn::layer_of(fields);
    layer.place = line;
    return layer;
  } catch (const ConfigError& error) {
    throw ConfigError(begin + ": " + error.what());
  }
}

/// A list of layers sets the model; later keys and flags may change it.
void apply_layers(RunConfig& config, const std::string& path, const std::string& place,
                  const toml::node& node) {
  const auto* list = node.as_array();
  if (list == nullptr) throw ConfigError(place + ": layer is not a list", "write [[layer]]");
  config.layer_list.clear();
  for (const auto& layer : *list) config.layer_list.push_back(layer_in(layer, path));
  config.model = "layers";
}

std::string layers_literal(const std::vector<nn::LayerSpec>& layers) {
  const auto field = [](const auto& one) { return one.first + " = " + nn::literal_of(one.second); };
  const auto table = [&](const nn::LayerSpec& layer) {
    return "{" + joined(nn::fields_of(layer), ", ", field) + "}";
  };
  return "[" + joined(layers, ", ", table) + "]";
}

}  // namespace

std::string read_run_file(const std::string& path) {
  if (path.empty()) return "";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw ConfigError(path + ": no such run file, or no regular file",
                      "see configs/ for run files, and `lockstep train --help` for flags");
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw ConfigError(path + ": cannot be read", "check its permissions");
  return text.str();
}

toml::table parse_toml(const std::string& path, const std::string& text) {
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        place_of(path, error.source()) + ": not TOML: " + std::string(error.description()),
        "write KEY = VALUE, and texts in quotes; `lockstep train --print-config` prints an "
        "example");
  }
}

std::string flag_text(const toml::node& node, const std::string& place) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    return shortest(number->get());
  }
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (node.is_date() || node.is_time() || node.is_date_time()) {
    throw ConfigError(place + ": a date or time of TOML", "write it in quotes, as in \"01:00:00\"");
  }
  const auto* list = node.as_array();
  if (list == nullptr) {
    throw ConfigError(place + ": a table where a value should be",
                      "write KEY = VALUE; but for [optimizer] and [schedule], settings stand in no "
                      "table");
  }
  std::string text;
  for (const auto& item : *list) {
    if (item.is_array()) {
      throw ConfigError(place + ": a list inside a list", "write one list, as in [700, 500]");
    }
    const std::string one = flag_text(item, place);
    text += (text.empty() ? "" : ",") + (item.is_string() ? data::csv_field(one) : one);
  }
  return text.empty() ? "none" : text;
}

std::string place_of(const std::string& path, const toml::source_region& source) {
  return path + ":" + std::to_string(source.begin.line);
}

void for_each_setting(const toml::table& table, const std::string& path,
                      const std::function<void(const TomlSetting&)>& visit) {
  static constexpr std::array groups = {"optimizer", "schedule"};
  std::map<std::string, std::string> places;  // of the settings so far
  const auto visit_key = [&](const toml::key& key, std::string_view name, const toml::node& node,
                             const std::vector<std::string>& others = {}) {
    const std::string place = place_of(path, key.source());
    const Setting& setting = setting_named(place, std::string(name), others);
    const auto [first, is_new] = places.emplace(setting.name, place);
    if (!is_new) {
      throw ConfigError(place + ": " + setting.name + " is given at " + first->second + ", too",
                        "leave one of them out");
    }
    visit({setting, place, node});
  };
  for (const auto& [key, node] : table) {
    const bool is_group = contains(groups, key.str());
    const auto* group = node.as_table();
    if (group == nullptr || !is_group) {
      visit_key(key, key.str(), node);
      continue;
    }
    for (const auto& [name, value] : *group) {
      visit_key(name, name.str() == "name" ? key.str() : name.str(), value, {"name"});
    }
  }
}

void apply_run_file(RunConfig& config, const std::string& path, const std::string& text,
                    bool has_sweep) {
  toml::table file = parse_toml(path, text);
  if (const auto layers = file.find(layer_key); layers != file.end()) {
    apply_layers(config, path, place_of(path, layers->first.source()), layers->second);
    file.erase(layers);
  }
  if (const auto sweep = file.find(sweep_table); sweep != file.end()) {
    if (!has_sweep) {
      throw ConfigError(place_of(path, sweep->first.source()) + ": [sweep] is of a sweep file",
                        "`lockstep sweep " + in_shell(path) + "` runs its trials");
    }
    file.erase(sweep);
  }
  for_each_setting(file, path, [&](const TomlSetting& given) {
    const std::string& name = given.setting.name;
    if (given.value.is_array() && !given.setting.is_list()) {
      throw ConfigError(given.place + ": " + name + ": a list where one value should be",
                        "write " + name + " = VALUE");
    }
    set_value(config, given.place, given.setting,
              flag_text(given.value, given.place + ": " + name));
    config.places[name] = given.place;
  });
}

RunConfig read_config(const std::filesystem::path& run) {
  const std::string file = (run / "config.toml").string();
  RunConfig config;
  apply_run_file(config, file, read_run_file(file));
  return config;
}

std::string to_toml(const RunConfig& config) {
  std::string text;
  for (const auto& [key, value] : key_values(config)) {
    if (key != layer_key) text += key + " = " + value + "\n";
  }
  for (const auto& layer : config.layer_list) {  // last: in TOML, keys after a table belong to it
    text += "\n[[layer]]\n";
    for (const auto& [key, value] : nn::fields_of(layer)) {
      text += key + " = " + nn::literal_of(value) + "\n";
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> key_values(const RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& setting : settings()) pairs.emplace_back(setting.name, setting.literal(config));
  if (!config.layer_list.empty()) pairs.emplace_back(layer_key, layers_literal(config.layer_list));
  return pairs;
}

}  // namespace lockstep::apps
