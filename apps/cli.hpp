// Command lines: parses the words of a subcommand and runs it on all ranks of the job.
#pragma once

#include <cxxopts.hpp>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/settings.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep::apps {
/// A flag that is not a setting, so not a key of run files.
struct Flag {
  std::string name;
  std::string argument;  ///< "FILE"; empty: no argument
  std::string help;
};

/// The command line of a subcommand.
struct Syntax {
  std::string command;                ///< "lockstep train"
  std::string does;                   ///< one sentence
  std::string usage;                  ///< "[CONFIG.toml] [flags]"
  std::string operand;                ///< the one word without dashes: "run file"
  bool run_file = false;              ///< the operand is a run file
  std::vector<std::string> settings;  ///< names in settings() that it takes; empty: all
  std::vector<Flag> flags;
  std::map<std::string, std::string> other_help;  ///< of settings with another meaning here

  /// True if the command takes the setting.
  bool takes(const std::string& setting) const;
};

/// The parsed command line of one rank. Values are checked when they are applied.
struct Arguments {
  std::string operand;  ///< empty: none
  /// Settings in the order given: name without dashes, value; includes --set KEY=VALUE.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::pair<std::string, std::string>> flags;  ///< flags in the order given
  bool help = false;

  /// The last value given for a setting or a flag; `otherwise` if there is none.
  std::string value(const std::string& name, const std::string& otherwise) const;

  /// True if the setting or flag was given.
  bool given(const std::string& name) const;
};

/// Parses the words after the subcommand's name.
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), missing value, more
///          than one operand.
Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words);

/// The text of --help.
std::string help_text(const Syntax& syntax);

/// Parses the words after `command` ("lockstep train").
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), missing value, more
///          words than the command takes.
cxxopts::ParseResult parse_words(cxxopts::Options& options, const std::string& command,
                                 const std::vector<std::string>& words);

/// One rank's part of a subcommand. The configuration is the same on all ranks.
using RankCommand = std::function<void(const Arguments&, const RunConfig&, comm::Communicator&)>;

/// Runs `command` on all ranks of this job: under a launcher over MPI, else as threads of this
/// process. `words` are those after the subcommand's name.
///
/// The configuration is the defaults, then the run file as read by rank 0 (if the operand is one),
/// then each rank's flags.
/// Returns the exit code. If other ranks may be waiting, errors are printed here and all ranks end;
/// with a single process they are thrown. A bad flag or run file, a launch that contradicts the
/// settings, and ranks that were started with different flags, files or builds (the message names
/// the rank and the key) all end with code 2.
int run_on_ranks(const Syntax& syntax, const std::vector<std::string>& words,
                 const RankCommand& command);

}  // namespace lockstep::apps
