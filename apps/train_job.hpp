// What one rank trains with: the data, the plan and the replica of a configuration, the record of
// what it does, and the clock that stops it before a time limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/fault_injection.hpp"
#include "apps/settings.hpp"
#include "apps/start_from_saved.hpp"
#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/data/transform.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/step.hpp"
#include "lockstep/train/tensor_parallel.hpp"
#include "lockstep/train/trainer.hpp"

namespace lockstep::apps {

/// The data set, and hashes of its content.
struct TrainData {
  data::DataSet sets;
  std::string train_identity;
  std::string test_identity;
  std::uint64_t outputs = 0;                ///< of the network
  std::vector<std::uint64_t> label_counts;  ///< of training records; empty: unknown
};

/// The objects that one rank trains with in a group of ranks.
struct TrainJob {
  std::optional<data::Plan> plan;
  std::string policy_reason;  ///< the reason for the plan's policy
  int threads = 1;            ///< of this rank's products
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<train::Replica> replica;
  std::unique_ptr<data::Transform> transform;  ///< of training batches; null: none
  std::unique_ptr<data::BatchReader> train;
  std::unique_ptr<data::BatchReader> test;        ///< null: there is no test set
  std::unique_ptr<data::BatchReader> validation;  ///< null: none
  train::TrainerOptions training;
  comm::KeyValues decisive;  ///< what determines the results
};

/// Opens the data. `may_lack_test`: without a test set TrainData::sets.test is null, which
/// otherwise is an error.
///
/// Errors   throws comm::AgreedError on every rank: settings that are not supported here (2), bad
///          data (65), data that differs between ranks (2).
/// Ranks    collective.
TrainData open_data(const RunConfig& config, comm::Communicator& comm, bool may_lack_test = false);

/// Creates the plan and the replica of this rank of `comm`; `data` must outlive the job.
///
/// Errors   throws comm::AgreedError (2) on every rank: settings that are not supported here, too
///          little memory.
/// Ranks    collective.
TrainJob make_job(const RunConfig& config, const TrainData& data, FaultInjection& faults,
                  comm::Communicator& comm);

/// "canonical, by activations; strict products in float32".
std::string reduction_text(const TrainJob& job, const RunConfig& config);

/// "2 replicas of 2 ranks, which share out the weights of dense layers".
std::string mesh_text(const train::Groups& groups);

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

/// Decides, before each step and each batch of an evaluation, whether this rank requests a stop:
/// after a signal, and on rank 0 before the time is over.
class StopClock {
 public:
  /// `weights`: those of the network, which take time to save. Rank 0 warns of a
  /// SLURM_JOB_END_TIME that it ignores: no number, or a time before this process began.
  StopClock(const StopRequests& requests, const RunConfig& config, double weights, bool is_rank_0);

  static constexpr std::uint64_t out_of_time = 1000;  ///< by max_time
  static constexpr std::uint64_t job_ends = 1001;     ///< by SLURM_JOB_END_TIME

  /// A signal's number, out_of_time, job_ends, or 0.
  std::uint64_t operator()();

 private:
  const StopRequests& requests_;
  double deadline_ = std::numeric_limits<double>::infinity();  // seconds since the process began
  std::uint64_t reason_ = out_of_time;                         // of the deadline
  double reserve_ = 0;
  double longest_ = 0;
  train::Lap since_last_;
};

/// Throws the error of a stop that all ranks agreed on, with the command that continues the run in
/// the folder `run`. Collective.
[[noreturn]] void end_stopped(const train::RunReport& report, const std::string& run,
                              const RunConfig& config, const comm::Communicator& comm);

}  // namespace lockstep::apps
