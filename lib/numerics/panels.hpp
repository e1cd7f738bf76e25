// The layout that a dense layer's weights live in for good: panels of 64 output columns.
//
// The strict products read it as it stands, so nothing is packed in a step. A panel holds all
// inputs of 64 outputs, one input after the other, so each of its rows is four cache lines:
//
//   element (k, j)  stands at  64 * (j / 64) * inputs  +  k * width  +  j % 64
//
// where width is 64, but for the last panel the remaining outputs rounded up to 16. Every panel and
// every row begins at a multiple of 16 floats. Columns beyond `outputs` are padding: zero, and
// the products keep them so. The logical matrix (row-major, no padding) is what files and hashes
// see.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <span>

#include "lib/numerics/matrix.hpp"

namespace lockstep {

inline constexpr std::size_t panel_columns = 64;
inline constexpr std::size_t panel_unit =
    16;  ///< floats in a cache line: what widths are rounded to

constexpr std::size_t round_to_unit(std::size_t count) noexcept {
  return (count + panel_unit - 1) / panel_unit * panel_unit;
}

/// Rows [first_row, last_row) of one panel, and of them the columns [column, column + width).
struct PanelBlock {
  std::size_t first_row = 0;
  std::size_t last_row = 0;
  std::size_t column = 0;  ///< of the matrix
  std::size_t width = 0;   ///< a multiple of 16, at most 64; may cover padding
};

/// Where the elements of an [inputs, outputs] matrix stand. Pure arithmetic; owns no memory.
struct Panels {
  std::size_t inputs = 0;   ///< at least 1
  std::size_t outputs = 0;  ///< at least 1

  /// Floats in all panels, padding included.
  constexpr std::size_t size() const noexcept { return inputs * round_to_unit(outputs); }
  constexpr std::size_t panels() const noexcept {
    return (outputs + panel_columns - 1) / panel_columns;
  }
  constexpr std::size_t first_of(std::size_t panel) const noexcept {
    return panel * panel_columns * inputs;
  }
  constexpr std::size_t width(std::size_t panel) const noexcept {
    return std::min(panel_columns, round_to_unit(outputs) - panel * panel_columns);
  }
  constexpr std::size_t index(std::size_t k, std::size_t j) const noexcept {
    assert(k < inputs && j < outputs);
    const std::size_t panel = j / panel_columns;
    return first_of(panel) + k * width(panel) + j % panel_columns;
  }
  constexpr Range all() const noexcept { return {0, size()}; }

  /// The block that begins at the flat position `first` (a multiple of 16, below `last`) and
  /// reaches as far as one rectangle can: a piece of a row up to that row's end, or whole rows.
  /// Walking block by block covers a slice once and in the flat order, as
  /// (last_row - first_row) * width floats each.
  PanelBlock block_at(std::size_t first, std::size_t last) const noexcept;
};

/// Weights in panels that somebody else owns; 64-byte aligned.
struct PanelWeights {
  Panels layout;
  std::span<const float> values;  ///< layout.size() of them
};

/// Copies a row-major matrix [inputs, outputs] into panels; padding becomes zero.
void to_panels(Matrix<const float> matrix, const Panels& layout, std::span<float> panels);

/// Copies panels into a row-major matrix [inputs, outputs]; padding is left behind.
void from_panels(PanelWeights panels, Matrix<float> matrix);

}  // namespace lockstep
