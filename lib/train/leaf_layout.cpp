#include "lib/train/leaf_layout.hpp"

#include <algorithm>

namespace lockstep::train {
namespace {

std::uint64_t leaf_at(std::uint64_t row, std::uint64_t leaf) { return (row + leaf - 1) / leaf; }

}  // namespace

LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm) {
  LeafLayout layout;
  layout.leaf = batch.leaf;
  layout.block = batch.block;
  layout.summed_rows = batch.summed_rows;
  layout.leaves = leaf_at(batch.summed_rows, batch.leaf);
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<Subtree> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t begin = leaf_at(rank * batch.block, batch.leaf);
    const std::uint64_t end = leaf_at((rank + 1) * batch.block, batch.leaf);
    const auto parts = aligned_subtrees(begin, end, layout.leaves);
    for (std::size_t i = 0; i < parts.size(); ++i) layout.from.push_back(i * ranks + rank);
    all.insert(all.end(), parts.begin(), parts.end());
    layout.most_parts = std::max(layout.most_parts, parts.size());
    if (static_cast<int>(rank) != comm.rank()) continue;
    layout.mine = parts;
    layout.first_leaf = begin;
  }
  layout.sums = sums_of(all);
  return layout;
}

}  // namespace lockstep::train
