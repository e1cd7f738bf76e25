// Run files: settings as TOML. A key is the name of a setting.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/settings.hpp"

namespace lockstep::apps {
/// The text of a run file; empty for an empty path. Throws ConfigError if it does not exist.
std::string read_run_file(const std::string& path);

/// Applies a run file's text; `path` is for messages. A [[layer]] list sets model to "layers".
/// `has_sweep`: a table [sweep] is left to the caller; else it is an error.
///
/// Errors   throws ConfigError with path and line: not TOML, unknown key, bad value.
void apply_run_file(RunConfig& config, const std::string& path, const std::string& text,
                    bool has_sweep = false);

/// The settings in config.toml of a run's folder. Throws ConfigError as the functions above.
RunConfig read_config(const std::filesystem::path& run);

/// The whole configuration as TOML, which is a valid run file.
std::string to_toml(const RunConfig& config);

/// Names and TOML literals of all settings, for comparison. The list of layers is last, "layer".
std::vector<std::pair<std::string, std::string>> key_values(const RunConfig& config);

}  // namespace lockstep::apps
