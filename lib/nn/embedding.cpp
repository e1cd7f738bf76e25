#include <algorithm>
#include <limits>

#include "lockstep/nn/layer.hpp"

namespace lockstep::nn {
namespace {

/// Elements of one-hot rows per piece.
constexpr std::size_t max_one_hot = 1 << 18;

/// The dense product of a one-hot row for each input, without a bias.
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
    std::fill(y.flat().begin(), y.flat().end(), Real{0});
    const LayerWeights<Real> weights = {
        spec_.vocabulary, spec_.width, pass.block.value(pass.tensor), {}};
    const std::size_t piece =
        std::max<std::size_t>(1, max_one_hot / (this->inputs() * spec_.vocabulary));
    for (std::size_t first = 0; first < x.rows; first += piece) {
      const std::size_t count = std::min(piece, x.rows - first);
      pass.products.forward(one_hot(pass, rows_of(x, first, count)), weights, Activation::identity,
                            by_value(rows_of(y, first, count)), Output::accumulate);
    }
  }

  /// The inputs are not differentiable.
  void backward_input(const Pass<Real>& /*pass*/, Matrix<const Real> /*dz*/,
                      Matrix<const Real> /*x*/, Activation /*below*/, Matrix<Real> dx) override {
    std::fill(dx.flat().begin(), dx.flat().end(), Real{0});
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    const std::size_t piece = piece_rows(leaf, this->inputs() * spec_.vocabulary, max_one_hot);
    out.with(pass.tensor, [&](Range slice, std::span<Real> dw) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, dw,
                          [&](std::size_t first, std::size_t count, std::span<Real> into) {
                            pass.products.backward_weights(one_hot(pass, rows_of(x, first, count)),
                                                           by_value(rows_of(dz, first, count)),
                                                           leaf * this->inputs(), slice, into);
                          });
    });
  }

 private:
  /// A matrix row for every input.
  template <class Element>
  Matrix<Element> by_value(Matrix<Element> rows) const {
    return reshape_to_columns(spec_.width, rows);
  }

  /// For every input a row with a one at its index; with a NaN if it is no index.
  Matrix<const Real> one_hot(const Pass<Real>& pass, Matrix<const Real> x) const {
    const std::size_t rows = x.rows * x.cols;
    const auto memory = pass.scratch.get(Scratch<Real>::columns, rows * spec_.vocabulary);
    std::fill(memory.begin(), memory.end(), Real{0});
    for (std::size_t i = 0; i < rows; ++i) {
      const Real value = x.data[i];
      const bool is_index = value >= 0 && value < static_cast<Real>(spec_.vocabulary);
      const std::size_t index = is_index ? static_cast<std::size_t>(value) : 0;
      const bool is_whole = is_index && static_cast<Real>(index) == value;
      memory[i * spec_.vocabulary + index] =
          is_whole ? Real{1} : std::numeric_limits<Real>::quiet_NaN();
    }
    return {memory.data(), rows, spec_.vocabulary};
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
