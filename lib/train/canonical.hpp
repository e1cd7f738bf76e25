// What canonical steps share, on the processor and on devices: leaves by rank, sums over the global
// batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/numerics/leaf_tree.hpp"

namespace lockstep::train {

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
  Range rows_of(const Subtree& tree, std::size_t summed) const noexcept {
    const std::size_t first = (tree.first - first_leaf) * leaf;
    return {first, std::min<std::size_t>(first + tree.size * leaf, summed)};
  }

  bool fits(const data::Batch& batch) const noexcept {
    return leaf == batch.leaf && block == batch.block && summed_rows == batch.summed_rows;
  }
};

/// That of a batch. Local.
LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm);

/// What a network's layers sum over the batch with, during one step.
///
/// Each rank sums its own leaves as far as the tree allows and sends those sums to all, a few
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

}  // namespace lockstep::train
