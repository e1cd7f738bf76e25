// What a plan comes to: how much each rank reads, how often each record is read, and the proof.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/plan.hpp"

namespace lockstep::data {

/// How often the records of the data set are read in one epoch.
///
/// Disjoint means that none is read twice (most <= 1), complete that none is left out (least >= 1).
struct Multiplicity {
  std::uint64_t least = 0;    ///< 0 where records are omitted
  std::uint64_t most = 0;     ///< 1 under DATA and FILE, the number of ranks under OFF
  std::uint64_t omitted = 0;  ///< records that nobody reads

  bool disjoint() const noexcept { return most <= 1; }
  bool complete() const noexcept { return omitted == 0; }
  bool operator==(const Multiplicity&) const = default;
};

/// The sums of one epoch, in closed form: over ranks, never over steps.
struct PlanFacts {
  std::uint64_t steps = 0;
  std::uint64_t examples = 0;                   ///< reads, over all ranks
  std::vector<std::uint64_t> records_per_rank;  ///< reads of each rank
  std::uint64_t empty_batches = 0;              ///< pairs of step and rank without an example
  /// Of the examples that would fit if every rank held the largest piece in every step, the share
  /// that is missing: 1 - examples / (steps * ranks * largest piece).
  double idle_share = 0;
  Multiplicity multiplicity;
};

/// Time and memory in proportion to the ranks.
PlanFacts facts_of(const Plan& plan);

/// A check of multiplicity and sums against the ids themselves.
struct PlanProof {
  bool enumerated = false;  ///< by listing every id of the epoch; else by the closed form alone
  std::uint64_t reads = 0;  ///< ids listed, or counted by the closed form
  std::string text;         ///< one sentence with the numbers
};

/// The most reads, and pairs of step and rank, that prove() lists.
inline constexpr std::uint64_t most_enumerated = 1 << 21;

/// Lists the ids of `epoch` where the plan is small enough, and counts how often each occurs.
///
/// Errors   throws std::logic_error where listing and closed form differ: a fault of ours.
PlanProof prove(const Plan& plan, const PlanFacts& facts, std::uint64_t epoch = 0);

}  // namespace lockstep::data
