// The register tile of all strict products: sums, the chain of multiply-adds, dispatch.
//
// Included once per target: the include guard toggles with Highway's.
#if defined(LOCKSTEP_STRICT_TILE) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STRICT_TILE
#undef LOCKSTEP_STRICT_TILE
#else
#define LOCKSTEP_STRICT_TILE
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "lockstep/numerics/bf16.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/numerics/machine.hpp"
#include "lockstep/numerics/simd_targets.hpp"
#include "lockstep/numerics/strict.hpp"

#ifndef LOCKSTEP_STRICT_SIZES
#define LOCKSTEP_STRICT_SIZES
namespace lockstep {
namespace {

constexpr std::size_t input_columns = 64;       // examples of a block of dx; of few outputs, inputs
constexpr std::size_t most_section_rows = 512;  // examples of dw; dz of a tile of them stays in L2
constexpr std::size_t group_inputs = 16;        // inputs of x packed together: a cache line
constexpr std::size_t tile_floats = 24 * 16;    // of dW, at most
/// Pending nodes of a section, at most: of leaves of one example.
constexpr auto max_waiting = static_cast<std::size_t>(std::bit_width(most_section_rows - 1));

// Zeros of x. Forward: a list of the columns that a tile of rows needs. dW: for each input a word
// of mask_rows bits, the examples where it is not zero.
constexpr std::size_t forward_rows = 384;        // the most that are listed at once
constexpr std::size_t listed_tile_rows = 6;      // of a tile of whole panels
constexpr std::size_t list_ahead = 12;           // rows of the weights to prefetch
constexpr std::size_t min_listed_outputs = 256;  // fewer do not pay for the lists
constexpr std::size_t mask_rows = 32;
constexpr std::size_t mask_words = 16;

constexpr std::size_t chunks_of(std::size_t terms) { return ceil_divide(terms, bf16_chunk); }

/// Room for a list of columns: in bf16 a number for each chunk, the prefetched entries, and a
/// vector that is stored past the end.
constexpr std::size_t list_floats(std::size_t inputs) {
  return chunks_of(inputs) + inputs + list_ahead + panel_unit;
}

/// Room for the lists of all tiles of a call of forward; behind it are the factors x in bf16.
constexpr std::size_t forward_lists(std::size_t rows, std::size_t inputs) {
  const std::size_t tiles = ceil_divide(std::min(rows, forward_rows), listed_tile_rows);
  return round_to_unit(tiles * list_floats(inputs));
}

constexpr std::size_t mask_rounds(std::size_t rows) { return ceil_divide(rows, mask_rows); }

/// Pending nodes of sections that dW needs room for, beside dw itself; `node`: the rows of one.
constexpr std::size_t section_levels(std::size_t rows, std::size_t node) {
  const std::size_t last = rows <= node ? 0 : (rows - 1) / node;
  return last == 0 ? 0 : static_cast<std::size_t>(std::bit_width(last)) - 1;
}

/// How dW is cut for the caches. Bits do not depend on it.
struct WeightsBlocking {
  std::size_t rows;    ///< of a section, at most: x of a group of inputs stays in L1
  std::size_t inputs;  ///< of a strip: their x stays in L2, beside dz of a tile's columns

  std::size_t groups() const { return inputs / group_inputs; }
};

constexpr std::size_t least_section_rows = 64;
constexpr std::size_t most_groups = 64;  // of a strip: a bit each
static_assert(least_section_rows % bf16_chunk == 0 && most_section_rows % least_section_rows == 0);

/// At most two thirds of L1 are for x of a group, and a quarter of L2 for x of a strip.
inline WeightsBlocking weights_blocking() {
  const CacheSizes caches = cache_sizes();
  constexpr std::size_t row = group_inputs * sizeof(float);
  const std::size_t rows =
      std::clamp(std::bit_floor(caches.first * 2 / 3 / row), least_section_rows, most_section_rows);
  const std::size_t groups =
      std::clamp<std::size_t>(caches.second / 4 / (rows * row), 1, most_groups);
  return {.rows = rows, .inputs = groups * group_inputs};
}

/// Sections of the scratch of dW: where they end, in floats.
struct WeightsScratch {
  std::size_t node;      ///< rows of a node: of whole leaves, in one section, or of one leaf
  std::size_t rows;      ///< of a section
  std::size_t columns;   ///< dz: [columns of a tile][row][column]
  std::size_t factors;   ///< x of a strip: [group][row][group_inputs]
  std::size_t masks;     ///< of a strip: [group][row / mask_rows][mask_words]
  std::size_t sections;  ///< nodes of sections: [level][slice]

  WeightsScratch(const WeightsBlocking& blocking, std::size_t all_rows, std::size_t outputs,
                 std::size_t leaf, std::size_t slice)
      : node(node_rows(blocking.rows, leaf)),
        rows(std::min({all_rows, node, blocking.rows})),
        columns(rows * round_to_unit(outputs)),
        factors(columns + rows * blocking.inputs),
        masks(factors + blocking.groups() * mask_rounds(rows) * mask_words),
        sections(masks + section_levels(all_rows, node) * slice) {
    // A leaf of several sections waits from one to the next: the first one in dw.
    if (leaf > blocking.rows && all_rows > leaf) sections += slice;
  }
};

}  // namespace

/// The products of one set of instructions.
struct Kernels {
  StrictProducts float32;
  Bf16Products bf16;
};

}  // namespace lockstep
#endif

// Unrolled at every optimisation level, so that tiles stay in registers.
#undef LOCKSTEP_UNROLL
#define LOCKSTEP_UNROLL _Pragma("GCC unroll 16")

#if LOCKSTEP_HAS_KERNELS

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> tag;
using Vector = hn::Vec<decltype(tag)>;
constexpr std::size_t lanes = hn::MaxLanes(tag);
constexpr std::size_t max_vectors = lanes == 8 ? 2 : 4;
constexpr std::size_t max_columns = max_vectors * lanes;

/// Rows of a tile of V vectors: limited by the number of registers (32, of AVX2 16).
constexpr std::size_t max_rows(std::size_t vectors) { return lanes == 16 && vectors < 4 ? 8 : 6; }

template <std::size_t R, std::size_t V>
struct Sums {
  HWY_ATTR Sums() = default;  // GCC 12 forgets the target of an implicit one
  Vector at[R][V];
};

template <std::size_t R, std::size_t V>
HWY_INLINE void clear(Sums<R, V>& sums) {
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) sums.at[r][v] = hn::Zero(tag);
  }
}

template <std::size_t R, std::size_t V>
HWY_INLINE void load(Sums<R, V>& sums, const float* in, std::size_t row) {
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      sums.at[r][v] = hn::Load(tag, in + r * row + v * lanes);
    }
  }
}

template <std::size_t R, std::size_t V>
HWY_INLINE void store(const Sums<R, V>& sums, float* out, std::size_t row) {
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      hn::Store(sums.at[r][v], tag, out + r * row + v * lanes);
    }
  }
}

/// sums = older + sums.
template <std::size_t R, std::size_t V>
HWY_INLINE void add(const Sums<R, V>& older, Sums<R, V>& sums) {
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      sums.at[r][v] = hn::Add(older.at[r][v], sums.at[r][v]);
    }
  }
}

/// sums[r][c] = fma(factor(r), b[c], sums[r][c]).
template <std::size_t R, std::size_t V, class Factor>
HWY_INLINE void add_term(Sums<R, V>& sums, Factor factor, const float* b) {
  Vector columns[V];
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) columns[v] = hn::LoadU(tag, b + v * lanes);
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    const Vector broadcast = hn::Set(tag, factor(r));
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      sums.at[r][v] = hn::MulAdd(broadcast, columns[v], sums.at[r][v]);
    }
  }
}

/// The same with factors a[r * row].
template <std::size_t R, std::size_t V>
HWY_INLINE void add_term(Sums<R, V>& sums, const float* a, std::size_t row, const float* b) {
  const auto factor = [=](std::size_t r) { return a[r * row]; };
  add_term(sums, factor, b);
}

/// Prefetches the cache lines of V vectors of columns; a line begins at b.
template <std::size_t V>
HWY_INLINE void prefetch_columns(const float* b) {
  LOCKSTEP_UNROLL for (std::size_t c = 0; c < V * lanes; c += panel_unit) hwy::Prefetch(b + c);
}

/// A number that is known to compilers, as most strides are: loops then take fewer instructions.
template <std::size_t number>
using Constant = std::integral_constant<std::size_t, number>;

/// add_term() of a + t * step and b + t * stride for t = 0 .. count-1. Prefetches b that many rows
/// ahead; 0 if it is in L1 already. Stride: std::size_t or a Constant.
template <std::size_t ahead, std::size_t R, std::size_t V, class Stride>
HWY_INLINE void add_terms(Sums<R, V>& sums, const float* a, std::size_t row, std::size_t step,
                          const float* b, Stride stride, std::size_t count) {
  for (const float* const end = a + count * step; a != end; a += step, b += stride) {
    if constexpr (ahead > 0) prefetch_columns<V>(b + ahead * stride);
    add_term(sums, a, row, b);
  }
}

/// The same for the `count` rows of b, and factors, that `list` names. The list goes on with any
/// rows of b, to prefetch.
template <std::size_t ahead, std::size_t R, std::size_t V, class Stride>
HWY_INLINE void add_listed_terms(Sums<R, V>& sums, const float* a, std::size_t row, const float* b,
                                 Stride stride, const std::uint32_t* list, std::size_t count) {
  const float* rows[R];
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    rows[r] = a + r * row;
    asm("" : "+r"(rows[r]));  // else GCC adds up the addresses anew for each term
  }
  for (const std::uint32_t* const end = list + count; list != end; ++list) {
    prefetch_columns<V>(b + list[ahead] * stride);
    const std::size_t n = *list;
    const auto factor = [&rows, n](std::size_t r) { return rows[r][n]; };
    add_term(sums, factor, b + n * stride);
  }
}

/// The first lanes of a vector, at most all: load() gives zero for the others, store() leaves their
/// memory as it is, and neither touches it.
#if HWY_TARGET == HWY_NEON  // whose masked operations touch all lanes
using FirstLanes = std::size_t;
HWY_INLINE FirstLanes first_lanes(std::size_t count) { return std::min(count, lanes); }
HWY_INLINE Vector load(FirstLanes exist, const float* in) {
  if (exist == lanes) return hn::LoadU(tag, in);
  std::array<float, lanes> all{};
  std::copy_n(in, exist, all.data());
  return hn::LoadU(tag, all.data());
}
HWY_INLINE void store(Vector a, FirstLanes exist, float* out) {
  if (exist == lanes) return hn::StoreU(a, tag, out);
  std::array<float, lanes> all;
  hn::StoreU(a, tag, all.data());
  std::copy_n(all.data(), exist, out);
}
#else
using FirstLanes = hn::Mask<decltype(tag)>;
HWY_INLINE FirstLanes first_lanes(std::size_t count) {
  return hn::FirstN(tag, std::min(count, lanes));
}
HWY_INLINE Vector load(FirstLanes exist, const float* in) { return hn::MaskedLoad(exist, tag, in); }
HWY_INLINE void store(Vector a, FirstLanes exist, float* out) {
  hn::BlendedStore(a, exist, tag, out);
}
#endif

/// The value written for a sum: +0 for -0, and one NaN.
HWY_INLINE Vector canonical(Vector a) {
  return hn::IfThenElse(hn::IsNaN(a), hn::Set(tag, std::numeric_limits<float>::quiet_NaN()),
                        hn::Add(a, hn::Zero(tag)));
}

using Square = Vector[lanes];

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
    } else if constexpr (lanes == 8) {
      m[c] = hn::ConcatLowerLower(tag, u[4 + c], u[c]);
      m[4 + c] = hn::ConcatUpperUpper(tag, u[4 + c], u[c]);
    } else {
      m[c] = u[c];
    }
  }
}

/// y of a sum.
HWY_INLINE Vector output_of(Vector sum, bool relu) {
  const Vector a = canonical(sum);
  return relu ? hn::IfThenZeroElse(hn::Lt(a, hn::Zero(tag)), a) : a;
}

/// Calls Kernel<Chain, R, V>::run(task) for numbers of rows and columns that are known at run time
/// only: up to `vectors` vectors of columns, and rows_of(V) rows.
template <template <class, std::size_t, std::size_t> class Kernel, class Chain, class Task,
          std::size_t vectors, auto rows_of>
struct Dispatch {
  using Function = void (*)(const Task&);

  template <std::size_t V, std::size_t... R>
  static constexpr std::array<Function, sizeof...(R)> heights(std::index_sequence<R...>) {
    return {Kernel<Chain, R + 1, V>::run...};
  }
  template <std::size_t V>
  static constexpr auto functions = heights<V>(std::make_index_sequence<rows_of(V)>{});

  static void call(std::size_t rows, std::size_t columns, const Task& task) {
    if constexpr (lanes == 16) {
      if (columns == 16) return functions<1>[rows - 1](task);
      if constexpr (vectors > 2) {
        if (columns == 32) return functions<2>[rows - 1](task);
        if (columns == 48) return functions<3>[rows - 1](task);
      }
    }
    functions<vectors>[rows - 1](task);
  }
};

/// Splits `rows` into the fewest near-equal parts of at most `most`: work(first, count).
template <class Work>
HWY_INLINE void for_tiles(std::size_t rows, std::size_t most, Work work) {
  const std::size_t parts = ceil_divide(rows, most);
  for (std::size_t part = 0, first = 0; part < parts; ++part) {
    const std::size_t count = rows / parts + (part < rows % parts ? 1 : 0);
    work(first, count);
    first += count;
  }
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_KERNELS
#endif  // guard
