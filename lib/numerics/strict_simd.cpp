// The strict products in vectors: AVX-512, AVX2 and NEON, selected at run time.
//
// All three products use one register tile: R x V vectors of sums, and per step of the chain V
// vectors times R broadcast scalars. They differ in the operand that is broadcast and the one that
// is loaded as a vector:
//
//   forward   x[i][k]  times  w[k][j ..]    rows i, columns j, the chain runs over k
//   dX        w[k][j]  times  dz[i ..][j]   rows k, columns i, over j; dz and dx transposed
//   dW        x[i][k]  times  dz[i][j ..]   rows k, columns j, over the i of a leaf
//
// dX of few outputs is a forward pass through transposed weights.
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/numerics/amx.hpp"
#include "lockstep/numerics/bf16.hpp"
#include "lockstep/numerics/simd_targets.hpp"
#include "lockstep/numerics/strict.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/numerics/strict_simd.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must come first.
#include "lockstep/numerics/amx_weights-inl.hpp"
#include "lockstep/numerics/bf16-inl.hpp"
#include "lockstep/numerics/strict_bias-inl.hpp"
#include "lockstep/numerics/strict_tile-inl.hpp"
#include "lockstep/numerics/strict_weights-inl.hpp"

#if LOCKSTEP_HAS_KERNELS

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

struct ForwardTask {
  const float* x;
  std::size_t inputs;
  const float* weights;
  std::size_t width;  ///< of the panel
  const float* bias;  ///< null when accumulating into y
  float* y;
  std::size_t outputs;
  std::size_t columns;  ///< of y that exist from here on
  bool relu;
  const float* mask;  ///< as y: where it is not above zero, y becomes zero; null: no mask
  bool accumulate;
  const std::uint32_t* list;  ///< columns of x with a value that is not zero; null: all
  std::size_t listed;
};

/// Loads y, and zero beyond its columns.
template <std::size_t R, std::size_t V>
HWY_INLINE void load_rows(Sums<R, V>& sums, const ForwardTask& t) {
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
    const auto exist = first_lanes(t.columns - std::min(t.columns, v * lanes));
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      sums.at[r][v] = load(exist, t.y + r * t.outputs + v * lanes);
    }
  }
}

/// Terms before which a tile prefetches the same of the next tile's rows.
constexpr std::size_t prefetched_terms = 64;
static_assert(prefetched_terms % bf16_chunk == 0);

/// Prefetches `count` numbers of R rows.
template <std::size_t R>
HWY_INLINE void prefetch_rows(const float* first, std::size_t row, std::size_t count) {
  for (std::size_t r = 0; r < R; ++r, first += row) {
    for (std::size_t k = 0; k < count; k += panel_unit) hwy::Prefetch(first + k);
  }
}

template <class Chain, std::size_t R, std::size_t V>
struct ForwardTile {
  static void run(const ForwardTask& t) {
    Sums<R, V> sums;
    if (t.accumulate) {
      load_rows(sums, t);
    } else {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        const Vector bias = hn::LoadU(tag, t.bias + v * lanes);
        LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) sums.at[r][v] = bias;
      }
    }
    {
      const typename Chain::Mode mode;
      if (t.list == nullptr) {
        for (std::size_t k = 0; k < t.inputs; k += prefetched_terms) {
          const std::size_t terms = std::min(prefetched_terms, t.inputs - k);
          prefetch_rows<R>(t.x + R * t.inputs + k, t.inputs, terms);
          const Strided part{t.x + k, t.inputs, 1, t.weights + k * t.width, t.width};
          Chain::template add<12>(sums, part, terms);
        }
      } else {
        const Listed listed{t.x, t.inputs, t.weights, t.width, t.list};
        Chain::template add<list_ahead>(sums, listed, t.listed, t.inputs);
      }
    }
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        Vector a = output_of(sums.at[r][v], t.relu);
        const std::size_t at = r * t.outputs + v * lanes;
        if (t.mask != nullptr && v * lanes < t.columns) {
          const auto exist = first_lanes(t.columns - v * lanes);
          a = hn::IfThenElseZero(hn::Gt(load(exist, t.mask + at), hn::Zero(tag)), a);
        }
        float* y = t.y + at;
        if ((v + 1) * lanes <= t.columns) {
          hn::StoreU(a, tag, y);
        } else if (v * lanes < t.columns) {
          store(a, first_lanes(t.columns - v * lanes), y);
        }
      }
    }
  }
};

/// Of the columns of x from k on, a vector of them: those with a value that is not zero, of either
/// sign.
HWY_INLINE auto used_columns(Matrix<const float> x, std::size_t k) {
  const auto exist = first_lanes(x.cols - k);
  auto bits = hn::Zero(word_tag);
  for (std::size_t i = 0; i < x.rows; ++i) {
    const auto row = load(exist, x.data + i * x.cols + k);
    bits = hn::Or(bits, hn::BitCast(word_tag, row));
  }
  return hn::Ne(hn::ShiftLeft<1>(bits), hn::Zero(word_tag));  // without the signs
}

/// Writes the numbers of the used columns of x, and list_ahead more; returns how many, or x.cols if
/// a list does not pay, perhaps without one. In bf16 they are pairs of columns, named by the even
/// one; the list begins with the number of pairs in each chunk, and a last column without partner
/// is in it. Room for list_floats(x.cols).
template <class Chain>
std::size_t list_columns(Matrix<const float> x, std::uint32_t* list) {
  const auto pays = [](std::size_t used, std::size_t columns) {
    return used <= columns - columns / Chain::list_pays;
  };
  // A sample of every fourth vector detects inputs without zeros at a quarter of the cost.
  std::size_t seen = 0;
  std::size_t sampled = 0;
  for (std::size_t k = 0; k + lanes <= x.cols; k += 4 * lanes, seen += lanes) {
    sampled += hn::CountTrue(word_tag, used_columns(x, k));
  }
  if (!pays(sampled, seen)) return x.cols;
  std::uint32_t* counts = list;
  if constexpr (Chain::is_bf16) list += chunks_of(x.cols);
  std::size_t count = 0;
  std::uint32_t chunk = 0;  // bits of a chunk's columns in use
  for (std::size_t k = 0; k < x.cols; k += lanes) {
    for (std::size_t i = 0; i < x.rows; ++i) {  // rows that are listed next
      hwy::Prefetch(x.data + (x.rows + i) * x.cols + k);
    }
    const auto used = used_columns(x, k);
    if constexpr (Chain::is_bf16) {
      std::array<std::uint8_t, 8> stored{};
      hn::StoreMaskBits(word_tag, used, stored.data());
      const std::size_t bit = k % bf16_chunk;
      chunk |= std::uint32_t{stored[0]} << bit;
      if constexpr (lanes == 16) chunk |= std::uint32_t{stored[1]} << (bit + 8);
      if (bit + lanes < bf16_chunk && k + lanes < x.cols) continue;
      std::uint32_t pairs = (chunk | chunk >> 1) & 0x55555555U;
      if (k + lanes >= x.cols && x.cols % 2 == 1) pairs |= 1U << (x.cols - 1) % bf16_chunk;
      *counts++ = static_cast<std::uint32_t>(std::popcount(pairs));
      for (; pairs != 0; pairs &= pairs - 1) {
        list[count++] = static_cast<std::uint32_t>(k - bit) +
                        static_cast<std::uint32_t>(std::countr_zero(pairs));
      }
      chunk = 0;
    } else {
      const auto columns = hn::Iota(word_tag, static_cast<std::uint32_t>(k));
      hn::StoreU(hn::Compress(columns, used), word_tag, list + count);
      count += hn::CountTrue(word_tag, used);
    }
  }
  std::fill_n(list + count, list_ahead, count == 0 ? 0 : list[count - 1]);
  const std::size_t listed = Chain::is_bf16 ? 2 * count : count;
  return pays(listed, x.cols) ? listed : x.cols;
}

/// Room for the lists, and in bf16 for rounded factors behind them.
template <class Chain>
std::size_t forward_scratch_size(std::size_t rows, std::size_t inputs) noexcept {
  return forward_lists(rows, inputs) +
         (Chain::is_bf16 ? std::min(rows, forward_rows) * inputs : std::size_t{0});
}

/// A panel's part of y: tiles of rows, each with its list of columns if there are any.
struct ForwardCall {
  Matrix<const float> x;
  PanelWeights w;
  const float* bias;
  Activation activation;
  Matrix<float> y;
  Range columns;               ///< of y, the padded ones included
  const std::uint32_t* lists;  ///< of list_floats(x.cols) each; null: no tile has one
  const std::size_t* listed;   ///< lengths; x.cols: all columns, without a list
};

template <class Chain>
void forward_panels(const ForwardCall& c) {
  const Panels& layout = c.w.layout;
  for (std::size_t j = c.columns.begin, columns = 0; j < c.columns.end; j += columns) {
    const std::size_t panel = j / panel_columns;
    const std::size_t width = layout.width(panel);
    columns = std::min({max_columns, width - j % panel_columns, c.columns.end - j});
    ForwardTask task = {.x = nullptr,
                        .inputs = c.x.cols,
                        .weights = c.w.values.data() + layout.first_of(panel) + j % panel_columns,
                        .width = width,
                        .bias = c.bias == nullptr ? nullptr : c.bias + j,
                        .y = nullptr,
                        .outputs = c.y.cols,
                        .columns = c.y.cols - std::min(j, c.y.cols),
                        .relu = c.activation == Activation::relu,
                        .mask = nullptr,
                        .accumulate = c.bias == nullptr,
                        .list = nullptr,
                        .listed = 0};
    std::size_t tile = 0;
    // With lists, tiles have the same rows in every panel.
    for_tiles(c.x.rows, c.lists == nullptr ? max_rows(columns / lanes) : listed_tile_rows,
              [&](std::size_t i, std::size_t rows) HWY_ATTR {
                task.x = c.x.data + i * c.x.cols;
                task.y = c.y.data + i * c.y.cols + j;
                if (c.lists != nullptr) {
                  task.listed = c.listed[tile];
                  task.list =
                      task.listed == c.x.cols ? nullptr : c.lists + tile * list_floats(c.x.cols);
                  ++tile;
                }
                Dispatch<ForwardTile, Chain, ForwardTask, max_vectors, max_rows>::call(
                    rows, columns, task);
              });
  }
}

template <class Chain>
void forward(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
             Activation activation, Matrix<float> y, Range columns, Output output, Zeros zeros,
             std::span<float> scratch) {
  assert(x.rows == y.rows && x.cols == w.layout.inputs && y.cols == w.layout.outputs);
  const bool accumulate = output == Output::accumulate;
  assert(w.values.size() == w.layout.size());
  assert(accumulate || bias.size() == round_to_unit(y.cols));
  const bool lists = zeros == Zeros::automatic && y.cols >= min_listed_outputs;
  assert(!(lists || Chain::is_bf16) ||
         scratch.size() >= forward_scratch_size<Chain>(x.rows, x.cols));
  static_assert(max_rows(max_vectors) == listed_tile_rows);
  std::array<std::size_t, forward_rows / listed_tile_rows> listed;
  for (std::size_t i = 0; i < x.rows; i += forward_rows) {
    const Range range = {i, std::min(x.rows, i + forward_rows)};
    const std::size_t rows = range.size();
    Matrix<const float> part = x.slice(range);
    if constexpr (Chain::is_bf16) {
      float* const factors = scratch.data() + forward_lists(x.rows, x.cols);
      round(part.flat(), {factors, rows * x.cols});
      part = {factors, rows, x.cols};
    }
    auto* const list = reinterpret_cast<std::uint32_t*>(scratch.data());
    std::size_t tile = 0;
    if (lists) {
      for_tiles(rows, listed_tile_rows, [&](std::size_t first, std::size_t count) HWY_ATTR {
        listed[tile] = list_columns<Chain>(part.slice({first, first + count}),
                                           list + tile * list_floats(x.cols));
        ++tile;
      });
    }
    forward_panels<Chain>({.x = part,
                           .w = w,
                           .bias = accumulate ? nullptr : bias.data(),
                           .activation = activation,
                           .y = y.slice(range),
                           .columns = columns,
                           .lists = lists ? list : nullptr,
                           .listed = listed.data()});
  }
}

// dX: dz is transposed before and dx after the product, so that weights stay in panels.

struct InputTask {
  PanelWeights w;
  std::size_t k;
  const float* dz;  ///< transposed: [outputs][stride], from an example on
  std::size_t stride;
  float* dx;  ///< transposed: [k][input_columns]
  bool accumulate;
  // What is prefetched meanwhile: the ends of some rows of the block that store_transposed()
  // writes.
  const float* row;   ///< of dx
  const float* mask;  ///< of x; null: none
  std::size_t step;
  std::size_t rows;
  std::size_t last;  ///< column of a row
};

/// Prefetches a panel's share of the rows of a task. All of them at once would be more than the
/// processor keeps track of.
HWY_INLINE void prefetch_stored(const InputTask& t, std::size_t panel) {
  const std::size_t panels = t.w.layout.panels();
  const std::size_t end = t.rows * (panel + 1) / panels;
  for (std::size_t i = t.rows * panel / panels; i < end; ++i) {
    // A row may begin in the middle of a cache line.
    for (const std::size_t at : {i * t.step, i * t.step + t.last}) {
      hwy::Prefetch(t.row + at);
      if (t.mask != nullptr) hwy::Prefetch(t.mask + at);
    }
  }
}

template <class Chain, std::size_t R, std::size_t V>
struct InputTile {
  static void run(const InputTask& t) {
    const Panels& layout = t.w.layout;
    Sums<R, V> sums;
    if (t.accumulate) {
      load(sums, t.dx, input_columns);
    } else {
      clear(sums);
    }
    const typename Chain::Mode mode;
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
      prefetch_stored(t, panel);
      const Strided terms{weights, width, 1, t.dz + j * t.stride, t.stride};
      Chain::template add<12>(sums, terms, std::min(panel_columns, layout.outputs - j));
    }
    store(sums, t.dx, input_columns);
  }
};

/// out[j * stride + i] = rows[i][first + j], as a factor, for j below `columns`, and for i below
/// the number of rows rounded up to a unit: zero beyond the last row.
template <class Chain>
void transpose_columns(Matrix<const float> rows, std::size_t first, std::size_t columns, float* out,
                       std::size_t stride) {
  for (std::size_t i = 0; i < round_to_unit(rows.rows); i += lanes) {
    for (std::size_t j = 0; j < columns; j += lanes) {
      const auto exist = first_lanes(columns - j);
      Square m;
      for (std::size_t r = 0; r < lanes; ++r) {
        // The processor's own prefetch does not follow so many rows.
        hwy::Prefetch(rows.data + (i + r) * rows.cols + first + j + 2 * lanes);
        m[r] = i + r < rows.rows
                   ? Chain::factor(load(exist, rows.data + (i + r) * rows.cols + first + j))
                   : hn::Zero(tag);
      }
      transpose(m);
      for (std::size_t c = 0; c < lanes; ++c) hn::Store(m[c], tag, out + (j + c) * stride + i);
    }
  }
}

/// dx[i][k ..] of up to 16 inputs, from the transposed tile; zero where ReLU is inactive (x <= 0).
void store_transposed(const float* tile, std::size_t k, Matrix<const float> x, Activation below,
                      Matrix<float> dx) {
  const std::size_t last = std::min(dx.cols, k + panel_unit);
  for (; k < last; k += lanes, tile += lanes * input_columns) {
    const auto exist = first_lanes(last - k);
    for (std::size_t i = 0; i < dx.rows; i += lanes) {
      Square m;
      LOCKSTEP_UNROLL for (std::size_t r = 0; r < lanes; ++r) {
        m[r] = hn::Load(tag, tile + r * input_columns + i);
      }
      transpose(m);
      for (std::size_t r = 0; r < std::min(lanes, dx.rows - i); ++r) {
        Vector a = canonical(m[r]);
        if (below == Activation::relu) {
          const Vector in = load(exist, x.data + (i + r) * x.cols + k);
          a = hn::IfThenElseZero(hn::Gt(in, hn::Zero(tag)), a);
        }
        store(a, exist, dx.data + (i + r) * dx.cols + k);
      }
    }
  }
}

/// Up to 64 examples; `dz` holds their transposed dz with `stride` columns.
template <class Chain>
void backward_input_block(const float* dz, std::size_t stride, PanelWeights w,
                          Matrix<const float> x, Activation below, Matrix<float> dx, Range all,
                          Output output) {
  const bool accumulate = output == Output::accumulate;
  alignas(64) std::array<float, panel_unit * input_columns> tile{};
  for (std::size_t k = all.begin; k < std::min(all.end, dx.cols); k += panel_unit) {
    const std::size_t inputs = std::min(panel_unit, dx.cols - k);
    const std::size_t all_tiles = ceil_divide(stride, max_columns) * inputs;  // in inputs
    if (accumulate) transpose_columns<Float32Chain>(dx, k, inputs, tile.data(), input_columns);
    for (std::size_t i = 0; i < stride; i += max_columns) {
      const std::size_t columns = std::min(max_columns, stride - i);
      for_tiles(inputs, max_rows(columns / lanes), [&](std::size_t r, std::size_t rows) HWY_ATTR {
        const std::size_t done = i / max_columns * inputs + r;
        const std::size_t first = dx.rows * done / all_tiles;
        const std::size_t at = first * dx.cols + k;
        const InputTask task{.w = w,
                             .k = k + r,
                             .dz = dz + i,
                             .stride = stride,
                             .dx = tile.data() + r * input_columns + i,
                             .accumulate = accumulate,
                             .row = dx.data + at,
                             .mask = below == Activation::relu ? x.data + at : nullptr,
                             .step = dx.cols,
                             .rows = dx.rows * (done + rows) / all_tiles - first,
                             .last = inputs - 1};
        Dispatch<InputTile, Chain, InputTask, max_vectors, max_rows>::call(rows, columns, task);
      });
    }
    store_transposed(tile.data(), k, x, below, dx);
  }
}

/// dX of a layer of few outputs in float32 (dz is not rounded), as a forward pass through its
/// transposed weights: for so short chains the transpositions of dx would take longer than the
/// product.
void backward_input_of_few(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                           Activation below, Matrix<float> dx, Range inputs, Output output,
                           float* scratch) {
  assert(dz.cols <= panel_unit);  // one panel, with rows of a unit
  alignas(64) static constexpr std::array<float, max_columns> no_bias{};
  const std::size_t end = std::min(inputs.end, dx.cols);
  for (std::size_t first = inputs.begin; first < end; first += input_columns) {
    const std::size_t block = std::min(input_columns, end - first);
    transpose_columns<Float32Chain>({w.values.data() + first * panel_unit, block, panel_unit}, 0,
                                    dz.cols, scratch, input_columns);
    for (std::size_t k = 0; k < block; k += max_columns) {
      const std::size_t columns = std::min(max_columns, round_to_unit(block - k));
      ForwardTask task = {.x = nullptr,
                          .inputs = dz.cols,
                          .weights = scratch + k,
                          .width = input_columns,
                          .bias = no_bias.data(),
                          .y = nullptr,
                          .outputs = dx.cols,
                          .columns = dx.cols - first - k,
                          .relu = false,
                          .mask = nullptr,
                          .accumulate = output == Output::accumulate,
                          .list = nullptr,
                          .listed = 0};
      for_tiles(dx.rows, max_rows(columns / lanes), [&](std::size_t i, std::size_t rows) HWY_ATTR {
        const std::size_t at = i * dx.cols + first + k;
        task.x = dz.data + i * dz.cols;
        task.y = dx.data + at;
        if (below == Activation::relu) task.mask = x.data + at;
        Dispatch<ForwardTile, Float32Chain, ForwardTask, max_vectors, max_rows>::call(rows, columns,
                                                                                      task);
      });
    }
  }
}

/// Room for the transposed dz of a block, or the weights of few outputs.
std::size_t input_scratch_size(std::size_t, std::size_t outputs) noexcept {
  return round_to_unit(outputs) * input_columns;
}

template <class Chain>
void backward_input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x, Activation below,
                    Matrix<float> dx, Range inputs, Output output, std::span<float> scratch) {
  assert(dz.rows == dx.rows && dz.cols == w.layout.outputs && dx.cols == w.layout.inputs);
  assert(scratch.size() >= input_scratch_size(dz.rows, dz.cols));
  if (!Chain::is_bf16 && dz.cols <= panel_unit) {
    return backward_input_of_few(dz, w, x, below, dx, inputs, output, scratch.data());
  }
  for (std::size_t i = 0; i < dz.rows; i += input_columns) {
    const Range range = {i, std::min(dz.rows, i + input_columns)};
    const std::size_t stride = round_to_unit(range.size());
    transpose_columns<Chain>(dz.slice(range), 0, dz.cols, scratch.data(), stride);
    const auto mask = below == Activation::relu ? x.slice(range) : Matrix<const float>();
    backward_input_block<Chain>(scratch.data(), stride, w, mask, below, dx.slice(range), inputs,
                                output);
  }
}

}  // namespace

template <class Chain>
constexpr StrictProducts products_of{.simd = lanes == 16  ? Simd::avx512
                                             : lanes == 8 ? Simd::avx2
                                                          : Simd::neon,
                                     .forward = forward<Chain>,
                                     .backward_input = backward_input<Chain>,
                                     .backward_weights = backward_weights<Chain>,
                                     .backward_bias = backward_bias,
                                     .forward_scratch = forward_scratch_size<Chain>,
                                     .input_scratch = input_scratch_size,
                                     .weights_scratch = weights_scratch_size};

/// The products of one target.
extern const Kernels kernels;
constexpr Kernels kernels{.float32 = products_of<Float32Chain>,
                          .bf16 = {.round = round, .products = products_of<Bf16Chain>}};

}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_KERNELS

#if HWY_ONCE
namespace lockstep {
namespace {

/// Null if this build or this processor lacks the instructions.
const Kernels* find(Simd simd) noexcept {
  // Slow: queries the processor. NEON is the baseline of its builds; Highway asks for AES besides.
  [[maybe_unused]] static const auto supported = hwy::SupportedTargets() | HWY_ENABLED_BASELINE;
  [[maybe_unused]] const auto wanted = [simd](Simd name, auto target) {
    return (simd == name || simd == Simd::automatic) && (supported & target) != 0;
  };
#if HWY_TARGETS & HWY_AVX3
  if (wanted(Simd::avx512, HWY_AVX3)) return &N_AVX3::kernels;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (wanted(Simd::avx2, HWY_AVX2)) return &N_AVX2::kernels;
#endif
#if HWY_TARGETS & HWY_NEON
  if (wanted(Simd::neon, HWY_NEON)) return &N_NEON::kernels;
#endif
  static const Kernels scalar{scalar_products(), scalar_bf16_products()};
  return simd == Simd::scalar || simd == Simd::automatic ? &scalar : nullptr;
}

const Kernels& require(Simd simd) {
  if (const Kernels* kernels = find(simd)) return *kernels;
  throw ConfigError(std::string("this processor has no ") + simd_name(simd),
                    "use `simd=auto`: every choice gives the same bits");
}

}  // namespace

bool has_simd(Simd simd) noexcept { return find(simd) != nullptr; }

const StrictProducts& strict_products(Simd simd) { return require(simd).float32; }

const Bf16Products& bf16_products(Simd simd) {
  return simd == Simd::automatic && has_amx() ? *amx_products() : require(simd).bf16;
}

const Bf16Products* amx_products() noexcept {
#if HWY_TARGETS & HWY_AVX3
  // Operands are rounded by VCVTNE2PS2BF16, which every processor with AMX has.
  if (has_simd(Simd::avx512) && __builtin_cpu_supports("avx512bf16")) return &N_AVX3::by_amx;
#endif
  return nullptr;
}

std::size_t amx_operations() noexcept {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::multiply_tiles();
#else
  return 0;
#endif
}

const char* simd_name(Simd simd) noexcept {
  switch (simd) {
    case Simd::automatic: return "automatic";
    case Simd::scalar: return "scalar";
    case Simd::avx2: return "AVX2";
    case Simd::avx512: return "AVX-512";
    case Simd::neon: return "NEON";
  }
  return "";
}

}  // namespace lockstep
#endif