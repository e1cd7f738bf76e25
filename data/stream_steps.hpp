// The steps of an epoch in which every rank works through a stream of its own (FILE and OFF).
#pragma once

#include <cstdint>
#include <vector>

#include "data/policy.hpp"
#include "data/rebatch.hpp"

namespace lockstep::data {

/// Every rank cuts its stream into pieces and takes one a step, until no rank has any left.
///
/// `ceil`: the stream is batched by the global batch, and each batch cut into as many pieces as
/// there are ranks; so a round of that many steps uses up one batch of every rank. `balanced`: see
/// BalancedPieces. A step at which no rank would have an example is no step: it is left out.
///
/// Holds the streams' lengths. Queries take logarithmic time, but for examples() and
/// largest_piece() in a round that is the last of some ranks: those look at these ranks, once for
/// each length, or, under `balanced`, at all ranks.
class StreamSteps {
 public:
  /// `lengths`: examples of each rank's stream.
  /// Errors   throws ConfigError for a batch of 0, no ranks, a batch smaller than the ranks under
  ///          `balanced`, or more steps than 2^63.
  StreamSteps(std::vector<std::uint64_t> lengths, std::uint64_t batch_size, Rebatch rule);

  std::uint64_t steps() const noexcept { return steps_; }

  /// Examples of each rank's stream.
  const std::vector<std::uint64_t>& lengths() const noexcept { return lengths_; }

  /// Where the piece of `rank` at `step` lies in its stream. Where it is empty, only its size says
  /// anything.
  Range piece(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// Examples of `step` over all ranks.
  std::uint64_t examples(std::uint64_t step) const noexcept;

  /// The most examples that one rank holds at `step`, and at any step.
  std::uint64_t largest_piece(std::uint64_t step) const noexcept;
  std::uint64_t largest_piece() const noexcept;

  /// Steps at which `rank` has an example.
  std::uint64_t filled_steps(std::uint64_t rank) const noexcept;

 private:
  /// Step `index` of a round of as many steps as there are ranks, before any is left out.
  struct Place {
    std::uint64_t round = 0;
    std::uint64_t index = 0;
  };
  /// Ranks whose streams are equally long.
  struct Group {
    std::uint64_t length = 0;
    std::uint64_t ranks = 0;
    std::uint64_t not_shorter = 0;  ///< ranks of this group and of those with longer streams
  };
  /// A round (of rule `ceil`) that does not have the steps of a full batch's pieces.
  struct OddRound {
    std::uint64_t round = 0;
    std::uint64_t first_step = 0;
    std::uint64_t steps = 0;
  };

  std::uint64_t ranks() const noexcept { return lengths_.size(); }
  void make_groups();
  void find_odd_rounds();
  Place place(std::uint64_t step) const noexcept;
  bool full_everywhere(std::uint64_t step) const noexcept;

  /// Calls visit(size, ranks) for the pieces at `step`: every size with a number of ranks.
  template <class Visit>
  void for_each_size(std::uint64_t step, Visit visit) const;

  std::vector<std::uint64_t> lengths_;
  std::uint64_t batch_size_;
  Rebatch rule_;
  BalancedPieces balanced_;
  std::uint64_t steps_ = 0;
  std::uint64_t full_steps_ = 0;      // of a round in which full batches alone are cut
  std::vector<Group> groups_;         // from the shortest to the longest
  std::vector<OddRound> odd_rounds_;  // in their order
};

}  // namespace lockstep::data
