// Ends a job in which a rank no longer makes progress, and says why.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "lockstep/base/flight_recorder.hpp"

namespace lockstep::launch {

/// Watches this rank's flight recorder in a thread of its own.
///
/// A rank that records nothing for the time limit of its phase, because it hangs or because it
/// waits for one that does, reads the recorders of all ranks, prints the cause, and ends the job
/// with code 86 (ExitCode::timeout). So does a rank whose launcher has ended, which would otherwise
/// run on. Of several ranks the lowest that runs prints first; the job may end before others do.
class Watchdog {
 public:
  /// `recorder` must outlive this. `seconds`: the limit of a step and of reading a batch; start,
  /// evaluation and checkpoints have five times that. `launched`: the parent process is a launcher.
  Watchdog(const FlightRecorder& recorder, int rank, double seconds, bool launched);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Where the recorders of all ranks are. Until it is called, a cause names this rank alone.
  void read_recorders_in(const std::filesystem::path& folder);

 private:
  void run();
  bool is_over() const;
  [[noreturn]] void report();

  const FlightRecorder& recorder_;
  int rank_;
  double seconds_;
  int parent_;  ///< process id of the launcher; 0: none
  std::mutex mutex_;
  std::condition_variable changed_;
  std::filesystem::path folder_;
  bool stop_ = false;
  std::thread thread_;
};

/// The file in the recorders' folder to which the cause is written when a watchdog ends a job.
inline constexpr const char* diagnosis_name = "diagnosis.txt";

/// The recorders of all ranks in `folder`, in the order of ranks. Files that cannot be read are
/// left out. Local.
std::vector<Flight> read_flights(const std::filesystem::path& folder);

/// Compares the recorders in `folder`, as of now. Local.
Diagnosis diagnose_folder(const std::filesystem::path& folder);

}  // namespace lockstep::launch
