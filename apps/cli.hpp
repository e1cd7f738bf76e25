// Command lines: parsing the words of a subcommand, and running it on all ranks of the job.
#pragma once

#include <cxxopts.hpp>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/settings.hpp"
#include "collectives/communicator.hpp"

namespace lockstep::apps {
/// A flag that is no setting: it is in no run file.
struct Flag {
  std::string name;
  std::string argument;  ///< "FILE"; empty: it takes none
  std::string help;
};

/// The command line of a subcommand.
struct Syntax {
  std::string command;                ///< "lockstep train"
  std::string does;                   ///< one sentence
  std::string usage;                  ///< "[CONFIG.toml] [flags]"
  std::string operand;                ///< the one word without dashes: "run file"
  bool run_file = false;              ///< the operand is a run file
  std::vector<std::string> settings;  ///< those of settings() that it takes; empty: all
  std::vector<Flag> flags;
  std::map<std::string, std::string> other_help;  ///< of settings that mean something else here

  /// Whether the setting is one of its own.
  bool takes(const std::string& setting) const;
};

/// The parsed command line of one rank. Values are checked when they are applied.
struct Arguments {
  std::string operand;  ///< empty: none
  /// Settings in the order given: name without dashes, value; --set KEY=VALUE is one of them.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::pair<std::string, std::string>> flags;  ///< those given, likewise
  bool help = false;

  /// The last value given for a setting, or for a flag; or `otherwise`.
  std::string value(const std::string& name, const std::string& otherwise) const;

  /// Whether the setting or flag was given.
  bool given(const std::string& name) const;
};

/// Takes the words behind the subcommand's name.
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), missing value, more
///          than one operand.
Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words);

/// Text of --help.
std::string help_text(const Syntax& syntax);

/// Parses the words behind `command` ("lockstep train").
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), missing value, more
///          words than the command takes.
cxxopts::ParseResult parse_words(cxxopts::Options& options, const std::string& command,
                                 const std::vector<std::string>& words);

/// One rank's part of a subcommand. The configuration is the same on all ranks.
using RankCommand = std::function<void(const Arguments&, const RunConfig&, comm::Communicator&)>;

/// Runs `command` on all ranks of this job: under a launcher over MPI, else as threads of this
/// process. `words` follow the subcommand's name.
///
/// The configuration is the defaults, then the run file as rank 0 reads it (where the operand is
/// one), then each rank's flags.
/// Returns the exit code. Errors are printed here where other ranks might be waiting, which then
/// end too; they come out as exceptions where this process is alone. A bad flag or run file, a
/// launch that contradicts the settings, and ranks that were started with different flags, files
/// or builds (names the odd rank and the key) all end with code 2.
int run_on_ranks(const Syntax& syntax, const std::vector<std::string>& words,
                 const RankCommand& command);

}  // namespace lockstep::apps
