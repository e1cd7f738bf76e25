// The bf16 products by AMX: tiles of 16 x 16 sums, 32 terms an instruction (bf16.hpp).
//
// TDPBF16PS adds to a tile C of 16 x 16 floats the products of a tile A, 16 rows of up to 16 pairs
// of terms, and a tile B, as many pairs of 16 columns: a chunk of bf16.hpp. A pair is a word of two
// bf16, the even term in its lower half. Operands are packed into blocks of one tile each, all
// blocks of a tile's rows (columns) one after the other along the terms:
//
//   A   block[tile][chunk]: 16 rows of 16 words      B   block[tile][chunk]: 16 pairs of 16 words
//
//   forward   A: x[i][k]      B: w[k][j]    rows i, columns j, terms k
//   dX        A: dz[i][j]     B: w[k][j]    rows i, columns k, terms j
//   dW        A: x[i][k]      B: dz[i][j]   rows k, columns j, terms i; a leaf has blocks, or a
//   part
//                                           of one, of its own
//
// Included once per target: the include guard toggles with Highway's. There are kernels for one.
#if defined(LOCKSTEP_AMX) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_AMX
#undef LOCKSTEP_AMX
#else
#define LOCKSTEP_AMX
#endif

#include "lockstep/numerics/bf16-inl.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/numerics/strict_weights-inl.hpp"

#undef LOCKSTEP_HAS_AMX
#define LOCKSTEP_HAS_AMX (HWY_TARGET == HWY_AVX3)

#if LOCKSTEP_HAS_AMX

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

constexpr std::size_t tile = 16;  // rows, columns and pairs
constexpr std::size_t block_words = tile * tile;
constexpr std::size_t most_tiles = 2;  // of rows, and of columns, whose sums are in tiles together
constexpr std::size_t most_sums = most_tiles * tile;
constexpr std::size_t packed_rows = 384;  // of A in forward and dX: with one layer's terms in L2

static_assert(2 * tile == bf16_chunk && lanes == tile);

// The instructions, in assembly: compilers allow their intrinsics only in functions for AMX, and
// then use no functions of this target. Tiles 0 to 3 are sums, 4 and 5 of A, 6 and 7 of B.

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
  alignas(64) static constexpr std::array<std::uint16_t, 2 * tile> order = [] {
    std::array<std::uint16_t, 2 * tile> halves{};
    for (std::size_t n = 0; n < halves.size(); ++n) {
      halves[n] = static_cast<std::uint16_t>(n / 2 + n % 2 * tile);
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

/// Blocks are of `pairs` pairs until the end of the scope.
class TileMode {
 public:
  explicit TileMode(std::size_t pairs) {
    Configuration all;
    const auto bytes = static_cast<std::uint16_t>(pairs * sizeof(std::uint32_t));
    for (std::size_t n = 0; n < 8; ++n) {
      all.row_bytes[n] = n == 4 || n == 5 ? bytes : tile * sizeof(float);
      all.rows[n] = n < 6 ? tile : static_cast<std::uint8_t>(pairs);
    }
    asm volatile("ldtilecfg %0" : : "m"(all));
  }
  ~TileMode() { asm volatile("tilerelease"); }
  TileMode(const TileMode&) = delete;
  TileMode& operator=(const TileMode&) = delete;

 private:
  /// The operand of LDTILECFG.
  struct Configuration {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::array<std::uint8_t, 14> reserved{};
    std::array<std::uint16_t, 16> row_bytes{};
    std::array<std::uint8_t, 16> rows{};
  };
  static_assert(sizeof(Configuration) == 64);
};

/// Operands of sums: of the first tile of rows (columns), the next one `a_step` (`b_step`) words
/// further on.
struct TileTerms {
  const std::uint32_t* a;
  std::size_t a_step;
  const std::uint32_t* b;
  std::size_t b_step;
  std::size_t chunks;
};

/// Adds all chunks to the tiles of sums.
template <std::size_t R, std::size_t V>
HWY_INLINE void add_chunks(TileTerms t) {
  constexpr std::size_t row = tile * sizeof(std::uint32_t);
  for (std::size_t n = 0; n < t.chunks; ++n, t.a += block_words, t.b += block_words) {
    load_tile<4>(t.a, row);
    load_tile<6>(t.b, row);
    add_products<0, 4, 6>();
    if constexpr (V == 2) {
      load_tile<7>(t.b + t.b_step, row);
      add_products<1, 4, 7>();
    }
    if constexpr (R == 2) {
      load_tile<5>(t.a + t.a_step, row);
      add_products<2, 5, 6>();
      if constexpr (V == 2) add_products<3, 5, 7>();
    }
  }
}

/// The sums of R x V tiles: most_sums floats a row.
template <std::size_t R, std::size_t V>
HWY_INLINE void load_sums(const float* sums) {
  constexpr std::size_t row = most_sums * sizeof(float);
  load_tile<0>(sums, row);
  if constexpr (V == 2) load_tile<1>(sums + tile, row);
  if constexpr (R == 2) load_tile<2>(sums + tile * most_sums, row);
  if constexpr (R == 2 && V == 2) load_tile<3>(sums + tile * most_sums + tile, row);
}
template <std::size_t R, std::size_t V>
HWY_INLINE void store_sums(float* sums) {
  constexpr std::size_t row = most_sums * sizeof(float);
  store_tile<0>(sums, row);
  if constexpr (V == 2) store_tile<1>(sums + tile, row);
  if constexpr (R == 2) store_tile<2>(sums + tile * most_sums, row);
  if constexpr (R == 2 && V == 2) store_tile<3>(sums + tile * most_sums + tile, row);
}

/// sums += the products.
template <std::size_t R, std::size_t V>
void add_to_sums(const TileTerms& terms, float* sums) {
  load_sums<R, V>(sums);
  add_chunks<R, V>(terms);
  store_sums<R, V>(sums);
}

/// sums = the products.
template <std::size_t R, std::size_t V>
HWY_INLINE void write_sums(const TileTerms& terms, float* sums) {
  clear_tile<0>();
  if constexpr (V == 2) clear_tile<1>();
  if constexpr (R == 2) clear_tile<2>();
  if constexpr (R == 2 && V == 2) clear_tile<3>();
  add_chunks<R, V>(terms);
  store_sums<R, V>(sums);
}

using TileSum = void (*)(const TileTerms&, float*);
constexpr TileSum adding[2][2] = {{add_to_sums<1, 1>, add_to_sums<1, 2>},
                                  {add_to_sums<2, 1>, add_to_sums<2, 2>}};

constexpr std::size_t tiles_of(std::size_t rows) { return (rows + tile - 1) / tile; }

/// Packs A, terms along the columns: zero beyond rows and columns.
void pack_tiles_of_rows(Matrix<const float> rows, std::uint32_t* out) {
  const std::size_t chunks = chunks_of(rows.cols);
  for (std::size_t i = 0; i < round_to_unit(rows.rows); ++i) {
    std::uint32_t* words = out + (i / tile * chunks * tile + i % tile) * tile;
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
  const std::size_t pairs = chunks_of(inputs) * tile;
  for (std::size_t p = 0; p < pairs; ++p, row += 2 * width) {
    for (std::size_t c = 0; c < columns.size(); c += tile) {
      const Vector even = row_or_zero(2 * p < inputs, first_lanes(lanes), row + c);
      const Vector odd = row_or_zero(2 * p + 1 < inputs, first_lanes(lanes), row + width + c);
      store_words(words_of_lanes(even, odd), out + (c / tile * pairs + p) * tile);
    }
  }
}

/// Transposes 16 rows of 16 words.
HWY_INLINE void store_transposed_words(Square& rows, std::uint32_t* out) {
  transpose(rows);
  for (std::size_t r = 0; r < tile; ++r) {
    store_words(hn::BitCast(word_tag, rows[r]), out + r * tile);
  }
}

/// Packs B of dX: some inputs of the weights, terms along their outputs.
void pack_rows_of_weights(PanelWeights w, Range inputs, std::uint32_t* out) {
  const Panels& layout = w.layout;
  for (std::size_t k = inputs.begin; k < inputs.end; k += tile) {
    for (std::size_t j = 0; j < layout.outputs; j += bf16_chunk, out += block_words) {
      const std::size_t panel = j / panel_columns;
      const std::size_t width = layout.width(panel);
      const float* row = w.values.data() + layout.first_of(panel) + k * width + j % panel_columns;
      Square words;
      for (std::size_t r = 0; r < tile; ++r, row += width) {
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
  return (tiles_of(std::min(rows, packed_rows)) + panel_columns / tile) * chunks_of(terms) *
         block_words;
}

/// out = finish(start + a b) for all rows and some columns, a multiple of 16 of them.
/// pack(columns, blocks) packs columns of b, at most a panel of out; start(i, j) and finish(i, j,
/// sums) are of 16 columns from j on, which may be beyond those that exist.
template <class Pack, class Start, class Finish>
HWY_INLINE void amx_product(Matrix<const float> a, Range columns, Matrix<float> out,
                            std::span<float> scratch, Pack pack, Start start, Finish finish) {
  assert(scratch.size() >= amx_scratch_size(a.rows, a.cols));
  const TileMode mode(tile);
  const std::size_t step = chunks_of(a.cols) * block_words;  // of a tile's blocks
  alignas(64) std::array<float, most_sums * most_sums> sums;
  auto* const packed = reinterpret_cast<std::uint32_t*>(scratch.data());
  const auto multiply = [&](Range rows, std::size_t first, Range across,
                            const std::uint32_t* b) HWY_ATTR {
    for (std::size_t i = rows.begin; i < rows.end; ++i) {
      for (std::size_t j = across.begin; j < across.end; j += lanes) {
        const std::size_t at = (i - rows.begin) * most_sums + j - across.begin;
        hn::Store(start(i, j), tag, sums.data() + at);
        __builtin_prefetch(out.data + i * out.cols + j, /*rw=*/1);
      }
    }
    adding[rows.size() > tile][across.size() > tile](
        {.a = packed + (rows.begin - first) / tile * step,
         .a_step = step,
         .b = b,
         .b_step = step,
         .chunks = chunks_of(a.cols)},
        sums.data());
    for (std::size_t j = across.begin; j < across.end; j += lanes) {
      const auto exist = first_lanes(out.cols - std::min(out.cols, j));
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        const std::size_t at = (i - rows.begin) * most_sums + j - across.begin;
        store(finish(i, j, hn::Load(tag, sums.data() + at)), exist, out.data + i * out.cols + j);
      }
    }
  };
  for (std::size_t first = 0; first < a.rows; first += packed_rows) {
    const std::size_t end = std::min(a.rows, first + packed_rows);
    pack_tiles_of_rows({a.data + first * a.cols, end - first, a.cols}, packed);
    std::uint32_t* const b = packed + tiles_of(end - first) * step;
    Range panel = {columns.begin, columns.begin};
    for (; panel.begin < columns.end; panel.begin = panel.end) {
      panel.end = std::min(columns.end, (panel.begin / panel_columns + 1) * panel_columns);
      pack(panel, b);
      for (std::size_t j = panel.begin; j < panel.end; j += most_sums) {
        const Range across = {j, std::min(panel.end, j + most_sums)};
        for (std::size_t i = first; i < end; i += most_sums) {
          multiply({i, std::min(end, i + most_sums)}, first, across,
                   b + (j - panel.begin) / tile * step);
        }
      }
    }
  }
}

/// What the sums of row i and columns j begin with when accumulating.
HWY_INLINE Vector values_at(Matrix<const float> m, std::size_t i, std::size_t j) {
  return load(first_lanes(m.cols - std::min(m.cols, j)), m.data + i * m.cols + j);
}

void amx_forward(Matrix<const float> x, PanelWeights w, std::span<const float> bias,
                 Activation activation, Matrix<float> y, Range columns, Output output, Zeros,
                 std::span<float> scratch) {
  assert(x.rows == y.rows && x.cols == w.layout.inputs && y.cols == w.layout.outputs);
  const bool accumulate = output == Output::accumulate;
  amx_product(
      x, columns, y, scratch,
      [&](Range part, std::uint32_t* out) HWY_ATTR { pack_columns_of_weights(w, part, out); },
      [&](std::size_t i, std::size_t j)
          HWY_ATTR { return accumulate ? values_at(y, i, j) : hn::LoadU(tag, bias.data() + j); },
      [&](std::size_t, std::size_t, Vector sums) HWY_ATTR {
        const Vector a = canonical(sums);
        return activation == Activation::relu ? hn::IfThenZeroElse(hn::Lt(a, hn::Zero(tag)), a) : a;
      });
}

void amx_backward_input(Matrix<const float> dz, PanelWeights w, Matrix<const float> x,
                        Activation below, Matrix<float> dx, Output output,
                        std::span<float> scratch) {
  assert(dz.rows == dx.rows && dz.cols == w.layout.outputs && dx.cols == w.layout.inputs);
  const bool accumulate = output == Output::accumulate;
  amx_product(
      dz, {0, round_to_unit(dx.cols)}, dx, scratch,
      [&](Range part, std::uint32_t* out) HWY_ATTR { pack_rows_of_weights(w, part, out); },
      [&](std::size_t i, std::size_t k)
          HWY_ATTR { return accumulate ? values_at(dx, i, k) : hn::Zero(tag); },
      [&](std::size_t i, std::size_t k, Vector sums) HWY_ATTR {
        const Vector a = canonical(sums);
        if (below != Activation::relu) return a;
        return hn::IfThenElseZero(hn::Gt(values_at(x, i, k), hn::Zero(tag)), a);
      });
}

/// Shorter leaves leave most of a block empty, so dW goes by vectors.
constexpr std::size_t least_amx_leaf = 4;

/// How the rows of a batch are put into blocks for dW: a leaf has a part of a block, whose size
/// divides it, or whole blocks.
struct LeafBlocks {
  std::size_t rows;
  std::size_t leaf;
  std::size_t pairs;  ///< room for a leaf's

  LeafBlocks(std::size_t all_rows, std::size_t leaf_rows)
      : rows(all_rows), leaf(std::min(leaf_rows, all_rows)), pairs((leaf + 1) / 2) {
    pairs = pairs <= tile ? std::bit_ceil(pairs) : round_to_unit(pairs);
  }

  std::size_t leaves() const { return (rows + leaf - 1) / leaf; }
  std::size_t chunks() const { return (leaves() * pairs + tile - 1) / tile; }

  /// The even row of a pair, and how many of its two rows exist.
  struct Rows {
    std::size_t even;
    std::size_t count;
  };
  std::array<Rows, tile> rows_of(std::size_t chunk) const {
    std::array<Rows, tile> result;
    std::size_t first = chunk * tile / pairs * leaf;
    std::size_t pair = chunk * tile % pairs;
    for (Rows& one : result) {
      const std::size_t even = first + 2 * pair;
      const std::size_t end = std::min(rows, first + leaf);
      one = {even, end - std::min(end, even)};
      if (++pair < pairs) continue;
      pair = 0;
      first += leaf;
    }
    return result;
  }
};

constexpr std::size_t node_floats = most_sums * most_sums;
constexpr std::size_t most_leaves = 4;  // whose nodes are in L1 together, beside their operands

/// Parts of the scratch of dW: where they end, in words.
struct AmxWeightsScratch {
  std::size_t waiting;  ///< nodes of leaves, then those of four that are without right sibling
  std::size_t factors;  ///< x of two tiles of inputs
  std::size_t columns;  ///< dz

  AmxWeightsScratch(const LeafBlocks& blocks, std::size_t outputs)
      : waiting((most_leaves + tree_slots(blocks.leaves() / most_leaves + 1)) * node_floats),
        factors(waiting + most_tiles * blocks.chunks() * block_words),
        columns(factors + tiles_of(outputs) * blocks.chunks() * block_words) {}
};

std::size_t amx_weights_scratch_size(std::size_t rows, std::size_t outputs, std::size_t leaf,
                                     std::size_t slice) noexcept {
  if (leaf < least_amx_leaf) return weights_scratch_size(rows, outputs, leaf, slice);
  return rows == 0 ? 0 : AmxWeightsScratch(LeafBlocks(rows, leaf), outputs).columns;
}

/// The words of a pair of rows, of 16 columns from `column` on.
HWY_INLINE Words words_of_pair(Matrix<const float> m, LeafBlocks::Rows rows, std::size_t column) {
  const auto exist = first_lanes(m.cols - std::min(m.cols, column));
  const float* even = m.data + rows.even * m.cols + column;
  hwy::Prefetch(even + most_sums);
  hwy::Prefetch(even + m.cols + most_sums);
  return words_of_lanes(row_or_zero(rows.count > 0, exist, even),
                        row_or_zero(rows.count > 1, exist, even + m.cols));
}

/// Packs B: columns [begin, end) of dz, multiples of 16, to where tile begin / 16 is.
void pack_columns_of_leaves(Matrix<const float> dz, const LeafBlocks& blocks, Range columns,
                            std::uint32_t* out) {
  const std::size_t step = blocks.chunks() * block_words;
  for (std::size_t n = 0; n < blocks.chunks(); ++n) {
    for (const LeafBlocks::Rows rows : blocks.rows_of(n)) {
      for (std::size_t j = columns.begin; j < columns.end; j += tile) {
        store_words(words_of_pair(dz, rows, j), out + (j - columns.begin) / tile * step);
      }
      out += tile;
    }
  }
}

/// Packs A: inputs [k, k + 32) of x.
void pack_inputs_of_leaves(Matrix<const float> x, const LeafBlocks& blocks, std::size_t k,
                           std::uint32_t* out) {
  for (std::size_t n = 0; n < blocks.chunks(); ++n, out += block_words) {
    const auto rows = blocks.rows_of(n);
    for (std::size_t t = 0; t < most_tiles; ++t) {
      Square words;
      for (std::size_t p = 0; p < tile; ++p) {
        words[p] = hn::BitCast(tag, words_of_pair(x, rows[p], k + t * tile));
      }
      store_transposed_words(words, out + t * blocks.chunks() * block_words);
    }
  }
}

/// The node of `count` leaves, at most four, (0 + 1) + (2 + 3), and then that of some older ones
/// and it, newest first: they end where `node` begins, and the oldest one is replaced.
template <std::size_t V, std::size_t count>
void add_nodes(const float* leaves, float* node, std::size_t older) {
  for (std::size_t r = 0; r < most_sums; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      const std::size_t at = r * most_sums + v * lanes;
      Vector leaf[count];
      LOCKSTEP_UNROLL for (std::size_t n = 0; n < count; ++n) {
        leaf[n] = hn::Load(tag, leaves + n * node_floats + at);
      }
      Vector sum = leaf[0];
      if constexpr (count > 1) sum = hn::Add(sum, leaf[1]);
      if constexpr (count == 3) sum = hn::Add(sum, leaf[2]);
      if constexpr (count == 4) sum = hn::Add(sum, hn::Add(leaf[2], leaf[3]));
      float* out = node + at;
      for (std::size_t n = 0; n < older; ++n) {
        out -= node_floats;
        sum = hn::Add(hn::Load(tag, out), sum);
      }
      hn::Store(sum, tag, out);
    }
  }
}

template <std::size_t V>
constexpr std::array adding_nodes = {add_nodes<V, 1>, add_nodes<V, 2>, add_nodes<V, 3>,
                                     add_nodes<V, 4>};

/// The tree over the leaves of 32 inputs and V tiles of columns; returns where the result is.
/// terms: of the first leaf.
template <std::size_t V>
const float* sum_leaves_of_tiles(const LeafBlocks& blocks, const TileTerms& terms, float* nodes) {
  float* const fours = nodes + most_leaves * node_floats;
  const std::size_t leaves = blocks.leaves();
  for (std::size_t q = 0, four = 0; q < leaves; ++four) {
    const std::size_t count = std::min(most_leaves, leaves - q);
    for (std::size_t n = 0; n < count; ++n, ++q) {
      const std::size_t block = q * blocks.pairs / tile * block_words;
      const std::size_t within = q * blocks.pairs % tile;
      TileTerms leaf = terms;
      leaf.a += block + within;
      leaf.b += block + within * tile;
      write_sums<2, V>(leaf, nodes + n * node_floats);
    }
    // A binary counter, as merge_pending().
    const auto pending = static_cast<std::size_t>(std::popcount(four));
    const auto older = q == leaves ? pending : static_cast<std::size_t>(std::countr_one(four));
    adding_nodes<V>[count - 1](nodes, fours + pending * node_floats, older);
  }
  return fours;
}

void amx_backward_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                          Range slice, std::span<float> dw, Zeros zeros, std::span<float> scratch) {
  if (leaf < least_amx_leaf) {
    return backward_weights<Bf16Chain>(x, dz, leaf, slice, dw, zeros, scratch);
  }
  const Panels layout{x.cols, dz.cols};
  assert(x.rows == dz.rows);
  assert(dw.size() == slice.size() && slice.end <= layout.size());
  if (dz.rows == 0) return std::fill(dw.begin(), dw.end(), 0.0F);
  const LeafBlocks blocks(dz.rows, leaf);
  const AmxWeightsScratch ends(blocks, dz.cols);
  assert(scratch.size() >= ends.columns);
  const std::size_t step = blocks.chunks() * block_words;
  const TileMode mode(std::min(blocks.pairs, tile));
  float* const nodes = scratch.data();
  auto* const factors = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.waiting);
  auto* const columns = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.factors);
  const Range packed = columns_of_slice(layout, slice);
  pack_columns_of_leaves(dz, blocks, packed, columns);
  for (std::size_t k = 0; k < layout.inputs; k += most_sums) {
    pack_inputs_of_leaves(x, blocks, k, factors);
    for (std::size_t at = slice.begin; at < slice.end;) {
      const PanelBlock block = layout.block_at(at, slice.end);
      const std::size_t first = std::max(k, block.first_row);
      const std::size_t last = std::min(k + most_sums, block.last_row);
      for (std::size_t c = 0, width = 0; first < last && c < block.width; c += width) {
        width = std::min(most_sums, block.width - c);
        const std::size_t j = block.column + c;
        const TileTerms terms = {.a = factors,
                                 .a_step = step,
                                 .b = columns + (j - packed.begin) / tile * step,
                                 .b_step = step,
                                 .chunks = (blocks.pairs + tile - 1) / tile};
        const float* const all = width > tile ? sum_leaves_of_tiles<2>(blocks, terms, nodes)
                                              : sum_leaves_of_tiles<1>(blocks, terms, nodes);
        for (std::size_t row = first; row < last; ++row) {
          const float* const sums = all + (row - k) * most_sums;
          float* const out =
              dw.data() + (at - slice.begin) + (row - block.first_row) * block.width + c;
          for (std::size_t v = 0; v < width; v += lanes) {
            const auto exist = first_lanes(layout.outputs - std::min(layout.outputs, j + v));
            // Padding: an infinite x times its zeros is NaN.
            hn::Store(hn::IfThenElseZero(exist, canonical(hn::Load(tag, sums + v))), tag, out + v);
          }
        }
      }
      at += (block.last_row - block.first_row) * block.width;
    }
  }
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_AMX
#endif  // guard
