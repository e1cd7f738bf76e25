// dX in vectors of examples: dz is transposed before, dx after, so that weights stay in panels.
//
// Included once for every target: this guard turns with Highway's.
#if defined(LOCKSTEP_STRICT_INPUT) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STRICT_INPUT
#undef LOCKSTEP_STRICT_INPUT
#else
#define LOCKSTEP_STRICT_INPUT
#endif

#include "lib/numerics/cpu/strict_tile-inl.hpp"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

struct InputTask {
  PanelWeights w;
  std::size_t k;
  const float* dz;  ///< transposed: [outputs][stride], from an example on
  std::size_t stride;
  float* dx;  ///< transposed: [k][input_columns]
  bool goes_on;
};

template <std::size_t R, std::size_t V>
struct InputTile {
  static void run(const InputTask& t) {
    const Panels& layout = t.w.layout;
    Sums<R, V> sums;
    if (t.goes_on) {
      load(sums, t.dx, input_columns);
    } else {
      clear(sums);
    }
    for (std::size_t panel = 0; panel < layout.panels(); ++panel) {
      const std::size_t width = layout.width(panel);
      const std::size_t j = panel * panel_columns;
      const float* weights = t.w.values.data() + layout.first_of(panel) + t.k * width;
      if (panel + 1 < layout.panels()) {
        const float* next =
            t.w.values.data() + layout.first_of(panel + 1) + t.k * layout.width(panel + 1);
        for (std::size_t c = 0; c < R * layout.width(panel + 1); c += panel_unit) {
          hwy::Prefetch(next + c);
        }
      }
      multiply_add<12>(sums, weights, width, 1, t.dz + j * t.stride, t.stride,
                       std::min(panel_columns, layout.outputs - j));
    }
    store(sums, t.dx, input_columns);
  }
};

using Square = std::array<Vector, lanes>;

/// Transposes 4 x 4 elements within the 128-bit blocks, then the blocks.
HWY_INLINE void transpose(Square& m) {
  Square u;
  LOCKSTEP_UNROLL for (std::size_t g = 0; g < lanes; g += 4) {
    const Vector even = hn::InterleaveLower(tag, m[g], m[g + 2]);
    const Vector odd = hn::InterleaveLower(tag, m[g + 1], m[g + 3]);
    const Vector upper_even = hn::InterleaveUpper(tag, m[g], m[g + 2]);
    const Vector upper_odd = hn::InterleaveUpper(tag, m[g + 1], m[g + 3]);
    u[g] = hn::InterleaveLower(tag, even, odd);
    u[g + 1] = hn::InterleaveUpper(tag, even, odd);
    u[g + 2] = hn::InterleaveLower(tag, upper_even, upper_odd);
    u[g + 3] = hn::InterleaveUpper(tag, upper_even, upper_odd);
  }
  LOCKSTEP_UNROLL for (std::size_t c = 0; c < 4; ++c) {
    if constexpr (lanes == 16) {
      const Vector low_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(u[4 + c]), u[c]);
      const Vector low_odd = hn::OddEvenBlocks(u[4 + c], hn::SwapAdjacentBlocks(u[c]));
      const Vector high_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(u[12 + c]), u[8 + c]);
      const Vector high_odd = hn::OddEvenBlocks(u[12 + c], hn::SwapAdjacentBlocks(u[8 + c]));
      m[c] = hn::ConcatLowerLower(tag, high_even, low_even);
      m[4 + c] = hn::ConcatLowerLower(tag, high_odd, low_odd);
      m[8 + c] = hn::ConcatUpperUpper(tag, high_even, low_even);
      m[12 + c] = hn::ConcatUpperUpper(tag, high_odd, low_odd);
    } else {
      m[c] = hn::ConcatLowerLower(tag, u[4 + c], u[c]);
      m[4 + c] = hn::ConcatUpperUpper(tag, u[4 + c], u[c]);
    }
  }
}

/// out[j * stride + i] = rows[i][first + j] for j below `columns`, and for i below the rows rounded
/// up to a unit: zero where rows has none.
void transpose_columns(Matrix<const float> rows, std::size_t first, std::size_t columns, float* out,
                       std::size_t stride) {
  for (std::size_t i = 0; i < round_to_unit(rows.rows); i += lanes) {
    for (std::size_t j = 0; j < columns; j += lanes) {
      const auto mask = first_lanes(columns - j);
      Square m;
      for (std::size_t r = 0; r < lanes; ++r) {
        m[r] = i + r < rows.rows
                   ? hn::MaskedLoad(mask, tag, rows.data + (i + r) * rows.cols + first + j)
                   : hn::Zero(tag);
      }
      transpose(m);
      for (std::size_t c = 0; c < lanes; ++c) hn::Store(m[c], tag, out + (j + c) * stride + i);
    }
  }
}

/// dx[i][k ..] of up to 16 inputs, from the transposed tile; zero where the layer below is shut.
void store_transposed(const float* tile, std::size_t k, Matrix<const float> x, Activation below,
                      Matrix<float> dx) {
  const std::size_t last = std::min(dx.cols, k + panel_unit);
  for (; k < last; k += lanes, tile += lanes * input_columns) {
    const auto mask = first_lanes(last - k);
    for (std::size_t i = 0; i < dx.rows; i += lanes) {
      Square m;
      LOCKSTEP_UNROLL for (std::size_t r = 0; r < lanes; ++r) {
        m[r] = hn::Load(tag, tile + r * input_columns + i);
      }
      transpose(m);
      for (std::size_t r = 0; r < std::min(lanes, dx.rows - i); ++r) {
        Vector a = one_nan(m[r]);
        if (below == Activation::relu) {
          const Vector in = hn::MaskedLoad(mask, tag, x.data + (i + r) * x.cols + k);
          a = hn::IfThenElseZero(hn::Gt(in, hn::Zero(tag)), a);
        }
        hn::BlendedStore(a, mask, tag, dx.data + (i + r) * dx.cols + k);
      }
    }
  }
}

/// Up to 64 examples, whose dz stands transposed in `dz` with `stride` columns.
void backward_input_block(const float* dz, std::size_t stride, PanelWeights w,
                          Matrix<const float> x, Activation below, Matrix<float> dx, Chain chain) {
  const bool goes_on = chain == Chain::goes_on;
  alignas(64) std::array<float, panel_unit * input_columns> tile{};
  for (std::size_t k = 0; k < dx.cols; k += panel_unit) {
    const std::size_t inputs = std::min(panel_unit, dx.cols - k);
    if (goes_on) transpose_columns(dx, k, inputs, tile.data(), input_columns);
    for (std::size_t i = 0; i < stride; i += most_columns) {
      const std::size_t columns = std::min(most_columns, stride - i);
      for_tiles(inputs, columns, [&](std::size_t r, std::size_t rows) HWY_ATTR {
        Dispatch<InputTile, InputTask>::call(
            rows, columns,
            {w, k + r, dz + i, stride, tile.data() + r * input_columns + i, goes_on});
      });
    }
    store_transposed(tile.data(), k, x, below, dx);
  }
}

void backward_input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x, Activation below,
                    Matrix<float> dx, Chain chain, std::span<float> scratch) {
  assert(dz.rows == dx.rows && dz.cols == w.layout.outputs && dx.cols == w.layout.inputs);
  assert(scratch.size() >= strict_scratch_size(dz.rows, dz.cols));
  for (std::size_t i = 0; i < dz.rows; i += input_columns) {
    const std::size_t rows = std::min(input_columns, dz.rows - i);
    const std::size_t stride = round_to_unit(rows);
    transpose_columns({dz.data + i * dz.cols, rows, dz.cols}, 0, dz.cols, scratch.data(), stride);
    const bool masked = below == Activation::relu;
    backward_input_block(scratch.data(), stride, w,
                         {masked ? x.data + i * x.cols : nullptr, rows, x.cols}, below,
                         {dx.data + i * dx.cols, rows, dx.cols}, chain);
  }
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // AVX2 or AVX3
#endif  // guard
