// A whole plan as lists, for tests of small ones.
#pragma once

#include <vector>

#include "lockstep/data/plan.hpp"

namespace lockstep::support {

using Ids = std::vector<std::uint64_t>;
using Dealt = std::vector<std::vector<Ids>>;

/// Step -> rank -> records of an epoch.
inline Dealt dealt(const data::PlanOptions& options, std::uint64_t epoch = 0) {
  const data::Plan plan(options);
  Dealt all(plan.steps(), std::vector<Ids>(options.ranks));
  for (std::uint64_t step = 0; step < plan.steps(); ++step) {
    for (std::uint64_t rank = 0; rank < options.ranks; ++rank) {
      plan.records(epoch, step, rank, all[step][rank]);
    }
  }
  return all;
}

}  // namespace lockstep::support
