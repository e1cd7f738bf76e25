// The errors a user can meet, and the exit code that each one ends the command with.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// What the command returns to the shell. Part of the command's contract: never renumbered.
enum class ExitCode : int {
  success = 0,
  internal = 1,    ///< an error that no user caused
  usage = 2,       ///< configuration, or a setting that cannot be honoured
  data = 65,       ///< bad or missing data or checkpoint
  invariant = 70,  ///< replicas differ
  output = 74,     ///< output could not be written
  stopped = 75,    ///< stopped on request, checkpoint saved
  diverged = 76,   ///< loss or gradient not finite
  timeout = 86,    ///< communication failed or timed out
};

/// Something went wrong that a person can mend: what, where, and how to mend it.
///
/// Libraries throw it; only an entry point (apps/, lib/launch/) catches it and ends the process.
class Error : public std::runtime_error {
 public:
  /// `problem` names the thing and the place; `remedy` is one imperative sentence, or empty.
  Error(ExitCode code, const std::string& problem, const std::string& remedy = "")
      : std::runtime_error(remedy.empty() ? problem : problem + "\n  remedy: " + remedy),
        code_(code) {}

  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// The user's configuration, or a setting that this build or machine cannot honour. Exit code 2.
struct ConfigError : Error {
  explicit ConfigError(const std::string& problem, const std::string& remedy = "")
      : Error(ExitCode::usage, problem, remedy) {}
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

}  // namespace lockstep
