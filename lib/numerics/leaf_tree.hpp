// The balanced binary tree over the leaves of a batch, and its division among ranks. A leaf is a
// fixed number of consecutive examples of the global batch: the unit of summation.
//
// Leaf i is at position i of a complete binary tree; positions without a leaf are skipped. A rank
// that holds consecutive leaves sums the subtrees that lie entirely within them, the maximal
// aligned subtrees; then the sums of all ranks are added in the tree's order. These are the same
// additions as when one rank sums the whole tree.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/range.hpp"

namespace lockstep {

/// The number of leaves of `rows` rows; the last one may be short.
constexpr std::size_t leaves_of(std::size_t rows, std::size_t leaf) noexcept {
  return ceil_divide(rows, leaf);
}

/// The most rows, but at least a leaf, that are a power of two of leaves: a node of the tree.
constexpr std::size_t node_rows(std::size_t most, std::size_t leaf) noexcept {
  return std::bit_floor(std::max(most / leaf, std::size_t{1})) * leaf;
}

/// Positions [first, first + size) of the tree: size is a power of two that divides first.
struct Subtree {
  std::uint64_t first = 0;
  std::uint64_t size = 1;

  bool operator==(const Subtree&) const = default;
};

/// The smallest set of subtrees that covers the leaves [begin, end) of `leaves` and no other leaf,
/// in order. The last one of a tree may extend beyond its last leaf. At most two per level of the
/// tree.
std::vector<Subtree> aligned_subtrees(std::uint64_t begin, std::uint64_t end, std::uint64_t leaves);

/// The most subtrees of aligned_subtrees() for at most `leaves` leaves.
constexpr std::size_t parts_at_most(std::uint64_t leaves) noexcept {
  std::size_t parts = 0;  // the widest cover has sizes 1, 2, 4, ..., 4, 2, 1
  for (std::uint64_t covered = 1; covered <= leaves; ++parts) {
    covered += std::uint64_t{1} << ((parts + 1) / 2);
  }
  return parts;
}

/// One addition: parts[left] + parts[right] replaces parts[left].
struct TreeSum {
  std::size_t left;
  std::size_t right;
};

/// The additions that sum `parts`, which together hold all leaves, in order; the result is in
/// parts[0]. Throws std::invalid_argument if leaves are missing between parts.
std::vector<TreeSum> sums_of(std::span<const Subtree> parts);

/// The same for parts that arrive one after another: the number of sums after the n-th part; each
/// adds the two newest pending values, the older one on the left. `sums` is the result of
/// sums_of(). Throws std::invalid_argument if it is not.
std::vector<std::uint8_t> merges_of(std::size_t parts, std::span<const TreeSum> sums);

/// The maximum number of pending values in merges_of(): subtrees of decreasing size, for up to 2^32
/// leaves.
inline constexpr std::size_t max_pending_parts = 33;

/// The number of scratch slots (pending sums) that sum_tree() needs.
constexpr std::size_t tree_slots(std::uint64_t nodes) noexcept {
  return static_cast<std::size_t>(std::bit_width(nodes));
}

/// Sets `out` to the sum of `nodes` (at least one) neighbours in the tree, of which the first is at
/// a multiple of bit_ceil(nodes). node(n, into) writes the n-th to `into`, as long as `out`.
/// `waiting`: scratch of tree_slots(nodes) times the length of `out`.
template <class Real, class Node>
void sum_tree(std::uint64_t nodes, std::span<Real> waiting, std::span<Real> out, const Node& node) {
  const auto slot = [&](std::size_t level) {
    return waiting.subspan(level * out.size(), out.size());
  };
  // Nodes without their right sibling yet, oldest first: a binary counter.
  for (std::uint64_t n = 0; n < nodes; ++n) {
    auto top = static_cast<std::size_t>(std::popcount(n));
    node(n, slot(top));
    const bool last = n + 1 == nodes;
    for (auto merges = last ? top : static_cast<std::size_t>(std::countr_one(n)); merges > 0;
         --merges, --top) {
      const auto older = slot(top - 1);
      const auto newer = slot(top);
      for (std::size_t i = 0; i < out.size(); ++i) older[i] = older[i] + newer[i];
    }
  }
  std::copy_n(waiting.begin(), out.size(), out.begin());
}

}  // namespace lockstep
