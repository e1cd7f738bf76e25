// Settings in TOML tables, as run files and sweep files have them. Apart from run_file.hpp because
// toml++ takes long to compile.
#pragma once

#include <toml++/toml.h>

#include <functional>
#include <string>

#include "apps/settings.hpp"

namespace lockstep::apps {

/// The table of a sweep file that is not part of the run file.
inline constexpr const char* sweep_table = "sweep";

/// Throws ConfigError with path and line.
toml::table parse_toml(const std::string& path, const std::string& text);

/// "PATH:LINE".
std::string place_of(const std::string& path, const toml::source_region& source);

/// A TOML value as the text of a flag. Throws ConfigError, beginning with `place`, for a table, a
/// date, or a list inside a list.
std::string flag_text(const toml::node& node, const std::string& place);

/// A setting and its value in a table.
struct TomlSetting {
  const Setting& setting;
  std::string place;  ///< of its key: "run.toml:3"
  const toml::node& value;
};

/// Calls `visit` for each setting of a table, in the order of names. The tables [optimizer] and
/// [schedule] in it have settings, too; their `name` is the setting of that name.
///
/// Errors   throws ConfigError with path and line: unknown key, a setting given twice.
void for_each_setting(const toml::table& table, const std::string& path,
                      const std::function<void(const TomlSetting&)>& visit);

}  // namespace lockstep::apps
