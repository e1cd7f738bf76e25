// Sums over leaves, a subtree of them at a time: for layers that need memory for every row.
#pragma once

#include <bit>

#include "lib/nn/layer.hpp"

namespace lockstep::nn {

/// Rows of a piece: as many whole leaves, a power of two, as hold at most `most` elements where a
/// row needs `row` of them; one leaf at least.
inline std::size_t piece_rows(std::size_t leaf, std::size_t row, std::size_t most) {
  return leaf * std::bit_floor(std::max<std::size_t>(1, most / (leaf * row)));
}

/// Sums `rows` rows into `out` by pieces of `piece` rows: sum(first, count, into) gives the tree
/// over the leaves of one piece, and their nodes are added as the tree over all leaves adds them
/// (numerics/strict.hpp). So the result is the same bits as of one sum over all rows.
template <class Real, class Sum>
void sum_by_pieces(std::size_t rows, std::size_t piece, Scratch<Real>& scratch, std::span<Real> out,
                   Sum sum) {
  if (rows <= piece) return sum(std::size_t{0}, rows, out);
  const std::size_t pieces = (rows + piece - 1) / piece;
  // Nodes that wait for their right sibling, oldest first: a binary counter.
  const auto waiting = scratch.get(
      Scratch<Real>::waiting, out.size() * (static_cast<std::size_t>(std::bit_width(pieces)) + 1));
  for (std::size_t q = 0; q < pieces; ++q) {
    auto top = static_cast<std::size_t>(std::popcount(q));
    sum(q * piece, std::min(piece, rows - q * piece),
        waiting.subspan(top * out.size(), out.size()));
    const bool last = q + 1 == pieces;
    for (auto merges = last ? top : static_cast<std::size_t>(std::countr_one(q)); merges > 0;
         --merges, --top) {
      Real* const newer = waiting.data() + top * out.size();
      Real* const older = newer - out.size();
      for (std::size_t i = 0; i < out.size(); ++i) older[i] = older[i] + newer[i];
    }
  }
  std::copy_n(waiting.begin(), out.size(), out.begin());
}

}  // namespace lockstep::nn
