// What a rank of a run records of itself, and the watchdog that reads it.
#pragma once

#include <filesystem>
#include <optional>

#include "apps/settings.hpp"
#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/launch/watchdog.hpp"

namespace lockstep::apps {

/// Records what this rank does, and ends the job, or with `survive` the rank, when a rank hangs.
class Recording {
 public:
  /// Collective.
  Recording(const RunConfig& config, comm::Communicator& comm);

  FlightRecorder& recorder() noexcept { return recorder_; }

  /// Continues in the run's folder, in a file for each rank of `comm`; removes those of others.
  void write_to(const std::filesystem::path& run, const comm::Communicator& comm);

 private:
  FlightRecorder recorder_;
  bool is_written_ = false;
  std::optional<launching::Watchdog> watchdog_;
};

/// Records the collectives of a communicator while it exists.
class RecordedIn {
 public:
  RecordedIn(FlightRecorder& recorder, comm::Communicator& comm) : comm_(comm) {
    comm_.record_in(&recorder);
  }
  ~RecordedIn() { comm_.record_in(nullptr); }
  RecordedIn(const RecordedIn&) = delete;
  RecordedIn& operator=(const RecordedIn&) = delete;

 private:
  comm::Communicator& comm_;
};

/// The bytes of the training set that each rank read. Collective.
std::vector<std::uint64_t> bytes_read(const data::Source& train, comm::Communicator& comm);

}  // namespace lockstep::apps
