// Command lines: parses the words of a subcommand and runs it on all ranks of the job.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
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
  std::string otherwise = "";  ///< its value if it is not given; empty: none
};

/// The command line of a subcommand.
struct Syntax {
  std::string command;       ///< "lockstep train"
  std::string does;          ///< one sentence
  std::string usage;         ///< "[CONFIG.toml] [flags]"
  std::string note;          ///< text of --help behind the usage
  std::string example;       ///< a command line; --help ends with it
  std::string operand;       ///< what a word without dashes is: "run file"
  std::size_t operands = 1;  ///< maximum number of these words
  bool run_file = false;     ///< the operand is a run file
  bool has_sweep = false;    ///< the run file has a table [sweep], which the command reads itself
  bool any_build = false;    ///< ranks may differ in build
  bool over_mpi = false;     ///< under a launcher ranks communicate by MPI alone
  std::vector<std::string> settings;  ///< names in settings() that it takes
  std::vector<Flag> flags;
  std::map<std::string, std::string> other_help;     ///< of settings with another meaning here
  std::map<std::string, std::string> other_default;  ///< what --help says of them instead

  /// Adds the settings of Scope::table to those that the command takes.
  void take_table_settings();

  /// True if the command takes the setting.
  bool takes(const std::string& setting) const;

  /// The text of --help for a setting that the command takes.
  const std::string& help_of(const Setting& setting) const;
};

/// The flag for settings by key, of every command that takes settings.
inline const Flag set_flag = {"set", "KEY=VALUE", "another way to give a setting"};

/// The last value of --run-dir in a command, as "--run-dir DIR" or "--run-dir=DIR"; empty if it has
/// none. In the first form, a word that begins with "--" is no value.
std::string run_dir_in(const std::vector<std::string>& command);

/// Writes the exit code of a job into the folder of its run, for `lockstep launch`: mpirun with its
/// recovery does not return the code, and does not end after an error of ranks on other hosts.
/// Writes nothing if `run` is empty or "auto", or if another job is using it; `is_own`: this job
/// has locked it. Local; prints an error if a success cannot be written.
void record_exit_code(const std::string& run, int code, bool is_own = false);

/// The syntax of a command whose operand is a run file; the caller adds settings and flags.
Syntax run_file_syntax(std::string command, std::string does);

/// The parsed command line of one rank. Values are checked when they are applied.
struct Arguments {
  std::vector<std::string> operands;
  /// Settings in the order given: name without dashes, value; includes --set KEY=VALUE.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::pair<std::string, std::string>> flags;     ///< flags in the order given
  std::vector<std::pair<std::string, std::string>> defaults;  ///< of flags
  bool help = false;
  bool has_sweep = false;     ///< of the syntax
  std::string run_file_text;  ///< of the run file, as rank 0 read it; see read_run_file()

  /// The first operand; empty if there is none.
  std::string operand() const { return operands.empty() ? "" : operands.front(); }

  /// The last value given for a setting or a flag; else a flag's default; else empty.
  std::string value(const std::string& name) const;

  /// value() of a flag by flag_count(); nullopt if it was not given and has no default.
  std::optional<std::uint64_t> number(
      const std::string& flag, std::uint64_t min,
      std::uint64_t max = std::numeric_limits<std::int64_t>::max()) const;

  /// True if the setting or flag was given.
  bool given(const std::string& name) const;
};

/// Throws ConfigError for --seed where it has no effect: in commands whose test split alone
/// depends on it.
void require_split_for_seed(const Arguments& arguments, const RunConfig& config);

/// The whole number in the text of a flag's value.
/// Throws ConfigError, beginning with the flag, unless it lies in [min, max].
std::uint64_t flag_count(const std::string& flag, const std::string& text, std::uint64_t min,
                         std::uint64_t max = std::numeric_limits<std::int64_t>::max());

/// "KEY=VALUE" -> {"KEY", "VALUE"}. Throws ConfigError, beginning with `place`, if there is no '=',
/// or no key.
std::pair<std::string, std::string> key_and_value(const std::string& place,
                                                  const std::string& text);

/// The run file and the flags applied over `base`. Throws ConfigError.
RunConfig config_over(const RunConfig& base, const Arguments& arguments);

/// Parses the words after the subcommand's name.
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), missing value (also if
///          a word that begins with -- follows), more operands than the command takes.
Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words);

/// True on rank 0 of a launcher's processes, and without a launcher. Local.
bool is_rank_0();

/// Runs a command of one process, without MPI: under a launcher on rank 0 alone. `words` are those
/// after the subcommand's name. Returns what `command` returns; errors are thrown.
int run_on_rank_0(const Syntax& syntax, const std::vector<std::string>& words,
                  const std::function<int(const Arguments&)>& command);

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
/// the rank and the key) all end with code 2. Other problems of a launch are warnings.
int run_on_ranks(const Syntax& syntax, const std::vector<std::string>& words,
                 const RankCommand& command);

}  // namespace lockstep::apps
