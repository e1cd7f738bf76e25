// Errors of the library, with the command's exit code for each, and warnings.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

/// The exit codes of the command. Part of its interface: never renumbered.
enum class ExitCode : int {
  success = 0,
  internal = 1,    ///< an error not caused by the user
  usage = 2,       ///< configuration, or a setting that this build or machine does not permit
  data = 65,       ///< bad or missing data or checkpoint
  invariant = 70,  ///< replicas differ, or another check of results failed
  output = 74,     ///< output could not be written
  stopped = 75,    ///< stopped on request, with a checkpoint: run it again with --resume
  diverged = 76,   ///< loss or gradient not finite
  timeout = 86,    ///< communication failed or timed out
};

/// An error that the user can act on: the problem, its place, and the remedy.
///
/// Libraries throw it; only an entry point (apps/, lib/launch/) catches it and ends the process.
/// Texts write options of the library in backquotes, in snake case, with the value if there is one:
/// "use `rebatch=ceil`, or `batch_size` of at least 4". The command prints them as its flags.
class Error : public std::runtime_error {
 public:
  /// `code` is not ExitCode::success: the process would end with 0. `problem` includes the object
  /// and the place; `remedy` is one imperative sentence, or empty.
  Error(ExitCode code, const std::string& problem, const std::string& remedy = "");

  ExitCode code() const noexcept { return code_; }

  /// The two parts of what(), which is "PROBLEM\n  remedy: REMEDY".
  std::string problem() const;
  std::string remedy() const;

 private:
  ExitCode code_;
};

/// The system's text for an error number, errno.
std::string system_reason(int error);

/// An option of the library and its value, as text.
struct Option {
  std::string name;   ///< in snake case: "batch_size"
  std::string value;  ///< empty: none
};

/// An invalid configuration, or a setting that this build or machine does not support. Exit code 2.
struct ConfigError : Error {
  explicit ConfigError(const std::string& problem, const std::string& remedy = "")
      : Error(ExitCode::usage, problem, remedy) {}

  /// An error about one option: what() is "NAME: PROBLEM".
  ConfigError(Option option, const std::string& problem, const std::string& remedy = "")
      : Error(ExitCode::usage, option.name + ": " + problem, remedy),
        option_(std::make_shared<const Option>(std::move(option))) {}

  /// The invalid option; null if the error is about several, or about something else.
  const Option* option() const noexcept { return option_.get(); }

 private:
  std::shared_ptr<const Option> option_;  // shared: copying an exception must not throw
};

/// Missing or malformed data; `problem` begins with file and offset or line. Exit code 65.
struct DataError : Error {
  explicit DataError(const std::string& problem, const std::string& remedy = "")
      : Error(ExitCode::data, problem, remedy) {}
};

/// Output could not be written. Exit code 74.
struct OutputError : Error {
  explicit OutputError(const std::string& problem, const std::string& remedy = "")
      : Error(ExitCode::output, problem, remedy) {}
};

// Warnings. Libraries never print: the program's handler does.

/// Called with the text of a warning, in the thread that found it, one call at a time.
using WarningHandler = std::function<void(const std::string& text)>;

/// Sets the handler of this process (null: none) and returns the previous one. Texts reported
/// before are reported again. Without a handler, run_replicas sets one that prints to stderr.
WarningHandler set_warning_handler(WarningHandler handler);

/// Calls the handler, once for equal texts. Called by one rank of the job. Local; any thread.
void report_warning(const std::string& text);

}  // namespace lockstep
