// Sums over leaves, a subtree of them at a time: for layers that need memory for every row.
#pragma once

#include <bit>

#include "lib/nn/layer.hpp"
#include "lib/numerics/leaf_tree.hpp"

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
  const auto waiting = scratch.get(Scratch<Real>::waiting, tree_slots(pieces) * out.size());
  sum_tree(pieces, waiting, out, [&](std::size_t q, std::span<Real> into) {
    sum(q * piece, std::min(piece, rows - q * piece), into);
  });
}

/// The slices of a gain and a bias for each of `channels`, which stand one behind the other from
/// the pass's first tensor on: the sums of gain_terms(x, dz) and of dz over all rows and positions.
template <class Real, class Terms>
void gain_and_bias_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                             std::size_t leaf, std::size_t channels, const GradientSlice<Real>& out,
                             Terms gain_terms) {
  constexpr std::size_t most_summed = 1 << 18;
  const std::size_t piece = piece_rows(leaf, x.cols, most_summed);
  const auto sums = [&](std::size_t tensor, auto terms) {
    out.with(tensor, [&](Range slice, std::span<Real> into) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, into,
                          [&](std::size_t first, std::size_t count, std::span<Real> part) {
                            pass.products.backward_bias(
                                terms(rows_of(x, first, count), rows_of(dz, first, count)),
                                leaf * (x.cols / channels), slice, part);
                          });
    });
  };
  sums(pass.tensor, gain_terms);
  sums(pass.tensor + 1,
       [&](Matrix<const Real>, Matrix<const Real> rows) { return in_rows_of(channels, rows); });
}

}  // namespace lockstep::nn
