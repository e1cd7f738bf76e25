// The command line of `lockstep train`, before anything is known of the other ranks.
#pragma once

#include <cxxopts.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lib/train/config.hpp"

namespace lockstep::apps {

/// What one rank was started with. Values are checked when they are applied, not here.
struct TrainArguments {
  std::string run_file;  ///< empty: none
  /// Settings in the order given: name without dashes, value; --set KEY=VALUE is one of them.
  std::vector<std::pair<std::string, std::string>> settings;
  bool help = false;
  bool print_config = false;
  bool dry_run = false;

  /// The last value given for `name`, or `otherwise`.
  std::string value(const std::string& name, const std::string& otherwise) const;
};

/// Takes the words after `lockstep train`.
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), missing value, more
///          than one run file.
TrainArguments parse_train_arguments(const std::vector<std::string>& words);

/// Adds the flag of a setting, with its default in the help.
void add_setting(cxxopts::Options& options, const train::Setting& setting);

/// Flags that cxxopts did not know come back untouched: `unmatched`. Throws ConfigError if there is
/// one, with the nearest of `names`.
void refuse_unknown(const std::vector<std::string>& unmatched,
                    const std::vector<std::string>& names, const std::string& command);

/// "seed=5" of `--set` as key and value. Throws ConfigError without a '='.
std::pair<std::string, std::string> key_value(const std::string& text);

/// The text of a run file; nothing for an empty path. Throws ConfigError where there is none.
std::string read_run_file(const std::string& path);

/// Text of `lockstep train --help`.
std::string train_help();

}  // namespace lockstep::apps
