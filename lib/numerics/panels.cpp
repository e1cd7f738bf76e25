#include "lib/numerics/panels.hpp"

namespace lockstep {

PanelBlock Panels::block_at(std::size_t first, std::size_t last) const noexcept {
  assert(first % panel_unit == 0 && last % panel_unit == 0 && first < last && last <= size());
  const std::size_t panel = first / (panel_columns * inputs);
  const std::size_t columns = width(panel);
  const std::size_t row = (first - first_of(panel)) / columns;
  const std::size_t column = (first - first_of(panel)) % columns;
  const std::size_t end = std::min(last, first_of(panel) + inputs * columns);

  const std::size_t whole_rows = (end - first) / columns;
  const bool piece = column != 0 || whole_rows == 0;
  return {.first_row = row,
          .last_row = row + (piece ? 1 : whole_rows),
          .column = panel * panel_columns + column,
          .width = piece ? std::min(columns - column, end - first) : columns};
}

void to_panels(Matrix<const float> matrix, const Panels& layout, std::span<float> panels) {
  assert(matrix.rows == layout.inputs && matrix.cols == layout.outputs);
  assert(panels.size() == layout.size());
  std::fill(panels.begin(), panels.end(), 0.0F);
  for (std::size_t k = 0; k < layout.inputs; ++k) {
    for (std::size_t j = 0; j < layout.outputs; ++j) panels[layout.index(k, j)] = matrix(k, j);
  }
}

void from_panels(PanelWeights panels, Matrix<float> matrix) {
  const Panels& layout = panels.layout;
  assert(matrix.rows == layout.inputs && matrix.cols == layout.outputs);
  assert(panels.values.size() == layout.size());
  for (std::size_t k = 0; k < layout.inputs; ++k) {
    for (std::size_t j = 0; j < layout.outputs; ++j) {
      matrix(k, j) = panels.values[layout.index(k, j)];
    }
  }
}

}  // namespace lockstep
