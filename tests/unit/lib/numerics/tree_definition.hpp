// The tree over leaves as strict.hpp defines it, by recursion: what the tests of dW compare with.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace lockstep::test {

/// node(height, q) over leaves of `leaf` of `rows` rows; leaf_sum(first, last) sums those rows.
template <class LeafSum>
float tree_node(std::size_t rows, std::size_t leaf, std::size_t height, std::size_t q,
                const LeafSum& leaf_sum) {
  const std::size_t first = (q << height) * leaf;
  if (height == 0) return leaf_sum(first, std::min(rows, first + leaf));
  const float left = tree_node(rows, leaf, height - 1, 2 * q, leaf_sum);
  const bool both = ((2 * q + 1) << (height - 1)) * leaf < rows;
  return both ? left + tree_node(rows, leaf, height - 1, 2 * q + 1, leaf_sum) : left;
}

/// The root, of at least one row.
template <class LeafSum>
float tree_sum(std::size_t rows, std::size_t leaf, const LeafSum& leaf_sum) {
  const auto height = static_cast<std::size_t>(std::bit_width((rows - 1) / leaf));
  return tree_node(rows, leaf, height, 0, leaf_sum);
}

}  // namespace lockstep::test
