// The data plan of a configuration: used by `train` and `bench data`, printed by `plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/settings.hpp"
#include "lockstep/data/plan.hpp"

namespace lockstep::apps {
/// A plan, and the reason for its sharding policy.
struct TrainingPlan {
  data::Plan plan;
  std::string reason;
  std::string warning;  ///< printed once; empty: none
};

/// The plan of training on `records` records in files of `file_records` (empty: not from files).
///
/// Errors   throws ConfigError: errors of Plan and choose_policy(), and a plan without a step.
/// Ranks    local; the same on every rank.
TrainingPlan training_plan(const RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks);

}  // namespace lockstep::apps
