// Which rank reads which record at which step: arithmetic, nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

enum class Shuffle { none, global };

/// A run of consecutive positions.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const noexcept { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Examples per leaf that `--leaf auto` means for a step of `examples`: the greatest power of two
/// that is at most an eighth of them, between 1 and 16.
std::uint64_t automatic_leaf(std::uint64_t examples) noexcept;

/// Piece of `rank` when `examples` are dealt in leaves of `leaf` to `ranks`: contiguous runs of
/// ceil(leaves / ranks) leaves each, trailing ranks fewer or none. For leaf 1 it is the guide's
/// rule `ceil`. All arguments at least 1, but for `examples`.
Range piece_of(std::uint64_t examples, std::uint64_t leaf, std::uint64_t rank,
               std::uint64_t ranks) noexcept;

/// What a plan is a function of.
struct PlanOptions {
  std::uint64_t records = 0;
  std::uint64_t batch_size = 128;  ///< the global batch
  std::uint64_t ranks = 1;
  std::uint64_t leaf = 0;  ///< examples per leaf; 0: automatic_leaf of each step
  bool drop_remainder = false;
  Shuffle shuffle = Shuffle::none;
  std::uint64_t seed = 22;
};

/// The plan of policy DATA with rule `ceil`: every rank takes its piece of every global batch.
///
/// A pure function of its options: no I/O, no communication, no state. Within an epoch, pieces are
/// disjoint and complete (but for a dropped remainder), and the union of the pieces of a step does
/// not depend on the number of ranks. All members are local; but for records(), which lists a
/// piece, they take constant time.
class Plan {
 public:
  /// Throws ConfigError where batch_size or ranks is 0.
  explicit Plan(const PlanOptions& options);

  const PlanOptions& options() const noexcept { return options_; }

  /// Steps of one epoch; 0 where a dropped remainder leaves none.
  std::uint64_t steps() const noexcept { return steps_; }

  /// Examples of step `step` (from 0) over all ranks.
  std::uint64_t examples(std::uint64_t step) const noexcept;

  /// Examples of one epoch over all ranks.
  std::uint64_t examples_per_epoch() const noexcept;

  /// Examples per leaf in `step`.
  std::uint64_t leaf(std::uint64_t step) const noexcept;

  /// The piece of `rank` at `step`, counted from the beginning of the global batch.
  Range piece(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// Positions in the epoch's order that `rank` reads at `step`.
  Range positions(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// The records of `rank` at `step` of `epoch` (from 0), in order, into `ids` (resized).
  void records(std::uint64_t epoch, std::uint64_t step, std::uint64_t rank,
               std::vector<std::uint64_t>& ids) const;

  /// The most examples that any rank holds in any step: what buffers must fit.
  std::uint64_t largest_piece() const noexcept;

  /// The most rows that ranks * (the first rank's piece) comes to: what buffers must fit that
  /// gather all ranks' pieces in blocks of one size.
  std::uint64_t largest_gathered() const noexcept;

  /// Ranks without an example in a full step.
  std::uint64_t idle_ranks() const noexcept;

  /// Hash of the options: equal where all of them are.
  std::uint64_t digest() const;

 private:
  PlanOptions options_;
  std::uint64_t steps_ = 0;
};

}  // namespace lockstep::data
