// dW in bf16 by AMX (amx-inl.hpp): the leaves of a batch in blocks of their own.
//
// Rows are divided into sections, and their nodes are added, as in strict_weights-inl.hpp. Leaves
// of fewer than four rows go by vectors, since their blocks would be mostly empty.
//
// Included once per target: the include guard toggles with Highway's. There are kernels for one.
#if defined(LOCKSTEP_AMX_WEIGHTS) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_AMX_WEIGHTS
#undef LOCKSTEP_AMX_WEIGHTS
#else
#define LOCKSTEP_AMX_WEIGHTS
#endif

#include "lockstep/numerics/amx-inl.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/numerics/strict_weights-inl.hpp"

#if LOCKSTEP_HAS_AMX

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

constexpr std::size_t least_amx_leaf = 4;

/// The pairs of rows of a section, in chunks of 16. A leaf has some of the pairs of a chunk, a
/// power of two, or whole chunks; those beyond its rows are zero.
struct LeafBlocks {
  std::size_t rows;
  std::size_t leaf;
  std::size_t pairs;  ///< reserved for each leaf

  LeafBlocks(std::size_t section, std::size_t leaf_rows)
      : rows(section), leaf(std::min(leaf_rows, section)), pairs((leaf + 1) / 2) {
    pairs = pairs <= tile_size ? std::bit_ceil(pairs) : round_to_unit(pairs);
  }

  std::size_t leaves() const { return (rows + leaf - 1) / leaf; }
  std::size_t chunks() const { return tiles_of(leaves() * pairs); }

  /// The even row of a pair, and how many rows of its leaf exist from it on.
  struct Pair {
    std::size_t even;
    std::size_t left;
  };
  std::array<Pair, tile_size> pairs_of(std::size_t chunk) const {
    std::array<Pair, tile_size> result;
    std::size_t first = chunk * tile_size / pairs * leaf;
    std::size_t pair = chunk * tile_size % pairs;
    for (Pair& one : result) {
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
  std::size_t rows;     ///< of a section
  std::size_t nodes;    ///< of four leaves, and pending ones of fours: [node][most_sums][most_sums]
  std::size_t factors;  ///< x of most_sums inputs
  std::size_t columns;  ///< dz
  std::size_t sections;  ///< nodes of sections: [level][slice]

  AmxWeightsScratch(std::size_t all_rows, std::size_t outputs, std::size_t leaf, std::size_t slice)
      : rows(std::min(all_rows, node_rows(section_rows, leaf))) {
    const LeafBlocks blocks(rows, leaf);
    const std::size_t step = blocks.chunks() * block_words;
    nodes = (most_leaves + tree_slots(blocks.leaves() / most_leaves + 1)) * node_floats;
    factors = nodes + most_tiles * step;
    columns = factors + tiles_of(outputs) * step;
    sections = columns + section_levels(all_rows, leaf) * slice;
  }
};

std::size_t amx_weights_scratch_size(std::size_t rows, std::size_t outputs, std::size_t leaf,
                                     std::size_t slice) noexcept {
  if (leaf < least_amx_leaf) return weights_scratch_size(rows, outputs, leaf, slice);
  return rows == 0 ? 0 : AmxWeightsScratch(rows, outputs, leaf, slice).sections;
}

/// The words of a pair of rows, of 16 columns from `column` on. Prefetches columns that are read
/// soon: the next ones of dz, and x of the next inputs.
HWY_INLINE Words words_of_pair(Matrix<const float> m, LeafBlocks::Pair pair, std::size_t column) {
  const auto exist = first_lanes(m.cols - std::min(m.cols, column));
  const float* even = m.data + pair.even * m.cols + column;
  hwy::Prefetch(even + most_sums);
  hwy::Prefetch(even + m.cols + most_sums);
  return words_of_lanes(row_or_zero(pair.left > 0, exist, even),
                        row_or_zero(pair.left > 1, exist, even + m.cols));
}

/// Packs B: some columns of dz, multiples of 16.
void pack_columns_of_leaves(Matrix<const float> dz, const LeafBlocks& blocks, Range columns,
                            std::uint32_t* out) {
  const std::size_t step = blocks.chunks() * block_words;
  for (std::size_t n = 0; n < blocks.chunks(); ++n) {
    for (const LeafBlocks::Pair pair : blocks.pairs_of(n)) {
      for (std::size_t j = columns.begin; j < columns.end; j += tile_size) {
        store_words(words_of_pair(dz, pair, j), out + (j - columns.begin) / tile_size * step);
      }
      out += tile_size;
    }
  }
}

/// Packs A: inputs [k, k + 32) of x.
void pack_inputs_of_leaves(Matrix<const float> x, const LeafBlocks& blocks, std::size_t k,
                           std::uint32_t* out) {
  const std::size_t step = blocks.chunks() * block_words;
  for (std::size_t n = 0; n < blocks.chunks(); ++n, out += block_words) {
    const auto pairs = blocks.pairs_of(n);
    for (std::size_t t = 0; t < most_tiles; ++t) {
      Square words;
      for (std::size_t p = 0; p < tile_size; ++p) {
        words[p] = hn::BitCast(tag, words_of_pair(x, pairs[p], k + t * tile_size));
      }
      store_transposed_words(words, out + t * step);
    }
  }
}

/// A rectangle of dW: inputs [first, last) of a strip of most_sums inputs, columns of V tiles.
struct AmxWeightsPart {
  std::size_t first;
  std::size_t last;
  TileTerms terms;  ///< of the first leaf
  WeightsTask row;  ///< of input `first`: what merge_pending_sections() needs
};

template <std::size_t V>
HWY_INLINE Sums<1, V> sum_of(const Sums<1, V>& older, Sums<1, V> newer) {
  add(older, newer);
  return newer;
}

/// A row of the node of up to four leaves: (0 + 1) + (2 + 3).
template <std::size_t V>
HWY_INLINE Sums<1, V> node_of_leaves(const float* row, std::size_t count) {
  const auto leaf = [row](std::size_t n) HWY_ATTR {
    Sums<1, V> sums;
    load(sums, row + n * node_floats, 0);
    return sums;
  };
  if (count == 1) return leaf(0);
  const Sums<1, V> first = sum_of(leaf(0), leaf(1));
  if (count == 2) return first;
  return sum_of(first, count == 3 ? leaf(2) : sum_of(leaf(2), leaf(3)));
}

/// Adds the node of leaves to the pending ones of a section, and the section's to dW.
template <std::size_t V>
HWY_INLINE void merge_leaves(const AmxWeightsPart& part, float* nodes, std::size_t count,
                             std::size_t four, bool last) {
  float* const fours = nodes + most_leaves * node_floats;
  WeightsTask row = part.row;
  for (std::size_t r = part.first; r < part.last; ++r) {
    Sums<1, V> sums = node_of_leaves<V>(nodes + r * most_sums, count);
    const auto at = [&](std::size_t node) { return fours + node * node_floats + r * most_sums; };
    merge_pending(sums, four, last, at, 0);
    if (!last) continue;
    merge_pending_sections(sums, row);
    row.dw += row.dw_step;
    row.sections += row.dw_step;
  }
}

/// The tree over the leaves of a section.
template <std::size_t V>
void sum_section(const LeafBlocks& blocks, const AmxWeightsPart& part, float* nodes) {
  const std::size_t leaves = blocks.leaves();
  for (std::size_t q = 0, four = 0; q < leaves; ++four) {
    const std::size_t count = std::min(most_leaves, leaves - q);
    for (std::size_t n = 0; n < count; ++n, ++q) {
      TileTerms leaf = part.terms;
      const std::size_t block = q * blocks.pairs / tile_size * block_words;
      const std::size_t within = q * blocks.pairs % tile_size;
      leaf.a += block + within;
      leaf.b += block + within * tile_size;
      write_sums<2, V>(leaf, nodes + n * node_floats);
    }
    if (count == most_leaves) {  // a constant, so that rows do not ask for it
      merge_leaves<V>(part, nodes, most_leaves, four, q == leaves);
    } else {
      merge_leaves<V>(part, nodes, count, four, true);
    }
  }
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
  const AmxWeightsScratch ends(dz.rows, dz.cols, leaf, slice.size());
  assert(scratch.size() >= ends.sections);
  auto* const factors = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.nodes);
  auto* const columns = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.factors);
  const Range packed = columns_of_slice(layout, slice);
  for (std::size_t i = 0, section = 0; i < dz.rows; i += ends.rows, ++section) {
    const LeafBlocks blocks(std::min(ends.rows, dz.rows - i), leaf);
    const std::size_t step = blocks.chunks() * block_words;
    const TileConfiguration tiles(std::min(blocks.pairs, tile_size));
    const Matrix<const float> x_rows = {x.data + i * x.cols, blocks.rows, x.cols};
    pack_columns_of_leaves({dz.data + i * dz.cols, blocks.rows, dz.cols}, blocks, packed, columns);
    AmxWeightsPart part = {};
    part.terms = {.a = factors,
                  .a_step = step,
                  .b = columns,
                  .b_step = step,
                  .chunks = tiles_of(blocks.pairs)};
    part.row.section = section;
    part.row.last_section = i + blocks.rows == dz.rows;
    part.row.sections_step = slice.size();
    for (std::size_t k = 0; k < layout.inputs; k += most_sums) {
      bool has_factors = false;  // only for inputs that the slice has
      for (std::size_t at = slice.begin; at < slice.end;) {
        const PanelBlock block = layout.block_at(at, slice.end);
        const std::size_t first = std::max(k, block.first_row);
        const std::size_t last = std::min(k + most_sums, block.last_row);
        for (std::size_t c = 0, width = 0; first < last && c < block.width; c += width) {
          width = std::min(most_sums, block.width - c);
          if (!std::exchange(has_factors, true)) {
            pack_inputs_of_leaves(x_rows, blocks, k, factors);
          }
          const std::size_t j = block.column + c;
          const std::size_t offset =
              (at - slice.begin) + (first - block.first_row) * block.width + c;
          part.first = first - k;
          part.last = last - k;
          part.terms.b = columns + (j - packed.begin) / tile_size * step;
          part.row.dw = dw.data() + offset;
          part.row.dw_step = block.width;
          part.row.exist = layout.outputs - std::min(layout.outputs, j);
          part.row.sections = scratch.data() + ends.columns + offset;
          if (width > tile_size) {
            sum_section<2>(blocks, part, scratch.data());
          } else {
            sum_section<1>(blocks, part, scratch.data());
          }
        }
        at += (block.last_row - block.first_row) * block.width;
      }
    }
  }
}

}  // namespace

extern const Bf16Products by_amx;
constexpr Bf16Products by_amx = {.round = nullptr,
                                 .products = {.simd = Simd::avx512,
                                              .forward = amx_forward,
                                              .backward_input = amx_backward_input,
                                              .backward_weights = amx_backward_weights,
                                              .backward_bias = backward_bias,
                                              .forward_scratch = amx_scratch_size,
                                              .input_scratch = amx_scratch_size,
                                              .weights_scratch = amx_weights_scratch_size}};

}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_AMX
#endif  // guard
