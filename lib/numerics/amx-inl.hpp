// Forward and dX in bf16 by AMX, and the tiles of all three products: 16 x 16 sums, to which an
// instruction adds 32 terms (bf16.hpp).
//
// TDPBF16PS adds to a tile C of 16 x 16 floats the products of a tile A, 16 rows of up to 16 pairs
// of terms, and a tile B, as many pairs of 16 columns: a chunk of bf16.hpp. A pair is a word of two
// bf16, the even term in its lower half. Operands are packed into blocks of one tile each; the
// blocks of the same rows of A, or columns of B, follow each other along the terms:
//
//   A   block[rows / 16][chunk]: 16 rows of 16 words
//   B   block[columns / 16][chunk]: 16 pairs of 16 words
//
//   forward   A is x[i][k], B is w[k][j]    rows i, columns j, terms k
//   dX        A is dz[i][j], B is w[k][j]   rows i, columns k, terms j
//   dW        A is x[i][k], B is dz[i][j]   rows k, columns j, terms i: amx_weights-inl.hpp
//
// Source   Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.
//
// Included once per target: the include guard toggles with Highway's. There are kernels for one.
#if defined(LOCKSTEP_AMX) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_AMX
#undef LOCKSTEP_AMX
#else
#define LOCKSTEP_AMX
#endif

#include "lockstep/numerics/amx.hpp"
#include "lockstep/numerics/bf16-inl.hpp"

#undef LOCKSTEP_HAS_AMX
#define LOCKSTEP_HAS_AMX (HWY_TARGET == HWY_AVX3)

#if LOCKSTEP_HAS_AMX

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

constexpr std::size_t tile_size = 16;  // rows, columns and pairs
constexpr std::size_t block_words = tile_size * tile_size;
constexpr std::size_t most_tiles = 2;  // of rows, and of columns, whose sums are in tiles together
constexpr std::size_t most_sums = most_tiles * tile_size;
constexpr std::size_t packed_rows = 384;  // of A in forward and dX: with 700 terms half a MiB

static_assert(2 * tile_size == bf16_chunk && lanes == tile_size);

// The instructions, in assembly: compilers accept the intrinsics only in functions with the target
// amx-tile, into which functions of this target cannot be inlined. Tiles 0 to 3 are sums, 4 and 5
// are of A, 6 and 7 of B.

template <int number>
HWY_INLINE void load_tile(const void* rows, std::size_t step_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(rows), "r"(step_bytes), "i"(number)
               : "memory");
}

template <int number>
HWY_INLINE void store_tile(void* rows, std::size_t step_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(rows), "r"(step_bytes), "i"(number)
               : "memory");
}

template <int number>
HWY_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(number));
}

/// sums += a b.
template <int sums, int a, int b>
HWY_INLINE void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}

/// A word of `low` and `high` rounded to bf16, of each of their pairs of lanes: neighbours in low,
/// then in high.
HWY_INLINE Words words_of_neighbours(Vector low, Vector high) {
  Words words;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(words.raw) : "v"(high.raw), "v"(low.raw));
  return words;
}

/// A word of each lane: of `even` below, of `odd` above.
HWY_INLINE Words words_of_lanes(Vector even, Vector odd) {
  alignas(64) static constexpr std::array<std::uint16_t, 2 * tile_size> order = [] {
    std::array<std::uint16_t, 2 * tile_size> halves{};
    for (std::size_t n = 0; n < halves.size(); ++n) {
      halves[n] = static_cast<std::uint16_t>(n / 2 + n % 2 * tile_size);
    }
    return halves;
  }();
  return Words{_mm512_permutexvar_epi16(_mm512_load_si512(order.data()),
                                        words_of_neighbours(even, odd).raw)};
}

HWY_INLINE Vector row_or_zero(bool exists, FirstLanes columns, const float* row) {
  return exists ? load(columns, row) : hn::Zero(tag);
}

HWY_INLINE void store_words(Words words, std::uint32_t* out) { hn::Store(words, word_tag, out); }

/// Configures the tiles for `pairs` pairs in a row of A and rows of B, until the end of the scope.
class TileConfiguration {
 public:
  explicit TileConfiguration(std::size_t pairs) {
    Operand all;
    const auto bytes = static_cast<std::uint16_t>(pairs * sizeof(std::uint32_t));
    for (std::size_t n = 0; n < 8; ++n) {
      all.row_bytes[n] = n == 4 || n == 5 ? bytes : tile_size * sizeof(float);
      all.rows[n] = n < 6 ? tile_size : static_cast<std::uint8_t>(pairs);
    }
    asm volatile("ldtilecfg %0" : : "m"(all));
  }
  ~TileConfiguration() { asm volatile("tilerelease"); }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;

 private:
  /// The operand of LDTILECFG.
  struct Operand {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::array<std::uint8_t, 14> reserved{};
    std::array<std::uint16_t, 16> row_bytes{};
    std::array<std::uint8_t, 16> rows{};
  };
  static_assert(sizeof(Operand) == 64);
};

/// Blocks of the first tile of rows (columns); those of the next one are `a_step` (`b_step`) words
/// further on.
struct TileTerms {
  const std::uint32_t* a;
  std::size_t a_step;
  const std::uint32_t* b;
  std::size_t b_step;
  std::size_t chunks;

  HWY_INLINE void advance() {
    a += block_words;
    b += block_words;
    --chunks;
  }
};

/// Adds the first chunk to R x V tiles of sums: 0 and 1 of the first tile of rows, 2 and 3 of the
/// second one. Calls before<n>() right before it adds to tile n.
template <std::size_t R, std::size_t V, class Before>
HWY_INLINE void add_chunk(const TileTerms& t, Before before) {
  constexpr std::size_t row_bytes = tile_size * sizeof(std::uint32_t);
  load_tile<4>(t.a, row_bytes);
  load_tile<6>(t.b, row_bytes);
  before.template operator()<0>();
  add_products<0, 4, 6>();
  if constexpr (V == 2) {
    load_tile<7>(t.b + t.b_step, row_bytes);
    before.template operator()<1>();
    add_products<1, 4, 7>();
  }
  if constexpr (R == 2) {
    load_tile<5>(t.a + t.a_step, row_bytes);
    before.template operator()<2>();
    add_products<2, 5, 6>();
    if constexpr (V == 2) {
      before.template operator()<3>();
      add_products<3, 5, 7>();
    }
  }
}

/// Adds all chunks.
template <std::size_t R, std::size_t V>
HWY_INLINE void add_chunks(TileTerms t) {
  for (; t.chunks > 0; t.advance()) add_chunk<R, V>(t, []<int>() HWY_ATTR {});
}

/// Initial values of R x V tiles: rows of 16 V floats, row_bytes apart. If row_bytes is 0, every
/// row has the same values.
struct FirstSums {
  const float* rows;
  std::size_t row_bytes;
};
constexpr std::size_t sum_row_bytes = most_sums * sizeof(float);

/// Where tile `number` of such tiles begins, in bytes.
constexpr std::size_t sum_offset(std::size_t number, std::size_t row_bytes) {
  return (number / 2 * row_bytes + number % 2 * sizeof(float)) * tile_size;
}
template <int number>
HWY_INLINE void load_sum(FirstSums sums) {
  const auto* bytes = reinterpret_cast<const std::byte*>(sums.rows);
  load_tile<number>(bytes + sum_offset(number, sums.row_bytes), sums.row_bytes);
}
template <int number>
HWY_INLINE void store_sum(float* sums) {
  auto* bytes = reinterpret_cast<std::byte*>(sums);
  store_tile<number>(bytes + sum_offset(number, sum_row_bytes), sum_row_bytes);
}

/// Calls each<n>() for the tiles n of R x V.
template <std::size_t R, std::size_t V, class Each>
HWY_INLINE void for_sums(Each each) {
  each.template operator()<0>();
  if constexpr (V == 2) each.template operator()<1>();
  if constexpr (R == 2) each.template operator()<2>();
  if constexpr (R == 2 && V == 2) each.template operator()<3>();
}
template <std::size_t R, std::size_t V>
HWY_INLINE void store_sums(float* sums) {
  for_sums<R, V>([&]<int number>() HWY_ATTR { store_sum<number>(sums); });
}

/// sums = first + the products.
template <std::size_t R, std::size_t V>
void sum_products(const TileTerms& terms, FirstSums first, float* sums) {
  for_sums<R, V>([&]<int number>() HWY_ATTR { load_sum<number>(first); });
  add_chunks<R, V>(terms);
  store_sums<R, V>(sums);
}

/// sum_products by whether there is a second tile of rows, and of columns.
constexpr decltype(&sum_products<1, 1>) sum_kernels[2][2] = {
    {sum_products<1, 1>, sum_products<1, 2>}, {sum_products<2, 1>, sum_products<2, 2>}};

constexpr std::size_t tiles_of(std::size_t rows) { return ceil_divide(rows, tile_size); }

/// Packs A, terms along the columns: zero beyond rows and columns.
void pack_tiles_of_rows(Matrix<const float> rows, std::uint32_t* out) {
  const std::size_t chunks = chunks_of(rows.cols);
  for (std::size_t i = 0; i < round_to_unit(rows.rows); ++i) {
    std::uint32_t* words = out + (i / tile_size * chunks * tile_size + i % tile_size) * tile_size;
    for (std::size_t k = 0; k < rows.cols; k += bf16_chunk, words += block_words) {
      const float* row = rows.data + i * rows.cols + k;
      const std::size_t left = rows.cols - k;
      const Vector low = row_or_zero(i < rows.rows, first_lanes(left), row);
      const Vector high = row_or_zero(i < rows.rows && left > lanes,
                                      first_lanes(left - std::min(left, lanes)), row + lanes);
      store_words(words_of_neighbours(low, high), words);
    }
  }
}

/// Packs B of forward: some columns of one panel of the weights, terms along their inputs.
void pack_columns_of_weights(PanelWeights w, Range columns, std::uint32_t* out) {
  const std::size_t panel = columns.begin / panel_columns;
  const std::size_t width = w.layout.width(panel);
  const float* row = w.values.data() + w.layout.first_of(panel) + columns.begin % panel_columns;
  const std::size_t inputs = w.layout.inputs;
  const std::size_t pairs = chunks_of(inputs) * tile_size;
  for (std::size_t p = 0; p < pairs; ++p, row += 2 * width) {
    for (std::size_t c = 0; c < columns.size(); c += tile_size) {
      const Vector even = row_or_zero(2 * p < inputs, first_lanes(lanes), row + c);
      const Vector odd = row_or_zero(2 * p + 1 < inputs, first_lanes(lanes), row + width + c);
      store_words(words_of_lanes(even, odd), out + (c / tile_size * pairs + p) * tile_size);
    }
  }
}

/// Transposes 16 rows of 16 words.
HWY_INLINE void store_transposed_words(Square& rows, std::uint32_t* out) {
  transpose(rows);
  for (std::size_t r = 0; r < tile_size; ++r) {
    store_words(hn::BitCast(word_tag, rows[r]), out + r * tile_size);
  }
}

/// Packs B of dX: some inputs of the weights, terms along their outputs.
void pack_rows_of_weights(PanelWeights w, Range inputs, std::uint32_t* out) {
  const Panels& layout = w.layout;
  for (std::size_t k = inputs.begin; k < inputs.end; k += tile_size) {
    for (std::size_t j = 0; j < layout.outputs; j += bf16_chunk, out += block_words) {
      const std::size_t panel = j / panel_columns;
      const std::size_t width = layout.width(panel);
      const float* row = w.values.data() + layout.first_of(panel) + k * width + j % panel_columns;
      Square words;
      for (std::size_t r = 0; r < tile_size; ++r, row += width) {
        const bool exists = k + r < layout.inputs;
        const Vector low = row_or_zero(exists, first_lanes(lanes), row);
        const Vector high = row_or_zero(exists && j % panel_columns + lanes < width,
                                        first_lanes(lanes), row + lanes);
        words[r] = hn::BitCast(tag, words_of_neighbours(low, high));
      }
      store_transposed_words(words, out);
    }
  }
}

/// Words of scratch of forward, for terms along the inputs, and of dX, along the outputs.
std::size_t amx_scratch_size(std::size_t rows, std::size_t terms) noexcept {
  return (tiles_of(std::min(rows, packed_rows)) + panel_columns / tile_size) * chunks_of(terms) *
         block_words;
}

/// Copies values that sums begin with, zero beyond the last column.
HWY_INLINE FirstSums copy_sums(Matrix<const float> m, Range rows, Range columns, float* sums) {
  for (std::size_t i = rows.begin; i < rows.end; ++i) {
    for (std::size_t j = columns.begin; j < columns.end; j += lanes) {
      const Vector values =
          load(first_lanes(m.cols - std::min(m.cols, j)), m.data + i * m.cols + j);
      hn::Store(values, tag, sums + (i - rows.begin) * most_sums + j - columns.begin);
    }
  }
  return {sums, sum_row_bytes};
}

/// out = finish(first + a b) for all rows and some columns, a multiple of 16 of them. `first` is
/// out where `output` accumulates, else `bias` in each row, or zero if that is empty.
/// pack(columns, blocks) packs columns of b, at most a panel of out; fetch(i, j) prefetches what
/// finish(i, j, sums) reads. Columns may be beyond those that exist.
template <class Pack, class Fetch, class Finish>
HWY_INLINE void amx_product(Matrix<const float> a, Range columns, Matrix<float> out, Output output,
                            std::span<const float> bias, std::span<float> scratch, Pack pack,
                            Fetch fetch, Finish finish) {
  assert(scratch.size() >= amx_scratch_size(a.rows, a.cols));
  const TileConfiguration tiles(tile_size);
  const std::size_t step = chunks_of(a.cols) * block_words;  // of a tile's blocks
  // Of a panel, [column / most_sums][row], so that a cache line of out that two pieces of most_sums
  // columns share is written once.
  static_assert(panel_columns % most_sums == 0);
  constexpr std::size_t sums_step = most_sums * most_sums;
  alignas(64) std::array<float, panel_columns / most_sums * sums_step> sums;
  alignas(64) static constexpr std::array<float, most_sums> zeros{};
  auto* const packed = reinterpret_cast<std::uint32_t*>(scratch.data());
  const auto multiply = [&](Range rows, Range panel, const std::uint32_t* a_blocks,
                            const std::uint32_t* b_blocks) HWY_ATTR {
    const std::size_t width = panel.size();
    for (std::size_t c = 0; c < width; c += most_sums) {
      const Range across = {panel.begin + c, panel.begin + std::min(width, c + most_sums)};
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        for (std::size_t j = across.begin; j < across.end; j += lanes) {
          __builtin_prefetch(out.data + i * out.cols + j, /*rw=*/1);
          fetch(i, j);
        }
      }
      float* const part = sums.data() + c / most_sums * sums_step;
      const float* const row = bias.empty() ? zeros.data() : bias.data() + across.begin;
      sum_kernels[rows.size() > tile_size][across.size() > tile_size](
          {.a = a_blocks,
           .a_step = step,
           .b = b_blocks + c / tile_size * step,
           .b_step = step,
           .chunks = chunks_of(a.cols)},
          output == Output::accumulate ? copy_sums(out, rows, across, part) : FirstSums{row, 0},
          part);
    }
    for (std::size_t i = rows.begin; i < rows.end; ++i) {
      const float* row = sums.data() + (i - rows.begin) * most_sums;
      for (std::size_t c = 0; c < width; c += lanes) {
        const std::size_t j = panel.begin + c;
        const Vector sum = hn::Load(tag, row + c / most_sums * sums_step + c % most_sums);
        store(finish(i, j, sum), first_lanes(out.cols - std::min(out.cols, j)),
              out.data + i * out.cols + j);
      }
    }
  };
  for (std::size_t i = 0; i < a.rows; i += packed_rows) {
    const std::size_t end = std::min(a.rows, i + packed_rows);
    pack_tiles_of_rows(a.slice({i, end}), packed);
    std::uint32_t* const b = packed + tiles_of(end - i) * step;
    Range panel = {columns.begin, columns.begin};
    for (; panel.begin < columns.end; panel.begin = panel.end) {
      panel.end = std::min(columns.end, (panel.begin / panel_columns + 1) * panel_columns);
      pack(panel, b);
      for (std::size_t r = i; r < end; r += most_sums) {
        multiply({r, std::min(end, r + most_sums)}, panel, packed + (r - i) / tile_size * step, b);
      }
    }
  }
}

void amx_forward(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
                 Activation activation, Matrix<float> y, Range columns, Output output, Zeros,
                 std::span<float> scratch) {
  assert(x.rows == y.rows && x.cols == w.layout.inputs && y.cols == w.layout.outputs);
  amx_product(
      x, columns, y, output, bias, scratch,
      [&](Range part, std::uint32_t* out) HWY_ATTR { pack_columns_of_weights(w, part, out); },
      [](std::size_t, std::size_t) {},
      [&](std::size_t, std::size_t, Vector sums)
          HWY_ATTR { return output_of(sums, activation == Activation::relu); });
}

void amx_backward_input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                        Activation below, Matrix<float> dx, Range inputs, Output output,
                        std::span<float> scratch) {
  assert(dz.rows == dx.rows && dz.cols == w.layout.outputs && dx.cols == w.layout.inputs);
  const bool masked = below == Activation::relu;
  amx_product(
      dz, inputs, dx, output, {}, scratch,
      [&](Range part, std::uint32_t* out) HWY_ATTR { pack_rows_of_weights(w, part, out); },
      [&](std::size_t i, std::size_t k) HWY_ATTR {
        if (masked) __builtin_prefetch(x.data + i * x.cols + k);
      },
      [&](std::size_t i, std::size_t k, Vector sums) HWY_ATTR {
        const Vector a = canonical(sums);
        if (!masked) return a;
        const auto exist = first_lanes(x.cols - std::min(x.cols, k));
        const Vector values = load(exist, x.data + i * x.cols + k);
        return hn::IfThenElseZero(hn::Gt(values, hn::Zero(tag)), a);
      });
}

/// amx_operations().
std::size_t multiply_tiles() {
  constexpr std::size_t rounds = 1024;
  alignas(64) std::array<std::uint32_t, block_words> pairs;
  pairs.fill(0x3f803f80U);  // two ones
  const TileConfiguration tiles(tile_size);
  constexpr std::size_t row_bytes = tile_size * sizeof(std::uint32_t);
  load_tile<4>(pairs.data(), row_bytes);
  load_tile<5>(pairs.data(), row_bytes);
  load_tile<6>(pairs.data(), row_bytes);
  load_tile<7>(pairs.data(), row_bytes);
  for (std::size_t n = 0; n < rounds; ++n) {
    add_products<0, 4, 6>();
    add_products<1, 4, 7>();
    add_products<2, 5, 6>();
    add_products<3, 5, 7>();
  }
  return rounds * 4 * 2 * tile_size * tile_size * bf16_chunk;
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_AMX
#endif  // guard
