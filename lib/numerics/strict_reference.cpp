// The reference of the strict products: the expressions of strict.hpp and bf16.hpp in plain loops.
//
// The loops are compiled twice: without the FMA instruction std::fma is a hundred times slower (the
// C library then computes the same bits in software).

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "lockstep/numerics/bf16.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/numerics/strict.hpp"

#if defined(__x86_64__) && !defined(__FMA__)
#define LOCKSTEP_FMA_ON_REQUEST 1
#define LOCKSTEP_FMA [[gnu::target("fma")]]
#else
#define LOCKSTEP_FMA_ON_REQUEST 0
#endif
#define LOCKSTEP_LOOPS [[gnu::always_inline]] inline

namespace lockstep {
namespace {

/// Neighbouring columns, computed in the same loops but independently.
using Unit = std::array<float, panel_unit>;

/// The value written for a sum: +0 for -0, and one NaN.
LOCKSTEP_LOOPS float canonical(float a) {
  return a != a ? std::numeric_limits<float>::quiet_NaN() : a + 0.0F;
}

/// Chains of neighbouring columns in float32.
template <std::size_t columns>
struct Float32Chain {
  std::array<float, columns> sums{};

  LOCKSTEP_LOOPS void add(float factor, const float* factors, std::size_t count) {
    for (std::size_t c = 0; c < count; ++c) {
      sums[c] = __builtin_fmaf(factor, factors[c], sums[c]);
    }
  }
  LOCKSTEP_LOOPS void end() {}
};

/// The same in bf16.
template <std::size_t columns>
struct Bf16Chain {
  std::array<float, columns> sums{};
  std::array<float, columns> even{};
  std::array<float, columns> odd{};
  std::size_t terms = 0;  ///< of the chunk

  LOCKSTEP_LOOPS void add(float factor, const float* factors, std::size_t count) {
    auto& chain = terms % 2 == 0 ? even : odd;
    const float rounded = round_to_bf16(factor);
    for (std::size_t c = 0; c < count; ++c) {
      chain[c] = flushed_fma(rounded, round_to_bf16(factors[c]), chain[c]);
    }
    if (++terms == bf16_chunk) end();
  }
  LOCKSTEP_LOOPS void end() {
    if (terms == 0) return;
    for (std::size_t c = 0; c < columns; ++c) {
      sums[c] = flushed_add(sums[c], flushed_add(even[c], odd[c]));
    }
    even = {};
    odd = {};
    terms = 0;
  }
};

template <template <std::size_t> class Chain>
LOCKSTEP_LOOPS void forward_loops(Matrix<const float> x, PanelWeights w,
                                  std::span<const float> bias, Activation activation,
                                  Matrix<float> y, Range all, Output output, Zeros,
                                  std::span<float>) {
  for (std::size_t i = 0; i < y.rows; ++i) {
    for (std::size_t j = all.begin; j < std::min(all.end, y.cols); j += panel_unit) {
      const std::size_t columns = std::min(panel_unit, y.cols - j);
      const float* weights = w.values.data() + w.layout.index(0, j);
      Chain<panel_unit> chain;
      const float* start = output == Output::overwrite ? bias.data() : y.data + i * y.cols;
      for (std::size_t c = 0; c < columns; ++c) chain.sums[c] = start[j + c];
      for (std::size_t k = 0; k < x.cols; ++k, weights += w.layout.width(j / panel_columns)) {
        chain.add(x.data[i * x.cols + k], weights, panel_unit);
      }
      chain.end();
      for (std::size_t c = 0; c < columns; ++c) {
        const float a = canonical(chain.sums[c]);
        y.data[i * y.cols + j + c] = activation == Activation::relu && a < 0 ? 0.0F : a;
      }
    }
  }
}

template <template <std::size_t> class Chain>
LOCKSTEP_LOOPS void input_loops(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                                Activation below, Matrix<float> dx, Range inputs, Output output,
                                std::span<float>) {
  for (std::size_t i = 0; i < dx.rows; ++i) {
    for (std::size_t k = inputs.begin; k < std::min(inputs.end, dx.cols); ++k) {
      Chain<1> chain;
      if (output == Output::accumulate) chain.sums[0] = dx.data[i * dx.cols + k];
      for (std::size_t j = 0; j < dz.cols; ++j) {
        chain.add(dz.data[i * dz.cols + j], &w.values[w.layout.index(k, j)], 1);
      }
      chain.end();
      const bool active = below != Activation::relu || x.data[i * x.cols + k] > 0;
      dx.data[i * dx.cols + k] = active ? canonical(chain.sums[0]) : 0.0F;
    }
  }
}

/// The sums of one leaf: of x[i][k] dz[i][j .. j+15], or of dz alone where x is empty.
template <template <std::size_t> class Chain>
LOCKSTEP_LOOPS Unit leaf_sums(const Matrix<const float>& x, const Matrix<const float>& dz,
                              std::size_t first, std::size_t last, std::size_t k, std::size_t j) {
  const std::size_t columns = j < dz.cols ? std::min(panel_unit, dz.cols - j) : 0;
  Chain<panel_unit> chain;
  for (std::size_t i = first; i < last; ++i) {
    const float* row = dz.data + i * dz.cols + j;
    if (x.data == nullptr) {
      for (std::size_t c = 0; c < columns; ++c) chain.sums[c] = chain.sums[c] + row[c];
    } else {
      chain.add(x.data[i * x.cols + k], row, columns);
    }
  }
  chain.end();
  return chain.sums;
}

/// One pass over the leaves for 16 columns, with pending nodes (without their right sibling yet).
template <template <std::size_t> class Chain>
LOCKSTEP_LOOPS Unit tree_sums(const Matrix<const float>& x, const Matrix<const float>& dz,
                              std::size_t leaf, std::size_t k, std::size_t j) {
  const std::size_t leaves = leaves_of(dz.rows, leaf);
  std::array<Unit, std::numeric_limits<std::size_t>::digits> waiting;
  std::size_t count = 0;
  for (std::size_t q = 0; q < leaves; ++q) {
    Unit node = leaf_sums<Chain>(x, dz, q * leaf, std::min(dz.rows, (q + 1) * leaf), k, j);
    const bool last = q + 1 == leaves;
    for (auto merges = last ? count : static_cast<std::size_t>(std::countr_one(q)); merges > 0;
         --merges) {
      --count;
      for (std::size_t c = 0; c < panel_unit; ++c) node[c] = waiting[count][c] + node[c];
    }
    waiting[count++] = node;
  }
  Unit root = count == 0 ? Unit{} : waiting[0];
  for (float& a : root) a = canonical(a);
  return root;
}

template <template <std::size_t> class Chain>
LOCKSTEP_LOOPS void weights_loops(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                                  Range slice, std::span<float> dw, Zeros, std::span<float>) {
  const Panels layout{x.cols, dz.cols};
  for (std::size_t at = slice.begin; at < slice.end; at += panel_unit) {
    const PanelBlock block = layout.block_at(at, at + panel_unit);
    const Unit root = tree_sums<Chain>(x, dz, leaf, block.first_row, block.column);
    std::copy(root.begin(), root.end(), dw.begin() + static_cast<std::ptrdiff_t>(at - slice.begin));
  }
}

LOCKSTEP_LOOPS void bias_loops(Matrix<const float> dz, std::size_t leaf, Range slice,
                               std::span<float> db) {
  for (std::size_t j = slice.begin; j < slice.end; j += panel_unit) {
    const Unit root = tree_sums<Float32Chain>({}, dz, leaf, 0, j);
    std::copy(root.begin(), root.end(), db.begin() + static_cast<std::ptrdiff_t>(j - slice.begin));
  }
}

bool round_loop(std::span<const float> values, std::span<float> rounded) {
  bool finite = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    rounded[i] = round_to_bf16(values[i]);
    finite = finite && std::isfinite(rounded[i]);
  }
  return finite;
}

/// The loops as they are.
template <template <std::size_t> class Chain>
struct Plain {
  static constexpr auto* forward = forward_loops<Chain>;
  static constexpr auto* input = input_loops<Chain>;
  static constexpr auto* weights = weights_loops<Chain>;
  static constexpr auto* bias = bias_loops;
};

#if LOCKSTEP_FMA_ON_REQUEST
/// Copies of the loops with the FMA instruction, into which they are inlined.
template <template <std::size_t> class Chain>
struct Fused {
  LOCKSTEP_FMA static void forward(Matrix<const float> x, PanelWeights w,
                                   std::span<const float> bias, Activation activation,
                                   Matrix<float> y, Range columns, Output output, Zeros zeros,
                                   std::span<float> scratch) {
    forward_loops<Chain>(x, w, bias, activation, y, columns, output, zeros, scratch);
  }
  LOCKSTEP_FMA static void input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                                 Activation below, Matrix<float> dx, Range inputs, Output output,
                                 std::span<float> scratch) {
    input_loops<Chain>(dz, w, x, below, dx, inputs, output, scratch);
  }
  LOCKSTEP_FMA static void weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                                   Range slice, std::span<float> dw, Zeros zeros,
                                   std::span<float> scratch) {
    weights_loops<Chain>(x, dz, leaf, slice, dw, zeros, scratch);
  }
  LOCKSTEP_FMA static void bias(Matrix<const float> dz, std::size_t leaf, Range slice,
                                std::span<float> db) {
    bias_loops(dz, leaf, slice, db);
  }
};
#endif

std::size_t no_scratch(std::size_t, std::size_t) noexcept { return 0; }
std::size_t no_weights_scratch(std::size_t, std::size_t, std::size_t, std::size_t) noexcept {
  return 0;
}

template <class Loops>
constexpr StrictProducts products{.simd = Simd::scalar,
                                  .forward = Loops::forward,
                                  .backward_input = Loops::input,
                                  .backward_weights = Loops::weights,
                                  .backward_bias = Loops::bias,
                                  .forward_scratch = no_scratch,
                                  .input_scratch = no_scratch,
                                  .weights_scratch = no_weights_scratch};

template <template <template <std::size_t> class> class Loops>
constexpr Bf16Products bf16{.round = round_loop, .products = products<Loops<Bf16Chain>>};

}  // namespace

const StrictProducts& scalar_products() noexcept {
#if LOCKSTEP_FMA_ON_REQUEST
  if (__builtin_cpu_supports("fma")) return products<Fused<Float32Chain>>;
#endif
  return products<Plain<Float32Chain>>;
}

const Bf16Products& scalar_bf16_products() noexcept {
#if LOCKSTEP_FMA_ON_REQUEST
  if (__builtin_cpu_supports("fma")) return bf16<Fused>;
#endif
  return bf16<Plain>;
}

}  // namespace lockstep
