// The strict products: the three matrix products of a dense layer as fixed expressions.
//
// B rows of the batch held by this rank, I inputs, O outputs of the layer, L examples in a leaf.
// Every operation is one of IEEE 754 in float32, rounded to nearest, denormals kept:
//
//   forward     y[i][j] = act(a):  a = b[j];  for k = 0 .. I-1:  a = fma(x[i][k], w[k][j], a)
//   dX          dx[i][k] = a:      a = 0;     for j = 0 .. O-1:  a = fma(dz[i][j], w[k][j], a)
//               and 0 instead of a where the layer below is relu and not x[i][k] > 0
//   dW          dw[k][j] = the tree over leaves of
//                                  a = 0;     for i in the leaf: a = fma(x[i][k], dz[i][j], a)
//   db          db[j] = the tree over leaves of
//                                  a = 0;     for i in the leaf: a = a + dz[i][j]
//
//   act         relu: a < 0 ? 0 : a, so NaN and -0 stay; identity: a
//   leaf q      the rows [q L, (q + 1) L), the last one possibly short
//   the tree    node(h, q) = node(h-1, 2q) + node(h-1, 2q+1), node(0, q) = leaf q; a node without
//               leaves does not exist, and the sum of one child is that child (nothing is added).
//               The result is the root; without any leaf it is 0.
//   NaN         every NaN written is the positive quiet one, 0x7fc00000: which operand's sign and
//               payload an instruction hands on is the one thing IEEE 754 leaves open.
//
// Why ranks, rows, blocking, threads and vectors cannot touch a bit. The right-hand side of an
// element names its operands and their order, and nothing else: neither B (in forward and dX), nor
// other elements, nor who evaluates it. Each operation is correctly rounded, hence a function of
// its operands. By induction over the expression the value is a function of the operands' bits.
// An implementation may choose which elements it computes together (vectors, tiles, threads,
// slices, ranks) and when it pauses a chain (blocks, ranks), as long as each keeps its order; it
// may evaluate subtrees anywhere, because node(h, q) is itself such an expression: over leaves that
// begin at a multiple of 2^h the products below yield exactly that node, and adding two such nodes,
// left to right, yields their parent. Sums of leaves in any other grouping are not promised.
//
// All functions are local to the rank and may run on many threads at once on separate outputs and
// separate scratch. They allocate nothing and throw nothing. Shapes are the caller's duty
// (asserted).
#pragma once

#include <cstddef>
#include <span>

#include "lib/numerics/panels.hpp"
#include "lib/numerics/products.hpp"

namespace lockstep {

/// One implementation of the products, by one set of instructions.
struct StrictProducts {
  Simd simd;  ///< never automatic

  /// y = activation(x W + b), or activation(x W + y) where the chain goes on.
  ///
  /// Shapes   x [B, I], w panels of [I, O], bias of round_to_unit(O) with zeros beyond O (not read
  ///          where the chain goes on), y [B, O]; B may be 0.
  void (*forward)(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
                  Activation activation, Matrix<float> y, Chain chain);

  /// dx = dz W^T, or dz W^T + dx where the chain goes on; times the derivative of the activation
  /// that gave x.
  ///
  /// Shapes   dz [B, O], dx [B, I]; x [B, I] is what the layer below gave, and `below` its
  ///          activation (x is not read for identity). scratch: strict_scratch_size floats.
  void (*backward_input)(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                         Activation below, Matrix<float> dx, Chain chain, std::span<float> scratch);

  /// The slice of dw, in the panel layout of [I, O], summed over the leaves of all rows given.
  ///
  /// Shapes   x [B, I], dz [B, O]; `slice` within [0, Panels{I, O}.size()), dw of slice.size()
  ///          and aligned to 64 bytes. Padding becomes zero, and so does everything for B = 0.
  ///          scratch: strict_scratch_size floats. Slices glued together are the whole.
  void (*backward_weights)(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                           Range slice, std::span<float> dw, std::span<float> scratch);

  /// The slice of db, which has round_to_unit(O) floats; as above.
  void (*backward_bias)(Matrix<const float> dz, std::size_t leaf, Range slice, std::span<float> db,
                        std::span<float> scratch);
};

/// True if this processor has the instructions; always true for automatic and scalar.
bool has_simd(Simd simd) noexcept;

/// The products by these instructions; `automatic` takes the widest that the processor has.
///
/// Errors   ConfigError if the processor lacks them.
const StrictProducts& strict_products(Simd simd);

/// The products in plain loops: strict_products(Simd::scalar).
const StrictProducts& scalar_products() noexcept;

/// Floats of scratch, aligned to 64 bytes, that every product of up to `rows` rows and `outputs`
/// outputs makes do with, for any leaf.
std::size_t strict_scratch_size(std::size_t rows, std::size_t outputs) noexcept;

}  // namespace lockstep
