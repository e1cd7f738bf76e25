// The reference of the strict products: the expressions of strict.hpp in plain loops.
//
// The loops are compiled twice: without the FMA instruction std::fma is a hundred times slower (the
// C library then computes the same bits in software).

#include <array>
#include <bit>
#include <cmath>
#include <limits>

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

LOCKSTEP_LOOPS void forward_loops(const Matrix<const float>& x, const PanelWeights& w,
                                  std::span<const float> bias, Activation activation,
                                  const Matrix<float>& y, Range all, Output output) {
  for (std::size_t i = 0; i < y.rows; ++i) {
    for (std::size_t j = all.begin; j < std::min(all.end, y.cols); j += panel_unit) {
      const std::size_t columns = std::min(panel_unit, y.cols - j);
      const float* weights = w.values.data() + w.layout.index(0, j);
      Unit sums{};
      const float* start = output == Output::overwrite ? bias.data() : y.data + i * y.cols;
      for (std::size_t c = 0; c < columns; ++c) sums[c] = start[j + c];
      for (std::size_t k = 0; k < x.cols; ++k, weights += w.layout.width(j / panel_columns)) {
        const float factor = x.data[i * x.cols + k];
        for (std::size_t c = 0; c < panel_unit; ++c) {
          sums[c] = __builtin_fmaf(factor, weights[c], sums[c]);
        }
      }
      for (std::size_t c = 0; c < columns; ++c) {
        const float a = canonical(sums[c]);
        y.data[i * y.cols + j + c] = activation == Activation::relu && a < 0 ? 0.0F : a;
      }
    }
  }
}

LOCKSTEP_LOOPS void input_loops(const Matrix<const float>& dz, const PanelWeights& w,
                                const Matrix<const float>& x, Activation below,
                                const Matrix<float>& dx, Output output) {
  for (std::size_t i = 0; i < dx.rows; ++i) {
    for (std::size_t k = 0; k < dx.cols; ++k) {
      float a = output == Output::overwrite ? 0 : dx.data[i * dx.cols + k];
      for (std::size_t j = 0; j < dz.cols; ++j) {
        a = __builtin_fmaf(dz.data[i * dz.cols + j], w.values[w.layout.index(k, j)], a);
      }
      const bool active = below != Activation::relu || x.data[i * x.cols + k] > 0;
      dx.data[i * dx.cols + k] = active ? canonical(a) : 0.0F;
    }
  }
}

/// The sums of one leaf: of x[i][k] dz[i][j .. j+15], or of dz alone where x is empty.
LOCKSTEP_LOOPS Unit leaf_sums(const Matrix<const float>& x, const Matrix<const float>& dz,
                              std::size_t first, std::size_t last, std::size_t k, std::size_t j) {
  const std::size_t columns = j < dz.cols ? std::min(panel_unit, dz.cols - j) : 0;
  Unit sums{};
  for (std::size_t i = first; i < last; ++i) {
    const float* row = dz.data + i * dz.cols + j;
    if (x.data == nullptr) {
      for (std::size_t c = 0; c < columns; ++c) sums[c] = sums[c] + row[c];
    } else {
      const float factor = x.data[i * x.cols + k];
      for (std::size_t c = 0; c < columns; ++c) {
        sums[c] = __builtin_fmaf(factor, row[c], sums[c]);
      }
    }
  }
  return sums;
}

/// One pass over the leaves for 16 columns, with pending nodes (without their right sibling yet).
LOCKSTEP_LOOPS Unit tree_sums(const Matrix<const float>& x, const Matrix<const float>& dz,
                              std::size_t leaf, std::size_t k, std::size_t j) {
  const std::size_t leaves = (dz.rows + leaf - 1) / leaf;
  std::array<Unit, std::numeric_limits<std::size_t>::digits> waiting;
  std::size_t count = 0;
  for (std::size_t q = 0; q < leaves; ++q) {
    Unit node = leaf_sums(x, dz, q * leaf, std::min(dz.rows, (q + 1) * leaf), k, j);
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

LOCKSTEP_LOOPS void weights_loops(const Matrix<const float>& x, const Matrix<const float>& dz,
                                  std::size_t leaf, Range slice, std::span<float> dw) {
  const Panels layout{x.cols, dz.cols};
  for (std::size_t at = slice.begin; at < slice.end; at += panel_unit) {
    const PanelBlock block = layout.block_at(at, at + panel_unit);
    const Unit root = tree_sums(x, dz, leaf, block.first_row, block.column);
    std::copy(root.begin(), root.end(), dw.begin() + static_cast<std::ptrdiff_t>(at - slice.begin));
  }
}

LOCKSTEP_LOOPS void bias_loops(const Matrix<const float>& dz, std::size_t leaf, Range slice,
                               std::span<float> db) {
  for (std::size_t j = slice.begin; j < slice.end; j += panel_unit) {
    const Unit root = tree_sums({}, dz, leaf, 0, j);
    std::copy(root.begin(), root.end(), db.begin() + static_cast<std::ptrdiff_t>(j - slice.begin));
  }
}

/// The loops as separate functions with the signatures of StrictProducts.
struct Plain {
  static void forward(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
                      Activation activation, Matrix<float> y, Range columns, Output output, Zeros,
                      std::span<float>) {
    forward_loops(x, w, bias, activation, y, columns, output);
  }
  static void input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x, Activation below,
                    Matrix<float> dx, Output output, std::span<float>) {
    input_loops(dz, w, x, below, dx, output);
  }
  static void weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf, Range slice,
                      std::span<float> dw, Zeros, std::span<float>) {
    weights_loops(x, dz, leaf, slice, dw);
  }
  static void bias(Matrix<const float> dz, std::size_t leaf, Range slice, std::span<float> db) {
    bias_loops(dz, leaf, slice, db);
  }
};

#if LOCKSTEP_FMA_ON_REQUEST
/// The same, with the FMA instruction.
struct Fused {
  LOCKSTEP_FMA static void forward(Matrix<const float> x, PanelWeights w,
                                   std::span<const float> bias, Activation activation,
                                   Matrix<float> y, Range columns, Output output, Zeros,
                                   std::span<float>) {
    forward_loops(x, w, bias, activation, y, columns, output);
  }
  LOCKSTEP_FMA static void input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                                 Activation below, Matrix<float> dx, Output output,
                                 std::span<float>) {
    input_loops(dz, w, x, below, dx, output);
  }
  LOCKSTEP_FMA static void weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                                   Range slice, std::span<float> dw, Zeros, std::span<float>) {
    weights_loops(x, dz, leaf, slice, dw);
  }
  LOCKSTEP_FMA static void bias(Matrix<const float> dz, std::size_t leaf, Range slice,
                                std::span<float> db) {
    bias_loops(dz, leaf, slice, db);
  }
};
#endif

template <class Loops>
constexpr StrictProducts products{.simd = Simd::scalar,
                                  .forward = Loops::forward,
                                  .backward_input = Loops::input,
                                  .backward_weights = Loops::weights,
                                  .backward_bias = Loops::bias};

}  // namespace

const StrictProducts& scalar_products() noexcept {
#if LOCKSTEP_FMA_ON_REQUEST
  if (__builtin_cpu_supports("fma")) return products<Fused>;
#endif
  return products<Plain>;
}

}  // namespace lockstep
