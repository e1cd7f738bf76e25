#include "lib/train/config.hpp"

#include <toml++/toml.h>

#include <algorithm>

#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::train {
namespace {

const Setting& setting_named(std::string_view place, const std::string& key) {
  const auto& all = settings();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.name == key; });
  if (found != all.end()) return *found;
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const auto& setting : all) names.push_back(setting.name);
  const auto guess = nearest(key, names);
  throw ConfigError(
      std::string(place) + ": unknown setting '" + key + "'",
      guess ? "did you mean '" + *guess + "'?" : "`lockstep train --help` lists all settings");
}

/// A TOML value as the text that a flag would carry.
std::string flag_text(const toml::node& node, const std::string& place) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    return shortest(number->get());
  }
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  const auto* list = node.as_array();
  if (list == nullptr) throw ConfigError(place + ": a table or date where a value should be");
  std::string text;
  for (const auto& item : *list) {
    if (item.is_array()) throw ConfigError(place + ": a list inside a list");
    text += (text.empty() ? "" : ",") + flag_text(item, place);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

void set_value(RunConfig& config, std::string_view place, const std::string& key,
               const std::string& value) {
  const Setting& setting = setting_named(place, key);
  try {
    setting.set(config, value);
  } catch (const ConfigError& error) {
    const std::string where(place);
    throw ConfigError(where + (where == "--" + key ? ": " : ": " + key + ": ") + error.what());
  }
}

void apply_run_file(RunConfig& config, const std::string& path, const std::string& text) {
  toml::table file;
  try {
    file = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    throw ConfigError(path + ":" + std::to_string(error.source().begin.line) +
                      ": not TOML: " + std::string(error.description()));
  }
  for (const auto& [key, node] : file) {
    const std::string place = path + ":" + std::to_string(key.source().begin.line);
    const Setting& setting = setting_named(place, std::string(key.str()));
    set_value(config, place, setting.name, flag_text(node, place + ": " + setting.name));
  }
}

std::string to_toml(const RunConfig& config) {
  std::string text;
  for (const auto& [key, value] : key_values(config)) text += key + " = " + value + "\n";
  return text;
}

std::vector<std::pair<std::string, std::string>> key_values(const RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& setting : settings()) pairs.emplace_back(setting.name, setting.literal(config));
  return pairs;
}

}  // namespace lockstep::train
