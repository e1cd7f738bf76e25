// The strict products in vectors: AVX-512 and AVX2, chosen at run time.
//
// One register tile serves all three products: R x V vectors of sums, and per step of the chain V
// vectors times R broadcast scalars. What differs is who is broadcast and who is a vector:
//
//   forward   x[i][k]  times  w[k][j ..]    rows i, columns j, the chain runs over k
//   dX        w[k][j]  times  dz[i ..][j]   rows k, columns i, over j; dz and dx transposed
//   dW        x[i][k]  times  dz[i][j ..]   rows k, columns j, over the i of a leaf
#include <string>

#include "lib/base/errors.hpp"
#include "lib/numerics/strict.hpp"

// AVX2 stays selectable in a build for newer processors, which Highway 1.0.3 refuses without this.
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/numerics/cpu/strict_kernels.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must stand first.
#include "lib/numerics/cpu/strict_input-inl.hpp"
#include "lib/numerics/cpu/strict_tile-inl.hpp"
#include "lib/numerics/cpu/strict_weights-inl.hpp"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

struct ForwardTask {
  const float* x;
  std::size_t inputs;
  const float* weights;
  std::size_t width;  ///< of the panel
  const float* bias;  ///< null where the chain goes on from y
  float* y;
  std::size_t outputs;
  std::size_t columns;  ///< of y that exist from here on
  bool relu;
  bool goes_on;
};

/// What y holds, and zero beyond its columns.
template <std::size_t R, std::size_t V>
HWY_INLINE void load_rows(Sums<R, V>& sums, const ForwardTask& t) {
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
    const auto mask = first_lanes(t.columns - std::min(t.columns, v * lanes));
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      sums.at[r][v] = hn::MaskedLoad(mask, tag, t.y + r * t.outputs + v * lanes);
    }
  }
}

template <std::size_t R, std::size_t V>
struct ForwardTile {
  static void run(const ForwardTask& t) {
    Sums<R, V> sums;
    if (t.goes_on) {
      load_rows(sums, t);
    } else {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        const Vector bias = hn::LoadU(tag, t.bias + v * lanes);
        LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) sums.at[r][v] = bias;
      }
    }
    multiply_add<12>(sums, t.x, t.inputs, 1, t.weights, t.width, t.inputs);
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        Vector a = one_nan(sums.at[r][v]);
        if (t.relu) a = hn::IfThenZeroElse(hn::Lt(a, hn::Zero(tag)), a);
        float* y = t.y + r * t.outputs + v * lanes;
        if ((v + 1) * lanes <= t.columns) {
          hn::StoreU(a, tag, y);
        } else if (v * lanes < t.columns) {
          hn::BlendedStore(a, first_lanes(t.columns - v * lanes), tag, y);
        }
      }
    }
  }
};

void forward(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
             Activation activation, Matrix<float> y, Chain chain) {
  const Panels& layout = w.layout;
  assert(x.rows == y.rows && x.cols == layout.inputs && y.cols == layout.outputs);
  const bool goes_on = chain == Chain::goes_on;
  assert(w.values.size() == layout.size());
  assert(goes_on || bias.size() == round_to_unit(y.cols));
  for (std::size_t j = 0, columns = 0; j < round_to_unit(y.cols); j += columns) {
    const std::size_t panel = j / panel_columns;
    const std::size_t width = layout.width(panel);
    columns = std::min(most_columns, width - j % panel_columns);
    for_tiles(x.rows, columns, [&](std::size_t i, std::size_t rows) HWY_ATTR {
      Dispatch<ForwardTile, ForwardTask>::call(
          rows, columns,
          {.x = x.data + i * x.cols,
           .inputs = x.cols,
           .weights = w.values.data() + layout.first_of(panel) + j % panel_columns,
           .width = width,
           .bias = goes_on ? nullptr : bias.data() + j,
           .y = y.data + i * y.cols + j,
           .outputs = y.cols,
           .columns = y.cols - std::min(j, y.cols),
           .relu = activation == Activation::relu,
           .goes_on = goes_on});
    });
  }
}

}  // namespace

extern const StrictProducts products;
constexpr StrictProducts products{.simd = lanes == 16 ? Simd::avx512 : Simd::avx2,
                                  .forward = forward,
                                  .backward_input = backward_input,
                                  .backward_weights = backward_weights,
                                  .backward_bias = backward_bias};

}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // AVX2 or AVX3

#if HWY_ONCE
namespace lockstep {
namespace {

/// Null where this build or this processor has no such instructions.
const StrictProducts* find(Simd simd) noexcept {
  [[maybe_unused]] static const auto supported =
      hwy::SupportedTargets();  // slow: asks the processor
  [[maybe_unused]] const auto wanted = [simd](Simd name, auto target) {
    return (simd == name || simd == Simd::automatic) && (supported & target) != 0;
  };
#if HWY_TARGETS & HWY_AVX3
  if (wanted(Simd::avx512, HWY_AVX3)) return &N_AVX3::products;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (wanted(Simd::avx2, HWY_AVX2)) return &N_AVX2::products;
#endif
  return simd == Simd::scalar || simd == Simd::automatic ? &scalar_products() : nullptr;
}

}  // namespace

bool has_simd(Simd simd) noexcept { return find(simd) != nullptr; }

const StrictProducts& strict_products(Simd simd) {
  if (const StrictProducts* products = find(simd)) return *products;
  throw ConfigError(
      std::string("this processor has no ") + (simd == Simd::avx512 ? "AVX-512" : "AVX2"),
      "use --simd auto: every choice gives the same bits");
}

std::size_t strict_scratch_size(std::size_t rows, std::size_t outputs) noexcept {
  const std::size_t columns = round_to_unit(outputs);
  const std::size_t for_input = columns * input_columns;
  const std::size_t for_weights =
      strip_tiles * block_levels(rows) * tile_floats + rows * (columns + strip_inputs) + panel_unit;
  return std::max(for_input, for_weights);
}

}  // namespace lockstep
#endif