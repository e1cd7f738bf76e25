// What one rank trains with: the data, the plan and the replica that a configuration stands for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/fault_injection.hpp"
#include "apps/resume.hpp"
#include "apps/settings.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/train/groups.hpp"
#include "lockstep/train/replica.hpp"
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
  std::unique_ptr<data::BatchReader> test;
  std::unique_ptr<data::BatchReader> validation;  ///< null: none
  train::TrainerOptions training;
  Decisive decisive;  ///< what determines the results
};

/// Opens the data.
///
/// Errors   throws comm::AgreedError on every rank: settings that are not supported here (2), bad
///          data (65), data that differs between ranks (2).
/// Ranks    collective.
TrainData open_data(const RunConfig& config, comm::Communicator& comm);

/// Creates the plan and the replica of this rank of `comm`; `data` must outlive the job.
///
/// Errors   throws comm::AgreedError (2) on every rank: settings that are not supported here, too
///          little memory.
/// Ranks    collective.
TrainJob make_job(const RunConfig& config, const TrainData& data, FaultInjection& faults,
                  comm::Communicator& comm);

}  // namespace lockstep::apps
