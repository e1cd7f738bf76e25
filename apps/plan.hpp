// The data plan of a configuration: `train` and `bench data` follow it, `plan` shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/settings.hpp"
#include "data/plan.hpp"

namespace lockstep::apps {
/// A plan, and why its sharding policy was chosen.
struct TrainingPlan {
  data::Plan plan;
  std::string reason;
  std::string warning;  ///< printed once; empty: none
};

/// The plan of training on `records` records in files of `file_records` (empty: not from files).
///
/// Errors   throws ConfigError: what Plan and choose_policy() refuse, and a plan without a step.
/// Ranks    local; the same on every rank.
TrainingPlan training_plan(const RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks);

}  // namespace lockstep::apps
