// What `lockstep train` prints of a run before its first step.
#pragma once

#include <cstdint>
#include <string>

#include "apps/console.hpp"
#include "apps/settings.hpp"
#include "apps/train_job.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::apps {

/// Ranks, data, network, plan and optimizer of a job, in rows. Collective.
Banner training_banner(const RunConfig& config, const TrainData& data, const TrainJob& job,
                       comm::Communicator& comm);

/// The rate over all steps as a picture of 60 columns and 8 rows, in blocks of an eighth; empty for
/// a constant rate.
std::string schedule_picture(const optim::OptimizerOptions& options, std::uint64_t steps);

}  // namespace lockstep::apps
