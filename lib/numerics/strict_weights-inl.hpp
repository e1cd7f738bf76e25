// dW: leaves summed in register tiles, with the tree over leaves evaluated inside them.
//
// Included once per target: the include guard toggles with Highway's.
#if defined(LOCKSTEP_STRICT_WEIGHTS) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STRICT_WEIGHTS
#undef LOCKSTEP_STRICT_WEIGHTS
#else
#define LOCKSTEP_STRICT_WEIGHTS
#endif

#include "lockstep/numerics/bf16-inl.hpp"
#include "lockstep/numerics/strict_tile-inl.hpp"

#if LOCKSTEP_HAS_KERNELS

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

/// Vectors of columns of a tile of dW.
constexpr std::size_t weights_vectors = lanes == 8 ? 2 : 4;
constexpr std::size_t weights_columns = weights_vectors * lanes;

/// Rows of a short tile. It leaves out more terms, since fewer inputs must be zero together.
constexpr std::size_t short_rows(std::size_t vectors) { return (lanes == 8 ? 12 : 16) / vectors; }

/// Rows of a tile: as many as there are registers for their sums (24 of 32), in bf16 beside those
/// of a chunk's two chains. A tile of more rows reads dz from L2 less often.
template <class Chain>
constexpr std::size_t weights_rows(std::size_t vectors) {
  return Chain::is_bf16 || lanes == 8 ? short_rows(vectors) : std::min(24 / vectors, group_inputs);
}
static_assert(24 * lanes <= tile_floats);

/// A tile of dW and a section of rows.
struct WeightsTask {
  const float* x;  ///< from one input on: rows of group_inputs
  const float* dz;
  std::size_t dz_step;
  float* dw;
  std::size_t dw_step;
  std::size_t exist;  ///< columns
  std::size_t rows;   ///< of the section
  std::size_t leaf;
  std::size_t section;  ///< index of the section's node
  bool begins;          ///< the section begins the node
  bool ends;            ///< it ends the node; else the next section continues a leaf
  bool last_section;
  /// Of the tile's first input, for rows of the section: a word of mask_rows rows after the other,
  /// mask_words apart; null: no term is left out.
  const std::uint32_t* masks;
  // Pending nodes, those without their right sibling yet.
  float* nodes;               ///< within the section
  float* sections;            ///< of whole sections but the oldest, which is in dw: as dw,
  std::size_t sections_step;  ///< and the next level that much further on
};

/// How many pending nodes node `index` of one tree level is merged with: as many as the index has
/// trailing ones, and the last node with all.
constexpr int merges_of(std::size_t index, bool last) {
  return last ? std::popcount(index) : std::countr_one(index);
}

/// Adds node `index` of one tree level, given in `sums`. at(n) is the pending node n, one without
/// its right sibling yet, oldest first; its rows are `row` floats apart. The tree is a binary
/// counter: as many pending nodes are merged as the index has trailing ones, newest first, older +
/// newer. The last node is merged with all pending ones and stays in `sums`; any other becomes
/// pending.
template <std::size_t R, std::size_t V, class At>
HWY_INLINE void merge_pending(Sums<R, V>& sums, std::size_t index, bool last, At at,
                              std::size_t row) {
  auto waiting = static_cast<std::size_t>(std::popcount(index));
  for (int merges = merges_of(index, last); merges > 0; --merges) {
    Sums<R, V> older;
    load(older, at(--waiting), row);
    add(older, sums);
  }
  if (!last) store(sums, at(waiting), row);
}

/// The same for nodes that lie one after the other.
template <std::size_t R, std::size_t V>
HWY_INLINE void merge_pending_nodes(Sums<R, V>& sums, float* waiting, std::size_t index,
                                    bool last) {
  const auto at = [waiting](std::size_t node) { return waiting + node * (R * V * lanes); };
  merge_pending(sums, index, last, at, V * lanes);
}

/// Pending node n of sections, in dw or a matrix like it.
HWY_INLINE float* section_node(const WeightsTask& t, std::size_t n) {
  return n == 0 ? t.dw : t.sections + (n - 1) * t.sections_step;
}

/// Where the sums of a leaf wait from one section to the next.
HWY_INLINE float* open_leaf(const WeightsTask& t) {
  return section_node(t, static_cast<std::size_t>(std::popcount(t.section)));
}

/// The sums of a leaf before its rows of this section.
template <std::size_t R, std::size_t V>
HWY_INLINE void begin_leaf(Sums<R, V>& sums, const WeightsTask& t) {
  if (t.begins) return clear(sums);
  load(sums, open_leaf(t), t.dw_step);
}

constexpr std::uint64_t low_bits(std::size_t count) { return ~std::uint64_t{0} >> (64 - count); }

/// Bits of the rows [i, i + rows) of a section, at most 64, of which an input of the tile is not
/// zero. Bits beyond them may be set.
template <std::size_t R>
HWY_INLINE std::uint64_t used_rows(const WeightsTask& t, std::size_t i, std::size_t rows) {
  if (t.masks == nullptr) return ~std::uint64_t{0};
  const std::size_t bit = i % mask_rows;
  const std::uint32_t* masks = t.masks + i / mask_rows * mask_words;
  const auto next = [&masks] {
    std::uint64_t used = 0;
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) used |= masks[r];
    masks += mask_words;
    return used;
  };
  std::uint64_t used = next() >> bit;
  for (std::size_t n = mask_rows - bit; n < rows; n += mask_rows) used |= next() << n;
  return used;
}

/// Adds rows of a leaf to its sums, without those of which all inputs of the tile are zero, where
/// there are several. `used`: the bits of the others, and of any beyond the rows.
template <std::size_t R, std::size_t V, class Stride>
HWY_INLINE void add_rows(Sums<R, V>& sums, const float* x, const float* dz, Stride dz_step,
                         std::size_t rows, std::uint64_t used) {
  used &= low_bits(rows);
  if (static_cast<std::size_t>(std::popcount(used)) >= rows - rows / 8) {
    return add_terms<0>(sums, x, 1, group_inputs, dz, dz_step, rows);
  }
  for (; used != 0; used &= used - 1) {
    const auto k = static_cast<std::size_t>(std::countr_zero(used));
    add_term(sums, x + k * group_inputs, 1, dz + k * dz_step);
  }
}

/// One leaf in bf16, while denormals are flushed.
template <std::size_t R, std::size_t V>
HWY_NOINLINE void sum_bf16_leaf(Sums<R, V>& sums, const WeightsTask& t, std::size_t i,
                                std::size_t count) {
  const Strided rows{t.x + i * group_inputs, 1, group_inputs, t.dz + i * t.dz_step, t.dz_step};
  for (std::size_t n = 0; n < count; n += bf16_chunk) {
    const std::size_t terms = std::min(bf16_chunk, count - n);
    const bool is_first = n == 0 && t.begins;
#if HWY_ARCH_X86
    if (t.masks != nullptr) {
      const auto used = static_cast<std::uint32_t>(used_rows<R>(t, i + n, terms) & low_bits(terms));
      if (2 * static_cast<std::size_t>(std::popcount(used)) <= terms) {  // else not worth it
        const Strided from{rows.factor(n), rows.row, rows.step, rows.columns(n), rows.stride};
        add_chunk<0>(sums,
                     Pair<Chosen>{{from, used & 0x55555555U}, 0, {from, used & 0xaaaaaaaaU}, 0},
                     is_first);
        continue;
      }
    }
#endif
    add_chunk<0>(sums, chunk_of(rows, n, terms), is_first);
  }
}

constexpr std::size_t bf16_leaves = 8;  // that are summed while denormals are flushed

/// Eight leaves: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
template <std::size_t R, std::size_t V>
HWY_INLINE void add_leaves(Sums<R, V>& sums, const std::array<Sums<R, V>, bf16_leaves>& leaves) {
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      Vector pairs[bf16_leaves / 2];
      LOCKSTEP_UNROLL for (std::size_t n = 0; n < bf16_leaves / 2; ++n) {
        pairs[n] = hn::Add(leaves[2 * n].at[r][v], leaves[2 * n + 1].at[r][v]);
      }
      sums.at[r][v] = hn::Add(hn::Add(pairs[0], pairs[1]), hn::Add(pairs[2], pairs[3]));
    }
  }
}

/// The node of a section in bf16: eight leaves with denormals flushed, then their part of the tree
/// without. Nodes of eight leaves and the leaves after them share the pending nodes, as below.
template <std::size_t R, std::size_t V>
HWY_INLINE void sum_bf16_leaves(Sums<R, V>& sums, const WeightsTask& t) {
  std::array<Sums<R, V>, bf16_leaves> leaves;
  for (std::size_t i = 0, q = 0; i < t.rows; ++q) {
    std::size_t count = 0;
    {
      const FlushDenormals mode;
      begin_leaf(leaves[0], t);
      for (; count < leaves.size() && i < t.rows; ++count) {
        const std::size_t rows = std::min(t.leaf, t.rows - i);
        sum_bf16_leaf(leaves[count], t, i, rows);
        i += rows;
      }
    }
    if (count == leaves.size()) {
      add_leaves(sums, leaves);
      merge_pending_nodes(sums, t.nodes, q, i == t.rows);
      continue;
    }
    for (std::size_t n = 0; n < count; ++n) {
      sums = leaves[n];
      merge_pending_nodes(sums, t.nodes, q * bf16_leaves + n, n + 1 == count);
    }
  }
}

/// Whole leaves from row i on: (0 + 1) + (2 + 3). The tile has all columns packed together.
/// `waiting`: two nodes.
template <std::size_t R, std::size_t V>
HWY_INLINE void sum_four_leaves(Sums<R, V>& sums, const WeightsTask& t, std::size_t i,
                                std::uint64_t used, float* waiting) {
  constexpr Constant<V * lanes> dz_step;
  const std::size_t leaf = t.leaf;
  assert(t.begins);  // else the section is part of one long leaf
  const float* x = t.x + i * group_inputs;
  const float* dz = t.dz + i * dz_step;
  LOCKSTEP_UNROLL for (std::size_t n = 0; n < 4; ++n) {
    clear(sums);
    add_rows(sums, x, dz, dz_step, leaf, used);
    merge_pending_nodes(sums, waiting, n, n == 3);
    x += leaf * group_inputs;
    dz += leaf * dz_step;
    used >>= leaf;
    // Else compilers keep the nodes in registers, and the sums of the next leaf in memory.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

/// canonical() of all sums: one by one only if one of them is not finite.
template <std::size_t R, std::size_t V>
HWY_INLINE void make_canonical(Sums<R, V>& sums) {
  const Vector zero = hn::Zero(tag);
  Vector products[V];  // zero times the sums: NaN if one is not finite
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
    products[v] = zero;
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      sums.at[r][v] = hn::Add(sums.at[r][v], zero);
      products[v] = hn::MulAdd(sums.at[r][v], zero, products[v]);
    }
  }
  LOCKSTEP_UNROLL for (std::size_t v = 1; v < V; ++v) {
    products[0] = hn::Add(products[0], products[v]);
  }
  if (hn::AllTrue(tag, hn::Eq(products[0], zero))) return;
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) sums.at[r][v] = canonical(sums.at[r][v]);
  }
}

/// Sets columns from `exist` on to zero: an infinite dz times their zeros is NaN.
template <std::size_t R, std::size_t V>
HWY_INLINE void clear_padding(Sums<R, V>& sums, std::size_t exist) {
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
    const std::size_t left = exist - std::min(exist, v * lanes);
    const auto inside = hn::FirstN(tag, std::min(left, lanes));
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      sums.at[r][v] = hn::IfThenElseZero(inside, sums.at[r][v]);
    }
  }
}

/// Prefetches the nodes that merge_pending_sections() will load, and the one that it will store.
template <std::size_t R, std::size_t V>
HWY_INLINE void prefetch_sections(const WeightsTask& t) {
  const int waiting = std::popcount(t.section);
  const int merges = merges_of(t.section, t.last_section);
  for (int node = waiting - merges; node < waiting + (merges == 0 ? 1 : 0); ++node) {
    const float* at = section_node(t, static_cast<std::size_t>(node));
    for (std::size_t r = 0; r < R; ++r, at += t.dw_step) prefetch_columns<V>(at);
  }
}

/// merge_pending() for nodes of sections. The root goes to dw.
template <std::size_t R, std::size_t V>
HWY_INLINE void merge_pending_sections(Sums<R, V>& sums, const WeightsTask& t) {
  const auto at = [&t](std::size_t node) { return section_node(t, node); };
  merge_pending(sums, t.section, t.last_section, at, t.dw_step);
  if (!t.last_section) return;
  make_canonical(sums);
  if (t.exist < V * lanes) clear_padding(sums, t.exist);
  store(sums, t.dw, t.dw_step);
}

/// The node of a section in float32: four whole leaves at a time, then the others. Nodes of four
/// and leaves share the pending nodes: as many wait before node n / 4 as before leaf n.
template <std::size_t R, std::size_t V>
HWY_INLINE void sum_leaves(Sums<R, V>& sums, const WeightsTask& t) {
  constexpr std::size_t most = 64;  // rows whose bits are looked up at once
  static_assert(most <= least_section_rows);
  std::size_t i = 0;
  std::size_t n = 0;  // leaf
  if (t.dz_step == V * lanes && 4 * t.leaf <= most) {
    for (const std::size_t four = 4 * t.leaf; t.rows - i >= four; n += 4) {
      const std::uint64_t used = used_rows<R>(t, i, four);
      if ((used & low_bits(four)) == 0) {
        clear(sums);
      } else {
        float* const waiting =
            t.nodes + static_cast<std::size_t>(std::popcount(n)) * (R * V * lanes);
        sum_four_leaves(sums, t, i, used, waiting);
      }
      i += four;
      merge_pending_nodes(sums, t.nodes, n / 4, i == t.rows);
    }
  }
  for (; i < t.rows; ++n) {
    begin_leaf(sums, t);
    for (const std::size_t end = std::min(i + t.leaf, t.rows); i < end;) {
      const std::size_t count = std::min(most, end - i);
      add_rows(sums, t.x + i * group_inputs, t.dz + i * t.dz_step, t.dz_step, count,
               used_rows<R>(t, i, count));
      i += count;
    }
    merge_pending_nodes(sums, t.nodes, n, i == t.rows);
  }
}

template <class Chain, std::size_t R, std::size_t V>
struct WeightsTile {
  static void run(const WeightsTask& t) {
    prefetch_sections<R, V>(t);
    Sums<R, V> sums;
    if constexpr (Chain::is_bf16) {
      sum_bf16_leaves(sums, t);
    } else {
      sum_leaves(sums, t);
    }
    if (!t.ends) return store(sums, open_leaf(t), t.dw_step);
    merge_pending_sections(sums, t);
  }
};

/// Prefetches what is packed after a line of a row: the columns beside it, and those below the rows
/// that are packed together.
HWY_INLINE void prefetch_next(const float* line, std::size_t step, std::size_t columns) {
  hwy::Prefetch(line + columns);
  hwy::Prefetch(line + mask_rows * step);
}

/// Columns [first, first + columns) of `rows` rows as factors, one row after the other; zero beyond
/// `exist`. False if one is not finite.
template <class Chain>
bool pack(const float* first, std::size_t step, std::size_t rows, std::size_t exist,
          std::size_t columns, float* out) {
  Finite finite;
  for (std::size_t i = 0; i < rows; ++i, first += step, out += columns) {
    for (std::size_t c = 0; c < columns; c += lanes) {
      prefetch_next(first + c, step, columns);
      const Vector in = load(first_lanes(c < exist ? exist - c : 0), first + c);
      const Vector factor = Chain::factor(in);
      finite.see(factor);
      hn::Store(factor, tag, out + c);
    }
  }
  return finite.all();
}

/// Packs up to mask_rows rows of the inputs of a group, as above, and writes their masks
/// (WeightsTask::masks).
template <class Chain>
void pack_masked(const float* first, std::size_t step, std::size_t rows, std::size_t exist,
                 float* out, std::uint32_t* masks) {
  for (std::size_t c = 0; c < group_inputs; c += lanes) {
    const auto inside = first_lanes(c < exist ? exist - c : 0);
    auto used = hn::Zero(word_tag);
    for (std::size_t i = 0; i < rows; ++i) {
      const float* const line = first + i * step + c;
      prefetch_next(line, step, group_inputs);
      const Vector x = Chain::factor(load(inside, line));
      hn::Store(x, tag, out + i * group_inputs + c);
      const auto bits = hn::ShiftLeft<1>(hn::BitCast(word_tag, x));  // without the sign
      const auto bit = hn::Set(word_tag, std::uint32_t{1} << i);
      used = hn::Or(used, hn::IfThenElseZero(hn::Ne(bits, hn::Zero(word_tag)), bit));
    }
    hn::Store(used, word_tag, masks + c);
  }
}

/// True if short tiles leave out at least a quarter of the terms of a group. `masks`: of the group.
template <class Chain>
bool pays_short_tiles(const std::uint32_t* masks, std::size_t rows) {
  constexpr std::size_t height = short_rows(weights_vectors);
  if constexpr (height == weights_rows<Chain>(weights_vectors)) {
    return false;
  } else {
    static_assert(lanes == 8 || group_inputs % height == 0);
    constexpr std::size_t tiles = group_inputs / height;
    std::size_t used = 0;
    for (std::size_t i = 0; i < rows; i += mask_rows, masks += mask_words) {
      for (std::size_t k = 0; k < group_inputs; k += height) {
        std::uint32_t bits = 0;
        for (std::size_t r = 0; r < height; ++r) bits |= masks[k + r];
        used += static_cast<std::size_t>(std::popcount(bits));
      }
    }
    return 4 * used <= 3 * tiles * rows;
  }
}

/// One section of rows of a call, and the parts of scratch (WeightsScratch).
struct WeightsSection {
  Panels layout;
  std::size_t rows;
  std::size_t leaf;
  std::size_t index;  ///< of its node: of several leaves, or of one in several sections
  bool begins;        ///< the section begins the node, or ends it
  bool ends;
  bool last;
  float* columns;
  float* factors;
  std::uint32_t* masks;  ///< null: no term is left out
  float* sections;
  std::size_t slice;  ///< floats of dw

  /// The masks of a group of a strip's inputs.
  std::uint32_t* masks_of(std::size_t group) const {
    return masks + group * mask_rounds(rows) * mask_words;
  }
  /// Columns of the tile that holds column j; tiles begin at multiples of weights_columns.
  std::size_t tile_width(std::size_t j) const {
    return std::min(weights_columns,
                    round_to_unit(layout.outputs) - j / weights_columns * weights_columns);
  }
};

/// The columns of the panels that a slice has parts of.
inline Range columns_of_slice(const Panels& layout, Range slice) {
  const std::size_t panel_floats = panel_columns * layout.inputs;
  return {slice.begin / panel_floats * panel_columns,
          std::min(ceil_divide(slice.end, panel_floats) * panel_columns,
                   round_to_unit(layout.outputs))};
}

/// Packs dz of the panels that the slice needs; returns what pack() does. Here and below some
/// rows after the other, of all columns: a pass over all rows for each column would need a page of
/// memory for each row.
template <class Chain>
bool pack_columns(const WeightsSection& c, Matrix<const float> dz, Range slice) {
  const auto [begin, end] = columns_of_slice(c.layout, slice);
  bool finite = true;
  for (std::size_t i = 0; i < dz.rows; i += mask_rows) {
    const std::size_t rows = std::min(mask_rows, dz.rows - i);
    for (std::size_t j = begin; j < end; j += weights_columns) {
      const std::size_t width = c.tile_width(j);
      finite &=
          pack<Chain>(dz.data + i * dz.cols + j, dz.cols, rows, dz.cols - std::min(dz.cols, j),
                      width, c.columns + j * dz.rows + i * width);
    }
  }
  return finite;
}

/// Packs x of a strip of inputs. Returns bits of the groups of which short tiles pay.
template <class Chain>
std::uint64_t pack_factors(const WeightsSection& c, Matrix<const float> x, Range strip) {
  for (std::size_t i = 0; i < c.rows; i += mask_rows) {
    const std::size_t rows = std::min(mask_rows, c.rows - i);
    for (std::size_t k = 0; k < strip.size(); k += group_inputs) {
      const float* const from = x.data + i * x.cols + strip.begin + k;
      float* const factors = c.factors + k * c.rows + i * group_inputs;
      const std::size_t exist = strip.size() - k;
      if (c.masks == nullptr) {
        pack<Chain>(from, x.cols, rows, exist, group_inputs, factors);
      } else {
        std::uint32_t* const masks = c.masks_of(k / group_inputs) + i / mask_rows * mask_words;
        pack_masked<Chain>(from, x.cols, rows, exist, factors, masks);
      }
    }
  }
  if (c.masks == nullptr) return 0;
  std::uint64_t groups = 0;
  for (std::size_t k = 0, group = 0; k < strip.size(); k += group_inputs, ++group) {
    groups |= std::uint64_t{pays_short_tiles<Chain>(c.masks_of(group), c.rows)} << group;
  }
  return groups;
}

/// The part of the slice in a strip of inputs, whose groups `short_tiles` go by such. All tiles of
/// the same columns follow each other: dz of these stays in L2, and x of a group of inputs in L1.
template <class Chain>
void weights_strip(const WeightsSection& c, Range slice, Range strip, std::uint64_t short_tiles,
                   float* dw) {
  alignas(64) std::array<float, max_waiting * tile_floats> nodes;
  for (std::size_t at = slice.begin; at < slice.end;) {
    const PanelBlock block = c.layout.block_at(at, slice.end);
    const Range inputs = {std::max(strip.begin, block.first_row),
                          std::min(strip.end, block.last_row)};
    for (std::size_t column = 0, columns = 0; inputs.begin < inputs.end && column < block.width;
         column += columns) {
      const std::size_t j = block.column + column;
      const std::size_t skip = j % weights_columns;  // of the columns packed together
      columns = std::min(weights_columns - skip, block.width - column);
      const std::size_t vectors = columns / lanes;
      const std::size_t offset =
          (at - slice.begin) + (inputs.begin - block.first_row) * block.width + column;
      WeightsTask task{.x = nullptr,
                       .dz = c.columns + (j - skip) * c.rows + skip,
                       .dz_step = c.tile_width(j),
                       .dw = dw + offset,
                       .dw_step = block.width,
                       .exist = c.layout.outputs - std::min(c.layout.outputs, j),
                       .rows = c.rows,
                       .leaf = c.leaf,
                       .section = c.index,
                       .begins = c.begins,
                       .ends = c.ends,
                       .last_section = c.last,
                       .masks = nullptr,
                       .nodes = nodes.data(),
                       .sections = c.sections + offset,
                       .sections_step = c.slice};
      for (std::size_t k = inputs.begin, count = 0; k < inputs.end; k += count) {
        const std::size_t group = (k - strip.begin) / group_inputs;
        const std::size_t first = (k - strip.begin) % group_inputs;  // of the group's inputs
        count = std::min(group_inputs - first, inputs.end - k);
        const bool is_short = (short_tiles >> group & 1) != 0;
        for_tiles(
            count, is_short ? short_rows(vectors) : weights_rows<Chain>(vectors),
            [&](std::size_t r, std::size_t height) HWY_ATTR {
              task.x = c.factors + group * group_inputs * c.rows + first + r;
              if (c.masks != nullptr) task.masks = c.masks_of(group) + first + r;
              Dispatch<WeightsTile, Chain, WeightsTask, weights_vectors, weights_rows<Chain>>::call(
                  height, columns, task);
              task.dw += height * task.dw_step;
              task.sections += height * task.dw_step;
            });
      }
    }
    at += (block.last_row - block.first_row) * block.width;
  }
}

std::size_t weights_scratch_size(std::size_t rows, std::size_t outputs, std::size_t leaf,
                                 std::size_t slice) noexcept {
  return WeightsScratch(weights_blocking(), rows, outputs, leaf, slice).sections;
}

template <class Chain>
void backward_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf, Range slice,
                      std::span<float> dw, Zeros zeros, std::span<float> scratch) {
  const Panels layout{x.cols, dz.cols};
  assert(x.rows == dz.rows);
  assert(dw.size() == slice.size() && slice.end <= layout.size() && leaf > 0);
  const WeightsBlocking blocking = weights_blocking();
  const WeightsScratch ends(blocking, dz.rows, dz.cols, leaf, slice.size());
  assert(scratch.size() >= ends.sections);
  if (dz.rows == 0) return std::fill(dw.begin(), dw.end(), 0.0F);
  auto* const masks = reinterpret_cast<std::uint32_t*>(scratch.data() + ends.factors);
  WeightsSection section{.layout = layout,
                         .rows = 0,
                         .leaf = std::min(leaf, dz.rows),
                         .index = 0,
                         .begins = true,
                         .ends = true,
                         .last = false,
                         .columns = scratch.data(),
                         .factors = scratch.data() + ends.columns,
                         .masks = nullptr,
                         .sections = scratch.data() + ends.masks,
                         .slice = slice.size()};
  for (std::size_t i = 0; i < dz.rows; i += section.rows) {
    section.index = i / ends.node;
    const std::size_t end = std::min(dz.rows, (section.index + 1) * ends.node);
    const Range rows = {i, std::min(end, i + ends.rows)};
    section.rows = rows.size();
    section.begins = i % ends.node == 0;
    section.ends = rows.end == end;
    section.last = rows.end == dz.rows;
    const bool finite = pack_columns<Chain>(section, dz.slice(rows), slice);
    // Zero times an infinite dz is NaN; in bf16 a finite dz may have become infinite.
    section.masks = zeros == Zeros::automatic && finite ? masks : nullptr;
    for (std::size_t k = 0; k < layout.inputs; k += blocking.inputs) {
      const Range strip = {k, std::min(k + blocking.inputs, layout.inputs)};
      const std::uint64_t short_tiles = pack_factors<Chain>(section, x.slice(rows), strip);
      weights_strip<Chain>(section, slice, strip, short_tiles, dw.data());
    }
  }
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_KERNELS
#endif  // guard
