// The balanced binary tree over the leaves of a batch, and its division between ranks.
//
// Leaf i is at position i of a complete binary tree; leaves that a batch lacks are skipped. A
// rank that holds a run of leaves sums the subtrees that lie entirely within it, its maximal
// aligned subtrees; the sums of all ranks are then added in the tree's order. These are the same
// additions as when one rank sums the whole tree.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// Positions [first, first + size) of the tree: size is a power of two that divides first.
struct Subtree {
  std::uint64_t first = 0;
  std::uint64_t size = 1;

  bool operator==(const Subtree&) const = default;
};

/// The fewest subtrees that hold the leaves [begin, end) of `leaves` and no other leaf, in order.
/// The last one of a tree may reach beyond its last leaf. At most two for each level of the tree.
std::vector<Subtree> aligned_subtrees(std::uint64_t begin, std::uint64_t end, std::uint64_t leaves);

/// One addition: the sum of parts[left] and parts[right] takes the place of parts[left].
struct TreeSum {
  std::size_t left;
  std::size_t right;
};

/// The additions that sum `parts`, which together hold all leaves, in order; the result is in
/// parts[0]. Throws std::invalid_argument where they leave a gap.
std::vector<TreeSum> sums_of(std::span<const Subtree> parts);

/// The same for parts that come one after another: how many sums follow the n-th, each of the two
/// newest values that are left, the older one on the left. `sums` are those of sums_of().
/// Throws std::invalid_argument where they are not.
std::vector<std::uint8_t> merges_of(std::size_t parts, std::span<const TreeSum> sums);

/// Values that are left at once in merges_of(), at most: subtrees of falling size, for up to 2^32
/// leaves.
inline constexpr std::size_t max_pending_parts = 33;

/// Slots of scratch that sum_tree() needs: pending sums.
constexpr std::size_t tree_slots(std::uint64_t nodes) noexcept {
  return static_cast<std::size_t>(std::bit_width(nodes));
}

/// Sets `out` to the sum of `nodes` neighbours in the tree, at least one, of which the first is
/// at a multiple of bit_ceil(nodes). node(n, into) sets `into`, as long as `out`, to the n-th.
/// `waiting`: tree_slots(nodes) times as long as `out`.
template <class Real, class Node>
void sum_tree(std::uint64_t nodes, std::span<Real> waiting, std::span<Real> out, const Node& node) {
  const auto slot = [&](std::size_t level) {
    return waiting.subspan(level * out.size(), out.size());
  };
  // Nodes that wait for their right sibling, oldest first: a binary counter.
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
