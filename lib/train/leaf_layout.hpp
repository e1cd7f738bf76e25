// A step's leaves as each rank's parts of the tree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

}  // namespace lockstep::train
