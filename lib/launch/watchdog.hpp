// Ends a job in which a rank no longer makes progress, and prints the cause.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "lockstep/base/flight_recorder.hpp"

namespace lockstep::launching {

/// Watches this rank's flight recorder in a thread of its own.
///
/// A rank that records nothing for the time limit of its phase, because it hangs or because it
/// waits for one that does, reads the recorders of all ranks, prints the cause, and ends the job
/// with code 86 (ExitCode::timeout); or, with `survives`, kills the ranks of its host that the
/// others wait for, so that they are lost and the others go on. A rank whose launcher has ended,
/// which would otherwise run on, ends too. Where the others wait for ranks of another host, they
/// give that host's watchdogs time. Of several ranks the lowest that runs acts first.
class Watchdog {
 public:
  /// `recorder` must outlive this. `seconds`: the limit of a step and of reading a batch; start,
  /// evaluation and checkpoints have five times that. `launched`: the parent process is a launcher.
  ///
  /// Errors   throws what start_thread() throws.
  Watchdog(const FlightRecorder& recorder, int rank, double seconds, bool launched, bool survives);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Where the recorders of all ranks are. Until it is called, a cause names this rank alone.
  void read_recorders_in(const std::filesystem::path& folder);

 private:
  void run(const std::stop_token& stop);
  bool is_over() const;
  void report();
  std::vector<std::int32_t> odd_processes(std::span<const Flight> flights,
                                          std::span<const std::uint32_t> odd) const;

  const FlightRecorder& recorder_;
  int rank_;
  double seconds_;
  int parent_;  ///< process id of the launcher; 0: none
  bool survives_;
  bool waits_for_hosts_ = false;
  std::mutex mutex_;  ///< of folder_
  std::filesystem::path folder_;
  std::jthread thread_;  ///< last member: joined before the others are destroyed
};

/// The time limit of a start, where that of a step is `seconds`.
double start_limit(double seconds) noexcept;

/// Ends this process with code 86 if it exists for longer than `seconds`: for MPI_Init and the
/// first collectives of MPI, which wait for ever for a rank that has ended or runs another program.
/// Ends it too when the launcher ends and, under mpirun's recovery, 2 seconds after the end of
/// another rank of this host.
class StartLimit {
 public:
  /// `rank`: the rank of this process. Rank 0 waits for `seconds`, and each next rank a second
  /// longer, up to 5: the first to end prints the error, and the launcher then ends the others.
  ///
  /// `launched`: see Watchdog. `before_end`, if not empty, is called in a thread of its own a
  /// second before the process is ended for the time or for a rank; it must not throw.
  ///
  /// Errors   throws what start_thread() throws.
  StartLimit(int rank, double seconds, bool launched, const std::function<void()>& before_end);

 private:
  std::jthread thread_;
};

/// The file in the recorders' folder to which the cause is written when a watchdog ends a job.
inline constexpr const char* diagnosis_name = "diagnosis.txt";

/// The file in the recorders' folder with the exit code of a job whose launcher does not report it.
inline constexpr const char* exit_code_name = "exit_code";

/// Reserves room for the code in the folder `flight`, so that it can be recorded on a full disk,
/// and removes that of an earlier job. Local; throws OutputError.
void reserve_exit_code(const std::filesystem::path& flight);

/// Records the code of the job unless one is recorded: the first error is the cause of others.
/// Local; throws OutputError.
void record_exit_code(const std::filesystem::path& flight, int code);

/// The code that the ranks have recorded; nullopt if they have not. Local.
std::optional<int> recorded_exit_code(const std::filesystem::path& flight);

/// The recorders of all ranks in `folder`, in the order of ranks. Files that cannot be read are
/// left out; their names are appended to `unreadable` if that is not null. Local.
std::vector<Flight> read_flights(const std::filesystem::path& folder,
                                 std::vector<std::string>* unreadable = nullptr);

/// Compares what recorders hold as of now, with the states of processes of this host. Local.
Diagnosis diagnose_now(std::span<const Flight> flights);

}  // namespace lockstep::launching
