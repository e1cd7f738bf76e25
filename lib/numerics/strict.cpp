// The `strict` products as Products: weights in panels; threads divide rows or a slice.

#include "lockstep/numerics/strict.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/numerics/bf16.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep {
namespace {

/// Threads process whole rows of panels, at least one register tile's worth.
constexpr std::size_t slice_unit = 24 * panel_columns;

class PanelProducts : public Products<float> {
 public:
  PanelProducts(const StrictProducts& strict, Zeros zeros) : strict_(strict), zeros_(zeros) {}

  const char* name() const noexcept override { return "strict"; }

  std::size_t weight_size(std::size_t inputs, std::size_t outputs) const override {
    return Panels{inputs, outputs}.size();
  }
  std::size_t weight_index(std::size_t inputs, std::size_t outputs, std::size_t k,
                           std::size_t j) const override {
    return Panels{inputs, outputs}.index(k, j);
  }
  std::size_t bias_size(std::size_t outputs) const override { return round_to_unit(outputs); }

  void store(Matrix<const float> logical, std::span<float> stored) const override {
    to_panels(logical, {logical.rows, logical.cols}, stored);
  }
  void load(std::span<const float> stored, Matrix<float> logical) const override {
    from_panels({{logical.rows, logical.cols}, stored}, logical);
  }

  void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
               Matrix<float> y, const Part& part) override {
    forward_with(zeros_, x, w, activation, y, part);
  }

  void backward_input(Matrix<const float> dz, const LayerWeights<float>& w, Matrix<const float> x,
                      Activation below, Matrix<float> dx, const Part& part) override {
    reserve(strict_.input_scratch(dz.rows, dz.cols));
    const Range inputs = columns_of(part, dx.cols);
    share(dz.rows, 1, 2 * inputs.size() * w.outputs, [&](Range rows, std::size_t thread) {
      strict_.backward_input(dz.slice(rows), panels(w), x.slice(rows), below, dx.slice(rows),
                             inputs, part.output, scratch_[thread].span());
    });
  }

  void backward_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                        Range slice, std::span<float> dw) override {
    reserve(strict_.weights_scratch(dz.rows, dz.cols, leaf, slice.size()));
    share(slice.size(), slice_unit, 2 * dz.rows, [&](Range mine, std::size_t thread) {
      strict_.backward_weights(x, dz, leaf, {slice.begin + mine.begin, slice.begin + mine.end},
                               dw.subspan(mine.begin, mine.size()), zeros_,
                               scratch_[thread].span());
    });
  }

  void backward_bias(Matrix<const float> dz, std::size_t leaf, Range slice,
                     std::span<float> db) override {
    share(slice.size(), panel_unit, dz.rows, [&](Range mine, std::size_t) {
      strict_.backward_bias(dz, leaf, {slice.begin + mine.begin, slice.begin + mine.end},
                            db.subspan(mine.begin, mine.size()));
    });
  }

 protected:
  Zeros zeros() const noexcept { return zeros_; }

  void forward_with(Zeros zeros, Matrix<const float> x, const LayerWeights<float>& w,
                    Activation activation, Matrix<float> y, const Part& part) {
    reserve(strict_.forward_scratch(x.rows, x.cols));
    const Range columns = columns_of(part, y.cols);
    // Few rows: each thread then reads the weights that it updates, instead of all of them.
    if (2 * x.rows <= columns.size()) {
      const std::size_t operations = 2 * w.inputs * x.rows;
      share(columns.size(), panel_unit, operations, [&](Range mine, std::size_t thread) {
        strict_.forward(x, panels(w), w.bias, activation, y,
                        {columns.begin + mine.begin, columns.begin + mine.end}, part.output, zeros,
                        scratch_[thread].span());
      });
      return;
    }
    share(x.rows, 1, 2 * w.inputs * columns.size(), [&](Range rows, std::size_t thread) {
      strict_.forward(x.slice(rows), panels(w), w.bias, activation, y.slice(rows), columns,
                      part.output, zeros, scratch_[thread].span());
    });
  }

 private:
  static PanelWeights panels(const LayerWeights<float>& w) {
    return {{w.inputs, w.outputs}, w.weight};
  }

  /// The columns of a result `width` wide, in whole units.
  static Range columns_of(const Part& part, std::size_t width) {
    const std::size_t end = part.columns.end < width ? part.columns.end : round_to_unit(width);
    const Range columns = {part.columns.begin, end};
    const bool are_whole = columns.begin % panel_unit == 0 && columns.end % panel_unit == 0;
    if (are_whole && columns.begin <= columns.end) return columns;
    throw std::invalid_argument("strict products compute columns from and to multiples of 16");
  }

  /// Scratch for every thread; allocates only if a call is the largest so far.
  void reserve(std::size_t floats) {
    const std::size_t threads = product_threads();
    if (floats <= scratch_floats_ && threads <= scratch_.size()) return;
    scratch_floats_ = std::max(floats, scratch_floats_);
    scratch_.clear();
    for (std::size_t i = 0; i < threads; ++i) scratch_.emplace_back(scratch_floats_);
  }

  const StrictProducts& strict_;
  const Zeros zeros_;
  std::size_t scratch_floats_ = 0;
  std::vector<AlignedBuffer<float>> scratch_;
};

/// The same in bf16. Weights are rounded once a call, not once a thread.
class Bf16PanelProducts final : public PanelProducts {
 public:
  Bf16PanelProducts(const Bf16Products& bf16, Zeros zeros)
      : PanelProducts(bf16.products, zeros), bf16_(bf16) {}

  void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
               Matrix<float> y, const Part& part) override {
    const auto factors = rounded(w);
    // A factor that is zero times one that is not finite is NaN.
    forward_with(finite() ? zeros() : Zeros::dense, x, factors, activation, y, part);
  }

  void backward_input(Matrix<const float> dz, const LayerWeights<float>& w, Matrix<const float> x,
                      Activation below, Matrix<float> dx, const Part& part) override {
    PanelProducts::backward_input(dz, rounded(w), x, below, dx, part);
  }

 private:
  /// Allocates only if there are more weights than ever.
  LayerWeights<float> rounded(const LayerWeights<float>& w) {
    const std::size_t size = w.weight.size();
    if (weights_.size() < size) weights_ = AlignedBuffer<float>(size);
    finite_.assign(product_threads(), 1);
    share(size, panel_unit, 1, [&](Range part, std::size_t thread) {
      const bool finite = bf16_.round(w.weight.subspan(part.begin, part.size()),
                                      weights_.span().subspan(part.begin, part.size()));
      finite_[thread] = finite ? 1 : 0;
    });
    return {w.inputs, w.outputs, weights_.span().first(size), w.bias};
  }
  bool finite() const { return !contains(finite_, 0); }

  const Bf16Products& bf16_;
  AlignedBuffer<float> weights_;
  std::vector<std::uint8_t> finite_;  ///< of each thread's part of them
};

}  // namespace

std::unique_ptr<Products<float>> make_strict_products(Simd simd, Zeros zeros, Precision precision) {
  assert(precision != Precision::tf32);
  if (precision == Precision::bf16) return make_strict_products(bf16_products(simd), zeros);
  return std::make_unique<PanelProducts>(strict_products(simd), zeros);
}

std::unique_ptr<Products<float>> make_strict_products(const Bf16Products& bf16, Zeros zeros) {
  if (bf16.round == nullptr) return std::make_unique<PanelProducts>(bf16.products, zeros);
  return std::make_unique<Bf16PanelProducts>(bf16, zeros);
}

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
