// From a configuration to the parts of a training run, on every rank alike.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/settings.hpp"
#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "data/source.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/device.hpp"
#include "lib/train/replica.hpp"
#include "lib/train/step.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {

/// Everything that one rank trains with.
struct TrainJob {
  data::DataSet data;
  std::optional<data::Plan> plan;
  std::string policy_reason;  ///< why the plan has its policy
  int threads = 1;            ///< of this rank's products
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<train::Replica> replica;
  std::unique_ptr<data::Transform> transform;  ///< of training batches; null: none
  std::unique_ptr<data::BatchReader> train;
  std::unique_ptr<data::BatchReader> test;
};

/// Opens the data, makes the plan and the replica.
///
/// Errors   throws comm::AgreedError on every rank: settings that cannot be honoured here (2), bad
///          data (65), data that differs between ranks (2), too little memory (2).
/// Ranks    collective.
TrainJob make_job(const RunConfig& config, comm::Communicator& comm);

/// What the settings ask of a replica. `threads`: see threads_of(). Local.
train::ReplicaOptions replica_options(const RunConfig& config, int threads);

/// Threads of a rank's products: as set, else the cores that are this rank's own. Rank 0 warns of
/// more threads than cores. Local. Throws ConfigError for an absurd number.
int threads_of(const RunConfig& config, const comm::Communicator& comm);

/// Warns, on rank 0, if devices exchange through memory of the host. Local.
void warn_of_staging(const train::Replica& replica);

}  // namespace lockstep::apps
