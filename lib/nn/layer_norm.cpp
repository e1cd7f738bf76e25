#include <cmath>

#include "lib/nn/layers.hpp"
#include "lib/nn/leaf_pieces.hpp"

namespace lockstep::nn {
namespace {

constexpr double epsilon = 1e-5;

/// x is normalised to (x - mean) * scale.
template <class Real>
struct Statistics {
  Real mean;
  Real scale;
};

template <class Real>
Statistics<Real> statistics(std::span<const Real> x) {
  const auto count = static_cast<Real>(x.size());
  Real sum = 0;
  for (const Real value : x) sum = sum + value;
  const Real mean = sum / count;
  Real squares = 0;
  for (const Real value : x) {
    const Real distance = value - mean;
    squares = squares + distance * distance;
  }
  return {mean, 1 / std::sqrt(squares / count + static_cast<Real>(epsilon))};
}

template <class Real>
class LayerNormLayer final : public Layer<Real> {
 public:
  explicit LayerNormLayer(const Extent& input)
      : Layer<Real>(input.size(), input.size()), channels_(input.channels) {}

  std::vector<Tensor> tensors(const std::string& prefix,
                              const Products<Real>& products) const override {
    const std::size_t stored = products.bias_size(channels_);
    return {{prefix + ".gain", 1, channels_, true, stored, 0, Start::ones()},
            {prefix + ".bias", 1, channels_, true, stored}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const auto gain = pass.block.value(pass.tensor);
    const auto bias = pass.block.value(pass.tensor + 1);
    const Matrix<const Real> from = in_rows_of(channels_, x);
    const Matrix<Real> to = in_rows_of(channels_, y);
    for (std::size_t i = 0; i < from.rows; ++i) {
      const auto [mean, scale] = statistics<Real>(from.row(i));
      for (std::size_t c = 0; c < channels_; ++c) {
        to(i, c) = (from(i, c) - mean) * scale * gain[c] + bias[c];
      }
    }
  }

  /// With n = (x - mean) * scale and g = dz * gain: dx = scale * (g - mean(g) - n * mean(g n)).
  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const auto gain = pass.block.value(pass.tensor);
    const Matrix<const Real> from = in_rows_of(channels_, x);
    const Matrix<const Real> by_output = in_rows_of(channels_, dz);
    const Matrix<Real> to = in_rows_of(channels_, dx);
    const auto count = static_cast<Real>(channels_);
    for (std::size_t i = 0; i < from.rows; ++i) {
      const auto [mean, scale] = statistics<Real>(from.row(i));
      Real sum = 0;
      Real product = 0;
      for (std::size_t c = 0; c < channels_; ++c) {
        const Real g = by_output(i, c) * gain[c];
        sum = sum + g;
        product = product + g * ((from(i, c) - mean) * scale);
      }
      for (std::size_t c = 0; c < channels_; ++c) {
        const Real n = (from(i, c) - mean) * scale;
        to(i, c) = scale * (by_output(i, c) * gain[c] - sum / count - n * (product / count));
      }
    }
    through(below, x, dx);
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    gain_and_bias_gradients(pass, x, dz, leaf, channels_, out,
                            [&](Matrix<const Real> rows, Matrix<const Real> by_rows) {
                              return by_gain(pass, rows, by_rows);
                            });
  }

 private:
  /// What each row adds to the gradient by the gain: dz n.
  Matrix<const Real> by_gain(const Pass<Real>& pass, Matrix<const Real> x,
                             Matrix<const Real> dz) const {
    const Matrix<const Real> from = in_rows_of(channels_, x);
    const Matrix<const Real> by_output = in_rows_of(channels_, dz);
    const auto memory = pass.scratch.get(Scratch<Real>::columns, x.rows * x.cols);
    const Matrix<Real> terms(memory.data(), from.rows, channels_);
    for (std::size_t i = 0; i < from.rows; ++i) {
      const auto [mean, scale] = statistics<Real>(from.row(i));
      for (std::size_t c = 0; c < channels_; ++c) {
        terms(i, c) = by_output(i, c) * ((from(i, c) - mean) * scale);
      }
    }
    return terms;
  }

  std::size_t channels_;
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer_norm(const Extent& input) {
  return std::make_unique<LayerNormLayer<Real>>(input);
}

template std::unique_ptr<Layer<float>> make_layer_norm(const Extent&);
template std::unique_ptr<Layer<double>> make_layer_norm(const Extent&);

}  // namespace lockstep::nn
