// dW and db: leaves summed in register tiles, with the tree over leaves evaluated inside them.
//
// Included once per target: the include guard toggles with Highway's.
#if defined(LOCKSTEP_STRICT_WEIGHTS) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STRICT_WEIGHTS
#undef LOCKSTEP_STRICT_WEIGHTS
#else
#define LOCKSTEP_STRICT_WEIGHTS
#endif

#include "lockstep/numerics/strict_tile-inl.hpp"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

struct WeightsTask {
  const float* x;  ///< from one input on: rows of group_inputs
  const float* dz;
  std::size_t dz_step;  ///< distance between rows
  float* dw;
  std::size_t width;    ///< of a row of dw
  std::size_t columns;  ///< of dw that exist from here on
  std::size_t rows;     ///< of this block
  std::size_t leaf;
  std::size_t block;  ///< index of this block
  std::size_t first;  ///< row of the call that is row 0 of this block
  bool last;          ///< true for the last block
  /// Of the tile's first input, for rows of the call: a word of mask_rows rows after the other,
  /// mask_words apart; null: no term is left out.
  const std::uint32_t* masks;
  float* leaves;  ///< pending nodes within the block (without their right sibling yet)
  float* blocks;  ///< pending nodes of whole blocks
};

/// Adds node `index` of one tree level, given in `sums`; `waiting` holds the pending nodes, those
/// without their right sibling yet, oldest first. The tree is a binary counter: as many pending
/// nodes are merged as the index has trailing ones, newest first, older + newer. The last node is
/// merged with all pending ones and stays in `sums`; any other becomes pending.
template <std::size_t R, std::size_t V>
HWY_INLINE void merge_pending_nodes(Sums<R, V>& sums, float* waiting, std::size_t index,
                                    bool last) {
  const int count = std::popcount(index);
  float* top = waiting + static_cast<std::size_t>(count) * (R * V * lanes);
  for (int merges = last ? count : std::countr_one(index); merges > 0; --merges) {
    top -= R * V * lanes;
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        sums.at[r][v] = hn::Add(hn::Load(tag, top + (r * V + v) * lanes), sums.at[r][v]);
      }
    }
  }
  if (!last) store(sums, top, V * lanes);
}

/// One leaf, without the examples of which all inputs of the tile are zero, where there are
/// several.
template <std::size_t R, std::size_t V>
HWY_INLINE void sum_leaf(Sums<R, V>& sums, const WeightsTask& t, std::size_t i, std::size_t count) {
  clear(sums);
  const float* x = t.x + i * group_inputs;
  const float* dz = t.dz + i * t.dz_step;
  if (t.masks == nullptr) {
    return multiply_add<0>(sums, x, 1, group_inputs, dz, t.dz_step, count);
  }
  for (std::size_t row = t.first + i, end = row + count, rows = 0; row < end; row += rows) {
    const std::size_t bit = row % mask_rows;
    rows = std::min(mask_rows - bit, end - row);
    const std::uint32_t* masks = t.masks + row / mask_rows * mask_words;
    std::uint64_t used = 0;
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) used |= masks[r];
    used = used >> bit & ((std::uint64_t{1} << rows) - 1);
    if (static_cast<std::size_t>(std::popcount(used)) >= rows - rows / 8) {
      multiply_add<0>(sums, x, 1, group_inputs, dz, t.dz_step, rows);
    } else {
      for (; used != 0; used &= used - 1) {
        const auto n = static_cast<std::size_t>(std::countr_zero(used));
        multiply_add<0>(sums, x + n * group_inputs, 1, 0, dz + n * t.dz_step, 0, 1);
      }
    }
    x += rows * group_inputs;
    dz += rows * t.dz_step;
  }
}

template <std::size_t R, std::size_t V>
struct WeightsTile {
  static void run(const WeightsTask& t) {
    Sums<R, V> sums;
    float* fours = t.leaves + 2 * R * V * lanes;
    for (std::size_t q = 0, i = 0; i < t.rows; ++q) {
      if (t.rows - i >= 4 * t.leaf) {  // unrolled, for better branch prediction
        LOCKSTEP_UNROLL for (std::size_t n = 0; n < 4; ++n, i += t.leaf) {
          sum_leaf(sums, t, i, t.leaf);
          merge_pending_nodes(sums, t.leaves, n, n == 3);
        }
      } else {
        for (std::size_t n = 0; i < t.rows; ++n) {
          const std::size_t count = std::min(t.leaf, t.rows - i);
          sum_leaf(sums, t, i, count);
          i += count;
          merge_pending_nodes(sums, t.leaves, n, i == t.rows);
        }
      }
      merge_pending_nodes(sums, fours, q, i == t.rows);
    }
    merge_pending_nodes(sums, t.blocks, t.block, t.last);
    if (!t.last) return;
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      // Sets padding to zero: infinity times its zeros is NaN.
      const auto exist = first_lanes(t.columns - std::min(t.columns, v * lanes));
      LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
        sums.at[r][v] = hn::IfThenElseZero(exist, canonical(sums.at[r][v]));
      }
    }
    store(sums, t.dw, t.width);
  }
};

/// Columns [first, first + columns) of `rows` rows, one row after the other; zero beyond `exist`.
/// Writes up to one vector past the end.
void pack(const float* first, std::size_t step, std::size_t rows, std::size_t exist,
          std::size_t columns, float* out) {
  for (std::size_t i = 0; i < rows; ++i, first += step, out += columns) {
    for (std::size_t c = 0; c < columns; c += lanes) {
      const auto mask = first_lanes(c < exist ? exist - c : 0);
      hn::StoreU(hn::MaskedLoad(mask, tag, first + c), tag, out + c);
    }
  }
}

/// Packs the inputs of a group, as above, and writes their masks (WeightsTask::masks).
void pack_masked(const float* first, std::size_t step, std::size_t rows, std::size_t exist,
                 float* out, std::uint32_t* masks) {
  constexpr hn::RebindToUnsigned<decltype(tag)> words;
  constexpr std::size_t vectors = (group_inputs + lanes - 1) / lanes;
  static_assert(vectors * lanes <= mask_words);
  for (std::size_t i = 0; i < rows; masks += mask_words) {
    hn::Vec<decltype(words)> used[vectors];
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < vectors; ++v) used[v] = hn::Zero(words);
    std::uint32_t bit = 1;
    for (const std::size_t end = std::min(rows, i + mask_rows); i < end; ++i, bit <<= 1U) {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < vectors; ++v) {
        const std::size_t c = v * lanes;
        const auto mask = first_lanes(c < exist ? std::min(exist, group_inputs) - c : 0);
        const Vector x = hn::MaskedLoad(mask, tag, first + c);
        hn::StoreU(x, tag, out + c);
        const auto bits = hn::ShiftLeft<1>(hn::BitCast(words, x));  // without the sign
        used[v] =
            hn::Or(used[v], hn::IfThenElseZero(hn::Ne(bits, hn::Zero(words)), hn::Set(words, bit)));
      }
      first += step;
      out += group_inputs;
    }
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < vectors; ++v) {
      hn::StoreU(used[v], words, masks + v * lanes);
    }
  }
}

/// One call and its parts of scratch.
struct WeightsCall {
  Panels layout;
  std::size_t rows;
  std::size_t leaf;
  float* waiting;        ///< nodes of a strip: [tile][level]
  float* columns;        ///< dz: [panel][row][width]
  float* factors;        ///< x of a strip: [group][row][group_inputs]
  std::uint32_t* masks;  ///< of a strip: [group][row / mask_rows][mask_words]; null: none
};

/// Rows [first, last) of the strip in c.factors, times dz of columns that make one tile.
void weights_tiles(const WeightsCall& c, std::size_t first, std::size_t last, std::size_t columns,
                   WeightsTask task) {
  alignas(64) std::array<float, max_waiting * tile_floats> leaves;
  // A block is a power of two of leaves, hence a node of the tree.
  const std::size_t rows = std::bit_floor(std::max(block_rows / c.leaf, std::size_t{1})) * c.leaf;
  const std::size_t node_floats = block_levels(c.rows) * tile_floats;
  const float* dz = task.dz;
  float* dw = task.dw;
  task.leaf = c.leaf;
  task.leaves = leaves.data();
  for (std::size_t i = 0; i < c.rows; i += rows) {
    task.rows = std::min(rows, c.rows - i);
    task.block = i / rows;
    task.first = i;
    task.last = i + rows >= c.rows;
    task.blocks = c.waiting;
    task.dz = dz + i * task.dz_step;
    for (std::size_t k = first, inputs = 0; k < last; k += inputs) {
      const std::size_t skip = k % group_inputs;
      inputs = std::min(group_inputs - skip, last - k);
      const float* x = c.factors + (k - skip) * c.rows + i * group_inputs + skip;
      const std::size_t group = k / group_inputs;
      for_tiles(inputs, columns, [&](std::size_t r, std::size_t height) HWY_ATTR {
        task.x = x + r;
        if (c.masks != nullptr) {
          task.masks = c.masks + group * mask_rounds(c.rows) * mask_words + skip + r;
        }
        task.dw = dw + (k - first + r) * task.width;
        Dispatch<WeightsTile, WeightsTask>::call(height, columns, task);
        task.blocks += node_floats;
      });
    }
  }
}

/// The part of the slice in the strip of inputs [first, last).
void weights_strip(const WeightsCall& c, Range slice, std::size_t first, std::size_t last,
                   float* dw) {
  for (std::size_t at = slice.begin; at < slice.end;) {
    const PanelBlock block = c.layout.block_at(at, slice.end);
    const std::size_t k = std::max(first, block.first_row);
    const std::size_t end = std::min(last, block.last_row);
    const std::size_t panel = block.column / panel_columns;
    for (std::size_t column = 0; k < end && column < block.width; column += max_columns) {
      WeightsTask task{};
      task.dz = c.columns + panel * panel_columns * c.rows + block.column % panel_columns + column;
      task.dz_step = c.layout.width(panel);
      task.dw = dw + (at - slice.begin) + (k - block.first_row) * block.width + column;
      task.width = block.width;
      task.columns = c.layout.outputs - std::min(c.layout.outputs, block.column + column);
      weights_tiles(c, k - first, end - first, std::min(max_columns, block.width - column), task);
    }
    at += (block.last_row - block.first_row) * block.width;
  }
}

void backward_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf, Range slice,
                      std::span<float> dw, Zeros zeros, std::span<float> scratch) {
  const Panels layout{x.cols, dz.cols};
  assert(x.rows == dz.rows);
  assert(dw.size() == slice.size() && slice.end <= layout.size() && leaf > 0);
  assert(scratch.size() >= strict_scratch_size(dz.rows, dz.cols));
  if (dz.rows == 0) return std::fill(dw.begin(), dw.end(), 0.0F);
  float* columns = scratch.data() + strip_tiles * block_levels(dz.rows) * tile_floats;
  float* factors = columns + dz.rows * round_to_unit(dz.cols);
  auto* const masks =
      reinterpret_cast<std::uint32_t*>(factors + dz.rows * strip_inputs + panel_unit);
  const WeightsCall call{.layout = layout,
                         .rows = dz.rows,
                         .leaf = leaf,
                         .waiting = scratch.data(),
                         .columns = columns,
                         .factors = factors,
                         .masks = zeros == Zeros::dense ? nullptr : masks};
  const std::size_t panel_floats = panel_columns * layout.inputs;
  for (std::size_t panel = slice.begin / panel_floats; panel * panel_floats < slice.end; ++panel) {
    const std::size_t j = panel * panel_columns;
    pack(dz.data + j, dz.cols, dz.rows, dz.cols - j, layout.width(panel), columns + j * dz.rows);
  }
  for (std::size_t k = 0; k < layout.inputs; k += strip_inputs) {
    const std::size_t last = std::min(k + strip_inputs, layout.inputs);
    for (std::size_t g = k; g < last; g += group_inputs) {
      float* const group = call.factors + (g - k) * dz.rows;
      if (call.masks == nullptr) {
        pack(x.data + g, x.cols, dz.rows, last - g, group_inputs, group);
      } else {
        pack_masked(x.data + g, x.cols, dz.rows, last - g, group,
                    call.masks + (g - k) / group_inputs * mask_rounds(dz.rows) * mask_words);
      }
    }
    weights_strip(call, slice, k, last, dw.data());
  }
}

/// The sums over all rows of the columns that begin at `dz`, of which `exist` exist.
void bias_columns(const float* dz, Matrix<const float> all, std::size_t leaf, std::size_t exist,
                  float* waiting, std::array<float, max_columns>& out) {
  constexpr std::size_t V = max_vectors;
  hn::Mask<decltype(tag)> masks[V];
  for (std::size_t v = 0; v < V; ++v) masks[v] = first_lanes(exist - std::min(exist, v * lanes));
  Sums<1, V> sums;
  for (std::size_t q = 0, i = 0; i < all.rows; ++q) {
    clear(sums);
    for (const std::size_t end = i + std::min(leaf, all.rows - i); i < end; ++i, dz += all.cols) {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        const Vector row = hn::MaskedLoad(masks[v], tag, dz + v * lanes);
        sums.at[0][v] = hn::Add(row, sums.at[0][v]);
      }
    }
    merge_pending_nodes(sums, waiting, q, i == all.rows);
  }
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
    hn::StoreU(canonical(sums.at[0][v]), tag, out.data() + v * lanes);
  }
}

/// Leaf by leaf, directly from dz, without packing.
void backward_bias(Matrix<const float> dz, std::size_t leaf, Range slice, std::span<float> db,
                   std::span<float> scratch) {
  assert(db.size() == slice.size() && slice.end <= round_to_unit(dz.cols) && leaf > 0);
  assert(scratch.size() >= strict_scratch_size(dz.rows, dz.cols));
  if (dz.rows == 0) return std::fill(db.begin(), db.end(), 0.0F);
  alignas(64) std::array<float, max_columns> sums;
  for (std::size_t j = slice.begin; j < slice.end; j += max_columns) {
    const std::size_t exist = std::min(max_columns, dz.cols - std::min(dz.cols, j));
    bias_columns(dz.data + j, dz, leaf, exist, scratch.data(), sums);
    const std::size_t count = std::min(max_columns, slice.end - j);
    std::copy_n(sums.begin(), count, db.begin() + static_cast<std::ptrdiff_t>(j - slice.begin));
  }
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // AVX2 or AVX3
#endif  // guard
