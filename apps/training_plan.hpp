// The plan that a configuration means: one place for `train`, which follows it, and `plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/plan.hpp"
#include "lib/train/config.hpp"

namespace lockstep::apps {

/// A plan, and why it is of its policy.
struct TrainingPlan {
  data::Plan plan;
  std::string reason;
  std::string warning;  ///< to be shown once; empty: none
};

/// The plan of training on `records` records in files of `file_records` (empty: not from files).
///
/// Errors   throws ConfigError: what Plan and choose_policy() refuse, and a plan without a step.
/// Ranks    local; the same on every rank.
TrainingPlan training_plan(const train::RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks);

}  // namespace lockstep::apps
