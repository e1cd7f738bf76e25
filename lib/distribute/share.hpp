// The part of a data set that this rank reads, which all ranks agree on, by the rules of
// data/plan.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/distributed_dataset.hpp"

namespace lockstep::pieces {

/// Why a distributed data set has no plan to train by.
struct WhyNoPlan {
  std::string problem;
  std::string remedy;
};

/// The part of a data set that a rank reads.
struct Share {
  data::PolicyChoice choice = {};
  data::Rebatch rebatch = data::Rebatch::ceil;
  std::uint64_t leaf = 0;
  std::uint64_t max_leaf = data::float32_leaf;
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  std::uint64_t batch_size = 0;
  bool drop_remainder = false;
  /// All that is read, in closed form; nullopt if the number of examples is unknown, or if it does
  /// not determine the batches (transformed batches).
  std::optional<data::Plan> plan = std::nullopt;
  bool endless_batches = false;  ///< as `plan`, for an endless data set under DATA
  /// The plan to train by: `plan`; or that of batches which are transformed and keep their numbers
  /// of examples; or the plan of one step, of which all are full batches. nullopt: see why_no_plan.
  std::optional<data::Plan> training_plan = std::nullopt;
  bool has_end = true;  ///< false: that is the plan of one step of an endless data set
  WhyNoPlan why_no_plan = {};

  /// The pass over the data set that this rank reads.
  Pass pass(std::uint64_t epoch) const noexcept;

  /// The piece of `worker` of a batch under DATA.
  Range piece_of(std::uint64_t examples, std::uint64_t worker) const noexcept;

  /// True if a rank cannot determine locally when the other ranks' streams end.
  bool ends_differ() const noexcept;

  /// The number of examples per piece, if it is equal at every step on every rank.
  std::optional<std::size_t> fixed_rows() const;

  /// True if the plan has no example for a worker, and some for another.
  bool some_empty() const;
};

/// Determines this rank's part of a data set. Passes are opened to count their examples.
///
/// Errors   throws comm::AgreedError (2): data or options that data::Plan or data::choose_policy
///          reject; `balanced` with DATA; ranks with different data or options; a prefetch above
///          1,048,576. The same (65) for files that cannot be read.
/// Ranks    collective.
Share agree_on_share(comm::Communicator& comm, const readers::Pipeline& dataset,
                     const DistributeOptions& options);

}  // namespace lockstep::pieces
