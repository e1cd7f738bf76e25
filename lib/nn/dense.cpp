#include "lockstep/nn/layer.hpp"

namespace lockstep::nn {
namespace {

template <class Real>
class DenseLayer final : public Layer<Real> {
 public:
  DenseLayer(const Dense& spec, const FeatureShape& input)
      : Layer<Real>(input.size(), spec.width), activation_(spec.activation) {}

  Activation activation() const noexcept override { return activation_; }

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<Real>& products) const override {
    const std::size_t inputs = this->inputs();
    const std::size_t outputs = this->outputs();
    return {{prefix + ".weight", inputs, outputs, false, products.weight_size(inputs, outputs), 0,
             Start::glorot(inputs, outputs)},
            {prefix + ".bias", 1, outputs, true, products.bias_size(outputs)}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    pass.products.forward(x, weights(pass), activation_, y);
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    pass.products.backward_input(dz, weights(pass), x, below, dx);
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    out.with(pass.tensor, [&](Range slice, std::span<Real> dw) {
      pass.products.backward_weights(x, dz, leaf, slice, dw);
    });
    out.with(pass.tensor + 1, [&](Range slice, std::span<Real> db) {
      pass.products.backward_bias(dz, leaf, slice, db);
    });
  }

 private:
  LayerWeights<Real> weights(const Pass<Real>& pass) const {
    return {this->inputs(), this->outputs(), pass.block.value(pass.tensor),
            pass.block.value(pass.tensor + 1)};
  }

  Activation activation_;
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Dense& spec, const FeatureShape& input) {
  return std::make_unique<DenseLayer<Real>>(spec, input);
}

template std::unique_ptr<Layer<float>> make_layer(const Dense&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const Dense&, const FeatureShape&);

}  // namespace lockstep::nn
