// dW in bf16 by AMX (amx-inl.hpp): the leaves of a batch in blocks of their own.
//
// Rows are divided into sections of whole leaves, and their nodes are added, as in
// strict_weights-inl.hpp. Leaves of fewer than four rows go by vectors, since their blocks would be
// mostly empty.
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
#include "lockstep/numerics/strict_bias-inl.hpp"
#include "lockstep/numerics/strict_weights-inl.hpp"

#if LOCKSTEP_HAS_AMX

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

constexpr std::size_t least_amx_leaf = 4;
constexpr std::size_t most_leaves = 4;  // whose nodes are in L1 together, beside their operands

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

  std::size_t leaves() const { return leaves_of(rows, leaf); }
  std::size_t chunks() const { return tiles_of(leaves() * pairs); }
  std::size_t pending_nodes() const { return tree_slots(leaves() / most_leaves + 1); }

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
constexpr std::size_t most_parts_of_strip = 32;  // whose pending nodes are in L2 together

/// Parts of the scratch of dW: where they end, in words.
struct AmxWeightsScratch {
  std::size_t rows;      ///< of a section
  std::size_t nodes;     ///< of four leaves, then [part] pending ones of groups of four leaves
  std::size_t factors;   ///< x of most_sums inputs
  std::size_t columns;   ///< dz
  std::size_t sections;  ///< nodes of sections: [level][slice]

  AmxWeightsScratch(std::size_t all_rows, std::size_t outputs, std::size_t leaf, std::size_t slice)
      : rows(std::min(all_rows, node_rows(most_section_rows, leaf))) {
    const LeafBlocks blocks(rows, leaf);
    const std::size_t step = blocks.chunks() * block_words;
    nodes = (most_leaves + most_parts_of_strip * blocks.pending_nodes()) * node_floats;
    factors = nodes + most_tiles * step;
    columns = factors + tiles_of(outputs) * step;
    sections = columns + section_levels(all_rows, rows) * slice;
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
  bool is_wide;     ///< V is 2, else 1
  TileTerms terms;  ///< of the section's first leaf
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
HWY_INLINE void merge_leaves(const AmxWeightsPart& part, const float* nodes, std::size_t count,
                             std::size_t four, bool last, float* pending) {
  WeightsTask row = part.row;
  for (std::size_t r = part.first; r < part.last; ++r) {
    Sums<1, V> sums = node_of_leaves<V>(nodes + r * most_sums, count);
    const auto at = [&](std::size_t node) { return pending + node * node_floats + r * most_sums; };
    merge_pending(sums, four, last, at, 0);
    if (!last) continue;
    merge_pending_sections(sums, row);
    row.dw += row.dw_step;
    row.sections += row.dw_step;
  }
}

/// Sums group `four` of a section's leaves, four or at the end fewer, and merges their node.
template <std::size_t V>
void sum_leaves_of_part(const LeafBlocks& blocks, const AmxWeightsPart& part, std::size_t four,
                        float* nodes, float* pending) {
  const std::size_t first = four * most_leaves;
  const std::size_t count = std::min(most_leaves, blocks.leaves() - first);
  for (std::size_t n = 0; n < count; ++n) {
    TileTerms leaf = part.terms;
    const std::size_t pair = (first + n) * blocks.pairs;
    leaf.a += pair / tile_size * block_words + pair % tile_size;
    leaf.b += pair / tile_size * block_words + pair % tile_size * tile_size;
    // The previous leaf's sums are stored between the products of this one.
    add_chunk<2, V>(leaf, [&]<int number>() HWY_ATTR {
      if (n > 0) store_sum<number>(nodes + (n - 1) * node_floats);
      clear_tile<number>();
    });
    leaf.advance();
    add_chunks<2, V>(leaf);
  }
  store_sums<2, V>(nodes + (count - 1) * node_floats);
  const bool last = first + count == blocks.leaves();
  if (count == most_leaves) {  // known to the compiler: no test in every row
    merge_leaves<V>(part, nodes, most_leaves, four, last, pending);
  } else {
    merge_leaves<V>(part, nodes, count, four, last, pending);
  }
}

/// Parts of a strip, all of them for one group of leaves after the other, so that x of a group of
/// short leaves stays in L1.
void sum_parts(const LeafBlocks& blocks, std::span<const AmxWeightsPart> parts, float* nodes) {
  float* const pending = nodes + most_leaves * node_floats;
  const std::size_t pending_floats = blocks.pending_nodes() * node_floats;
  for (std::size_t four = 0; four * most_leaves < blocks.leaves(); ++four) {
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const auto sum = parts[p].is_wide ? sum_leaves_of_part<2> : sum_leaves_of_part<1>;
      sum(blocks, parts[p], four, nodes, pending + p * pending_floats);
    }
  }
}

/// One section of rows of a call.
struct AmxWeightsSection {
  Panels layout;
  Range slice;
  LeafBlocks blocks;
  std::size_t index;
  bool is_last;
  Range packed;  ///< columns of dz
  const std::uint32_t* columns;
  std::uint32_t* factors;
  float* nodes;
  float* sections;
};

/// The part of the slice in the strip of inputs from k on.
void sum_strip(const AmxWeightsSection& s, Matrix<const float> x, std::size_t k, float* dw) {
  const std::size_t step = s.blocks.chunks() * block_words;
  std::array<AmxWeightsPart, most_parts_of_strip> parts;
  std::size_t count = 0;
  bool has_factors = false;  // only for inputs that the slice has
  for (std::size_t at = s.slice.begin; at < s.slice.end;) {
    const PanelBlock block = s.layout.block_at(at, s.slice.end);
    const std::size_t first = std::max(k, block.first_row);
    const std::size_t last = std::min(k + most_sums, block.last_row);
    for (std::size_t c = 0, width = 0; first < last && c < block.width; c += width) {
      width = std::min(most_sums, block.width - c);
      if (!std::exchange(has_factors, true)) pack_inputs_of_leaves(x, s.blocks, k, s.factors);
      if (count == parts.size()) {
        sum_parts(s.blocks, {parts.data(), std::exchange(count, 0)}, s.nodes);
      }
      const std::size_t j = block.column + c;
      const std::size_t offset = (at - s.slice.begin) + (first - block.first_row) * block.width + c;
      AmxWeightsPart& part = parts[count++];
      part = {.first = first - k,
              .last = last - k,
              .is_wide = width > tile_size,
              .terms = {.a = s.factors,
                        .a_step = step,
                        .b = s.columns + (j - s.packed.begin) / tile_size * step,
                        .b_step = step,
                        .chunks = tiles_of(s.blocks.pairs)},
              .row = {}};
      part.row.dw = dw + offset;
      part.row.dw_step = block.width;
      part.row.exist = s.layout.outputs - std::min(s.layout.outputs, j);
      part.row.section = s.index;
      part.row.last_section = s.is_last;
      part.row.sections = s.sections + offset;
      part.row.sections_step = s.slice.size();
    }
    at += (block.last_row - block.first_row) * block.width;
  }
  sum_parts(s.blocks, {parts.data(), count}, s.nodes);
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
  auto* const columns = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.factors);
  const Range packed = columns_of_slice(layout, slice);
  for (std::size_t i = 0, index = 0; i < dz.rows; i += ends.rows, ++index) {
    const Range rows = {i, std::min(dz.rows, i + ends.rows)};
    const LeafBlocks blocks(rows.size(), leaf);
    const TileConfiguration tiles(std::min(blocks.pairs, tile_size));
    pack_columns_of_leaves(dz.slice(rows), blocks, packed, columns);
    const AmxWeightsSection section = {
        .layout = layout,
        .slice = slice,
        .blocks = blocks,
        .index = index,
        .is_last = rows.end == dz.rows,
        .packed = packed,
        .columns = columns,
        .factors = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.nodes),
        .nodes = scratch.data(),
        .sections = scratch.data() + ends.columns};
    for (std::size_t k = 0; k < layout.inputs; k += most_sums) {
      sum_strip(section, x.slice(rows), k, dw.data());
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
