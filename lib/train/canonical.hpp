// The two canonical steps, for make_canonical_step() alone, and what they share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/base/aligned.hpp"
#include "lib/nn/loss.hpp"
#include "lib/nn/network.hpp"
#include "lib/numerics/leaf_tree.hpp"
#include "lib/numerics/matrix.hpp"
#include "lib/optim/adam.hpp"
#include "lib/train/report.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {
std::unique_ptr<Step> make_activations_step(nn::Network<float>& network,
                                            const CanonicalOptions& options,
                                            comm::Communicator& comm);
std::unique_ptr<Step> make_partial_sums_step(nn::Network<float>& network,
                                             const CanonicalOptions& options,
                                             comm::Communicator& comm);

/// Zeroes rows that hold no example, in all that is summed over (data::Plan says why).
inline void clear(nn::Network<float>& network, nn::Rows rows) {
  network.for_each_exchanged(rows, [](std::span<float> v) { std::fill(v.begin(), v.end(), 0.0F); });
}

// A step's leaves as each rank's parts of the tree.

/// Which subtrees of a step's leaves each rank holds, and how they are summed.
///
/// Ranks send each other their parts in rounds: in round i each its part i. A message is named by
/// round * ranks + rank.
struct LeafLayout {
  std::uint64_t leaf = 0;
  std::uint64_t block = 0;
  std::uint64_t summed_rows = 0;

  std::vector<Subtree> mine;
  std::uint64_t first_leaf = 0;   ///< of this rank
  std::uint64_t leaves = 0;       ///< of all
  std::size_t most_parts = 0;     ///< of any rank
  std::vector<std::size_t> from;  ///< part -> the message that brings it
  std::vector<TreeSum> sums;      ///< of parts of all ranks, in order

  /// The rows of one of `mine` among this rank's `summed` rows; the last leaf may be short.
  nn::Rows rows_of(const Subtree& tree, std::size_t summed) const noexcept {
    const std::size_t first = (tree.first - first_leaf) * leaf;
    return {first, std::min<std::size_t>(tree.size * leaf, summed - first)};
  }

  bool fits(const data::Batch& batch) const noexcept {
    return leaf == batch.leaf && block == batch.block && summed_rows == batch.summed_rows;
  }
};

/// That of a batch. Local.
LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm);

// What the examples of all ranks added to a step's loss, on every rank.

/// Gathers the results of every rank's rows, so that each can sum them over leaves.
class GatheredResults {
 public:
  /// For at most `rows` rows in the blocks of all ranks: Plan::largest_gathered(). `comm` must
  /// outlive this.
  GatheredResults(std::size_t rows, comm::Communicator& comm);

  /// All ranks' results, `block` rows a rank; what a rank lacks of its block is zero. Valid until
  /// the next call.
  /// Ranks    collective.
  std::span<const nn::ExampleResult> gather(std::span<const nn::ExampleResult> mine,
                                            std::size_t block);

 private:
  comm::Communicator& comm_;
  AlignedBuffer<nn::ExampleResult> all_;
};

/// The sum of all ranks' tallies, the same on each.
/// Ranks    collective.
nn::Tally sum_over_ranks(nn::Tally mine, comm::Communicator& comm);

// Sums over a step's global batch, of whose examples every rank holds its piece.

/// What a network's layers sum over the batch with, during one step.
///
/// Each rank sums its own leaves as far as the tree allows and shows those sums to all, a few
/// doubles a channel; every rank adds them up in the tree's order. Leaves of rows without an
/// example (data/plan.hpp) are zero. Both constructor arguments must outlive it; it takes the
/// network's place for batch sums as long as it lives.
class GlobalBatch final : public nn::BatchSums {
 public:
  GlobalBatch(nn::Network<float>& network, comm::Communicator& comm);
  ~GlobalBatch() override;

  /// From now on sums are over this batch. Local; costs nothing where no layer sums.
  void begin(const data::Batch& batch);

  std::size_t examples() const noexcept override { return examples_; }

 private:
  void do_sum(std::span<double> sums, Terms terms) override;

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  bool needed_;
  std::size_t examples_ = 0;
  std::size_t first_row_ = 0;  // of this rank's piece
  std::size_t rows_ = 0;
  LeafLayout layout_;
  std::vector<double> parts_;  // of all ranks: [rank][part]
  std::vector<double> scratch_;
};

// The end of a canonical step: each rank updates its slice of the weights, and shows it to all.

/// A rank's slice of the flat block: equal lengths, whole cache lines; and Adam's moments for it.
class SliceUpdate {
 public:
  /// `network` has as many slices as there are ranks; both must outlive this.
  SliceUpdate(nn::Network<float>& network, const optim::AdamOptions& options,
              comm::Communicator& comm);

  Range slice() const noexcept { return slice_; }

  /// Steps taken.
  std::uint64_t steps() const noexcept { return adam_.steps(); }

  /// Updates the slice by its gradient sums over `examples` examples, and gathers all slices.
  /// Returns whether the gradient was finite on all ranks. Collective.
  bool run(std::span<const float> gradient_sums, std::uint64_t examples, PhaseSeconds& seconds);

 private:
  nn::Network<float>& network_;
  comm::Communicator& comm_;
  Range slice_;
  optim::Adam adam_;
};

}  // namespace lockstep::train
