#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/text.hpp"
#include "lockstep/nn/layer.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep::nn {
namespace {

/// A row of W for each input. Costs do not depend on the vocabulary, but for the zeros of dW.
template <class Real>
class EmbeddingLayer final : public Layer<Real> {
 public:
  EmbeddingLayer(const Embedding& spec, const FeatureShape& input)
      : Layer<Real>(input.size(), input.size() * spec.width), spec_(spec) {}

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<Real>& products) const override {
    const std::size_t rows = spec_.vocabulary;
    const std::size_t width = spec_.width;
    return {{prefix + ".weight", rows, width, false, products.weight_size(rows, width), 0,
             Start::glorot(rows, width)}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const auto weights = pass.block.value(pass.tensor);
    const Matrix<Real> values = reshape_to_columns(spec_.width, y);
    constexpr std::size_t operations = 8;  // for a value, about: its place in the weights
    share(values.rows, 1, operations * spec_.width, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        const auto row = row_of(x.data[i]);
        for (std::size_t j = 0; j < spec_.width; ++j) {
          values(i, j) = row ? weights[index(pass, *row, j)] : not_a_number;
        }
      }
    });
  }

  std::string input_problem(std::span<const Real> x) const override {
    const auto wrong = std::find_if(x.begin(), x.end(), [&](Real value) { return !row_of(value); });
    if (wrong == x.end()) return {};
    return "value " + std::to_string(wrong - x.begin() + 1) + " of " + std::to_string(x.size()) +
           " is " + shortest(static_cast<double>(*wrong)) + ", no whole number from 0 to " +
           std::to_string(spec_.vocabulary - 1);
  }

  /// The inputs are not differentiable.
  void backward_input(const Pass<Real>& /*pass*/, Matrix<const Real> /*dz*/,
                      Matrix<const Real> /*x*/, Activation /*below*/, Matrix<Real> dx) override {
    std::fill(dx.flat().begin(), dx.flat().end(), Real{0});
  }

  /// The sum of an element has the leaves in which its row is used; zeros of the others change
  /// nothing, so this is the dense product in float32 with one-hot rows.
  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    const Matrix<const Real> terms = reshape_to_columns(spec_.width, dz);
    const std::size_t leaves = std::bit_ceil(leaves_of(x.rows, leaf));
    out.with(pass.tensor, [&](Range slice, std::span<Real> dw) {
      std::fill(dw.begin(), dw.end(), Real{0});
      std::vector<Use> uses = uses_in(x, leaf);
      std::vector<Real> sum(spec_.width);
      for (auto first = uses.begin(); first != uses.end();) {
        const auto end =
            std::find_if(first, uses.end(), [&](const Use& use) { return use.row != first->row; });
        bool is_summed = false;  // only if a part of the row is in the slice
        for (std::size_t j = 0; j < spec_.width; ++j) {
          const std::size_t at = index(pass, first->row, j);
          if (at < slice.begin || at >= slice.end) continue;
          if (!is_summed) add_up(terms, {first, end}, 0, leaves, sum);
          is_summed = true;
          dw[at - slice.begin] = sum[j];
        }
        first = end;
      }
    });
  }

 private:
  static constexpr Real not_a_number = std::numeric_limits<Real>::quiet_NaN();

  /// An input that takes a row of W.
  struct Use {
    std::size_t row;
    std::size_t leaf;
    std::size_t input;  ///< among all of the batch

    auto operator<=>(const Use&) const = default;
  };

  std::size_t index(const Pass<Real>& pass, std::size_t row, std::size_t column) const {
    return pass.products.weight_index(spec_.vocabulary, spec_.width, row, column);
  }

  /// None if the value is not an index of a row.
  std::optional<std::size_t> row_of(Real value) const {
    if (!(value >= 0 && value < static_cast<Real>(spec_.vocabulary))) return std::nullopt;
    const auto row = static_cast<std::size_t>(value);
    if (static_cast<Real>(row) != value) return std::nullopt;
    return row;
  }

  /// In the order of rows, leaves and inputs. A value that is not an index makes its output NaN,
  /// and so the loss, which ends training; it is used as row 0.
  std::vector<Use> uses_in(Matrix<const Real> x, std::size_t leaf) const {
    std::vector<Use> uses;
    uses.reserve(x.rows * x.cols);
    for (std::size_t i = 0; i < x.rows * x.cols; ++i) {
      uses.push_back({row_of(x.data[i]).value_or(0), i / x.cols / leaf, i});
    }
    std::sort(uses.begin(), uses.end());
    return uses;
  }

  /// Sets `sum` to the node of the tree over leaves [first, first + size) with these uses, of which
  /// there is at least one; `size` is a power of two.
  void add_up(Matrix<const Real> terms, std::span<const Use> uses, std::size_t first,
              std::size_t size, std::span<Real> sum) const {
    if (size == 1) {
      std::fill(sum.begin(), sum.end(), Real{0});
      for (const Use& use : uses) {
        for (std::size_t j = 0; j < sum.size(); ++j) sum[j] = sum[j] + terms(use.input, j);
      }
      return;
    }
    const std::size_t middle = first + size / 2;
    const auto split = std::partition_point(uses.begin(), uses.end(),
                                            [&](const Use& use) { return use.leaf < middle; });
    const std::span<const Use> left(uses.begin(), split);
    const std::span<const Use> right(split, uses.end());
    if (right.empty()) return add_up(terms, left, first, size / 2, sum);
    if (left.empty()) return add_up(terms, right, middle, size / 2, sum);
    std::vector<Real> other(sum.size());
    add_up(terms, left, first, size / 2, sum);
    add_up(terms, right, middle, size / 2, other);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] = sum[j] + other[j];
  }

  Embedding spec_;
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Embedding& spec, const FeatureShape& input) {
  return std::make_unique<EmbeddingLayer<Real>>(spec, input);
}

template std::unique_ptr<Layer<float>> make_layer(const Embedding&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const Embedding&, const FeatureShape&);

}  // namespace lockstep::nn
