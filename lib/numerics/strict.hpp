// The strict products: the three matrix products of a dense layer as fixed expressions, and the
// layout of their weights.
//
// B rows of the batch held by this rank, I inputs, O outputs of the layer, L examples in a leaf.
// Every operation is an IEEE 754 operation in float32, rounded to nearest, denormals kept:
//
//   forward     y[i][j] = act(a):  a = b[j];  for k = 0 .. I-1:  a = fma(x[i][k], w[k][j], a)
//   dX          dx[i][k] = a:      a = 0;     for j = 0 .. O-1:  a = fma(dz[i][j], w[k][j], a)
//               and 0 instead of a where the layer below is relu and not x[i][k] > 0
//   dW          dw[k][j] = the tree over leaves of
//                                  a = 0;     for i in the leaf: a = fma(x[i][k], dz[i][j], a)
//   db          db[j] = the tree over leaves of
//                                  a = 0;     for i in the leaf: a = a + dz[i][j]
//
//   act         relu: a < 0 ? 0 : a, so NaN is kept; identity: a
//   leaf q      the rows [q L, (q + 1) L), the last one possibly short
//   the tree    node(h, q) = node(h-1, 2q) + node(h-1, 2q+1), node(0, q) = leaf q; a node without
//               leaves does not exist, and the sum of one child is that child (nothing is added).
//               The result is the root; without any leaf it is 0.
//   NaN         every NaN written is the positive quiet NaN, 0x7fc00000: IEEE 754 does not
//               define the sign and payload of a result.
//   zero        every zero written is +0: a + 0 is written for a.
//
// Why bits do not depend on ranks, rows, blocking, threads or vectors. The right-hand side of an
// element specifies its operands and their order only: it contains neither B (in forward and dX),
// nor other elements, nor the thread or rank that evaluates it. Each operation is correctly
// rounded, hence a function of its operands. By induction over the expression the value is a
// function of the operands' bits. An implementation may choose which elements it computes together
// (vectors, tiles, threads, slices, ranks) and where it splits a chain of additions (blocks,
// ranks), as long as each chain keeps its order. It may evaluate subtrees anywhere, because node(h,
// q) is itself such an expression: over leaves that begin at a multiple of 2^h the products below
// yield exactly that node, and adding two such nodes, left to right, yields their parent. Sums of
// leaves in any other grouping are not guaranteed to match.
//
// Why terms with a factor x that is zero may be left out (Zeros::automatic), in forward and dW.
// Take a chain with all terms and the same chain without them, whose values are equal but for the
// sign of a zero. A term that is in both adds the same product to equal values, or to two zeros:
// the results are equal, again but for the sign of a zero (a product that is zero, or becomes zero
// by rounding, included). A term fma(0, w, a) that is only in one adds a zero, if w is finite: it
// changes a at most from one zero to the other. The sums of the tree are the same argument, and so
// are chains that continue after a result was written. At last, all zeros are written as +0. So the
// bits are equal if the other factor is finite. Weights are: the update reports one that is not,
// like a gradient (optim::Optimizer::update), and reading refuses them (read_weights). dW leaves
// no term out where a dz is not finite.
//
// All functions are local to the rank and may run concurrently on many threads with separate
// outputs and scratch. They neither allocate nor throw. Shapes must match (asserted).
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <span>

#include "lockstep/numerics/matrix.hpp"
#include "lockstep/numerics/products.hpp"

namespace lockstep {
// The layout of a dense layer's weights: panels of 64 output columns.
//
// The strict products read this layout directly, so a step packs no weights. A panel holds all
// inputs of 64 outputs, one input after the other, so each of its rows is four cache lines:
//
//   element (k, j)  is at  64 * (j / 64) * inputs  +  k * width  +  j % 64
//
// where width is 64; in the last panel it is the number of remaining outputs rounded up to 16.
// Every panel and every row begins at a multiple of 16 floats. Columns beyond `outputs` are
// padding: the products keep them zero. Files and hashes use the logical matrix (row-major, no
// padding).
inline constexpr std::size_t panel_columns = 64;
inline constexpr std::size_t panel_unit =
    16;  ///< floats in a cache line; widths are rounded up to it

constexpr std::size_t round_to_unit(std::size_t count) noexcept {
  return round_up(count, panel_unit);
}

/// Rows [first_row, last_row) of one panel, restricted to columns [column, column + width).
struct PanelBlock {
  std::size_t first_row = 0;
  std::size_t last_row = 0;
  std::size_t column = 0;  ///< of the matrix
  std::size_t width = 0;   ///< a multiple of 16, at most 64; may cover padding
};

/// The positions of the elements of an [inputs, outputs] matrix. Pure arithmetic; no memory.
struct Panels {
  std::size_t inputs = 0;   ///< at least 1
  std::size_t outputs = 0;  ///< at least 1

  /// Floats in all panels, padding included.
  constexpr std::size_t size() const noexcept { return inputs * round_to_unit(outputs); }
  constexpr std::size_t panels() const noexcept { return ceil_divide(outputs, panel_columns); }
  constexpr std::size_t first_of(std::size_t panel) const noexcept {
    return panel * panel_columns * inputs;
  }
  constexpr std::size_t width(std::size_t panel) const noexcept {
    return std::min(panel_columns, round_to_unit(outputs) - panel * panel_columns);
  }
  constexpr std::size_t index(std::size_t k, std::size_t j) const noexcept {
    assert(k < inputs && j < outputs);
    const std::size_t panel = j / panel_columns;
    return first_of(panel) + k * width(panel) + j % panel_columns;
  }
  constexpr Range all() const noexcept { return {0, size()}; }
  /// All columns, with the padding.
  constexpr Range columns() const noexcept { return {0, round_to_unit(outputs)}; }

  /// The largest rectangle of the slice that begins at the flat position `first` (a multiple of 16,
  /// below `last`): part of a row up to the row's end, or whole rows. Iterating block by block
  /// covers a slice once and in flat order, (last_row - first_row) * width floats each.
  PanelBlock block_at(std::size_t first, std::size_t last) const noexcept;
};

/// A non-owning view of weights in panels; 64-byte aligned.
struct PanelWeights {
  Panels layout;
  std::span<const float> values;  ///< layout.size() of them
};

/// Copies a row-major matrix [inputs, outputs] into panels; padding becomes zero.
void to_panels(Matrix<const float> matrix, const Panels& layout, std::span<float> panels);

/// Copies panels into a row-major matrix [inputs, outputs], without the padding.
void from_panels(PanelWeights panels, Matrix<float> matrix);

/// One implementation of the products, for one instruction set.
struct StrictProducts {
  Simd simd;  ///< never automatic

  /// y = activation(x W + b), or activation(x W + y) when accumulating: its columns `columns`.
  ///
  /// Shapes   x [B, I], w panels of [I, O], bias of round_to_unit(O) with zeros beyond O (not read
  ///          when accumulating), y [B, O]; B may be 0; columns within w.layout.columns(), from and
  ///          to multiples of panel_unit. scratch: forward_scratch() floats; in float32 empty for
  ///          Zeros::dense.
  void (*forward)(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
                  Activation activation, Matrix<float> y, Range columns, Output output, Zeros zeros,
                  std::span<float> scratch);

  /// dx = dz W^T, or dz W^T + dx when accumulating; times the derivative of the activation
  /// that gave x: its columns `inputs`.
  ///
  /// Shapes   dz [B, O], dx [B, I]; x [B, I] is the output of the layer below, and `below` its
  ///          activation (x is not read for identity); inputs within [0, round_to_unit(I)), from
  ///          and to multiples of panel_unit. scratch: input_scratch() floats.
  void (*backward_input)(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                         Activation below, Matrix<float> dx, Range inputs, Output output,
                         std::span<float> scratch);

  /// The slice of dw, in the panel layout of [I, O], summed over the leaves of all rows given.
  ///
  /// Shapes   x [B, I], dz [B, O]; `slice` within [0, Panels{I, O}.size()), dw of slice.size()
  ///          and aligned to 64 bytes. Padding becomes zero, and so does everything for B = 0.
  ///          scratch: weights_scratch() floats. Concatenated slices equal the whole.
  void (*backward_weights)(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                           Range slice, std::span<float> dw, Zeros zeros, std::span<float> scratch);

  /// The slice of db, which has round_to_unit(O) floats; as above.
  void (*backward_bias)(Matrix<const float> dz, std::size_t leaf, Range slice, std::span<float> db);

  // The sizes of scratch in floats, aligned to 64 bytes: enough for fewer rows, too. `slice`:
  // floats of dw.
  std::size_t (*forward_scratch)(std::size_t rows, std::size_t inputs) noexcept;
  std::size_t (*input_scratch)(std::size_t rows, std::size_t outputs) noexcept;
  std::size_t (*weights_scratch)(std::size_t rows, std::size_t outputs, std::size_t leaf,
                                 std::size_t slice) noexcept;
};

/// True if this processor has the instructions; always true for automatic and scalar.
bool has_simd(Simd simd) noexcept;

/// The products for an instruction set; `automatic` selects the widest that the processor has.
///
/// Errors   ConfigError if the processor lacks them.
const StrictProducts& strict_products(Simd simd);

/// The products in plain loops: strict_products(Simd::scalar).
const StrictProducts& scalar_products() noexcept;

}  // namespace lockstep
