// Stops before the end of training: after a signal, and in time before a time limit.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "apps/settings.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/step.hpp"
#include "lockstep/train/timing.hpp"

namespace lockstep::apps {

/// Decides, before each step, whether a rank wants to stop: after a signal, and on rank 0 before
/// the time is over.
class StopClock {
 public:
  /// `weights`: those of the network, which take time to save.
  StopClock(const StopRequests& requests, const RunConfig& config, double weights, bool is_rank_0);

  static constexpr std::uint64_t out_of_time = 1000;

  /// A signal's number, out_of_time, or 0.
  std::uint64_t operator()();

 private:
  const StopRequests& requests_;
  double deadline_ = std::numeric_limits<double>::infinity();  // seconds since the process began
  double reserve_ = 0;
  double longest_ = 0;
  train::Lap since_last_;
};

/// Throws the error of a stop that all ranks agreed on, with the command that continues the run in
/// the folder `run`. Collective.
[[noreturn]] void end_stopped(const train::RunReport& report, const std::string& run,
                              const RunConfig& config, const comm::Communicator& comm);

}  // namespace lockstep::apps
