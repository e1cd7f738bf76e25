// Signals that end the process: temporary files are removed first, or the signal is a request to
// stop.
#pragma once

#include <filesystem>

namespace lockstep {

/// Adds a file to the list of files to remove on a signal, or removes it from the list.
/// Thread-safe. The list holds 4096 files; further files are not added.
void add_temporary(const std::filesystem::path& path);
void forget_temporary(const std::filesystem::path& path) noexcept;

/// Removes the listed files now, before an end of the process that runs no destructors. Any thread,
/// and a signal handler.
void remove_temporaries() noexcept;

/// Makes SIGHUP, SIGINT, SIGTERM and SIGPIPE remove the listed files before they end the process.
/// Ignored signals stay ignored.
void remove_temporaries_on_signals() noexcept;

/// While an object exists, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGPIPE do not end the
/// process but are requests to stop, unless they are ignored.
///
/// Ctrl-C after the first signal ends the process at once, and so does any signal but SIGPIPE a
/// second or more after it; earlier ones are repetitions (`timeout mpirun` sends each signal
/// twice). After a request SIGPIPE stays ignored. Thread-safe; several objects may exist, as with
/// ranks that are threads.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// The number of the signal that arrived first; 0 if none did.
  int signal() const noexcept;
};

/// True if a signal was a request to stop; stays true after the last StopRequests ends, until a new
/// first one is made.
bool is_stop_requested() noexcept;

}  // namespace lockstep
