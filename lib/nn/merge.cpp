// Layers of several inputs: addition and concatenation.
#include <algorithm>

#include "lockstep/nn/layer.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep::nn {
namespace {

template <class Real>
class AddLayer final : public Layer<Real> {
 public:
  AddLayer(const Add& spec, std::span<const FeatureShape> inputs)
      : Layer<Real>(inputs[0].size(), inputs[0].size()),
        activation_(spec.activation),
        last_(inputs.size() - 1) {}

  Activation activation() const noexcept override { return activation_; }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const bool is_relu = pass.input == last_ && activation_ == Activation::relu;
    share(y.rows, 1, y.cols, [&](Range rows, std::size_t) {
      const auto from = x.slice(rows).flat();
      const auto to = y.slice(rows).flat();
      if (pass.input == 0)
        return static_cast<void>(std::copy(from.begin(), from.end(), to.begin()));
      for (std::size_t i = 0; i < to.size(); ++i) {
        const Real sum = to[i] + from[i];
        to[i] = is_relu ? relu(sum) : sum;
      }
    });
  }

  void backward_input(const Pass<Real>& /*pass*/, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    share(dx.rows, 1, dx.cols, [&](Range rows, std::size_t) {
      const auto from = dz.slice(rows).flat();
      std::copy(from.begin(), from.end(), dx.slice(rows).flat().begin());
      apply_relu_gradient(below, x.slice(rows), dx.slice(rows));
    });
  }

 private:
  Activation activation_;
  std::size_t last_;  // input
};

template <class Real>
class ConcatenateLayer final : public Layer<Real> {
 public:
  ConcatenateLayer(std::span<const FeatureShape> inputs, const FeatureShape& output)
      : Layer<Real>(inputs[0].size(), output.size()), channels_(output.channels) {
    std::size_t first = 0;
    for (const FeatureShape& input : inputs) {
      parts_.push_back({first, first + input.channels});
      first += input.channels;
    }
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const Range part = parts_[pass.input];
    const Matrix<const Real> from = reshape_to_columns(part.size(), x);
    const Matrix<Real> to = reshape_to_columns(channels_, y);
    share(from.rows, 1, part.size(), [&](Range positions, std::size_t) {
      for (std::size_t i = positions.begin; i < positions.end; ++i) {
        std::copy_n(from.row(i).data(), part.size(), to.row(i).data() + part.begin);
      }
    });
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const Range part = parts_[pass.input];
    const Matrix<const Real> from = reshape_to_columns(channels_, dz);
    const Matrix<const Real> input = reshape_to_columns(part.size(), x);
    const Matrix<Real> to = reshape_to_columns(part.size(), dx);
    share(to.rows, 1, part.size(), [&](Range positions, std::size_t) {
      for (std::size_t i = positions.begin; i < positions.end; ++i) {
        std::copy_n(from.row(i).data() + part.begin, part.size(), to.row(i).data());
      }
      apply_relu_gradient(below, input.slice(positions), to.slice(positions));
    });
  }

 private:
  std::size_t channels_;      // of the output
  std::vector<Range> parts_;  // of each input among them
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Add& spec, std::span<const FeatureShape> inputs) {
  return std::make_unique<AddLayer<Real>>(spec, inputs);
}

template std::unique_ptr<Layer<float>> make_layer(const Add&, std::span<const FeatureShape>);
template std::unique_ptr<Layer<double>> make_layer(const Add&, std::span<const FeatureShape>);

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Concatenate& spec,
                                        std::span<const FeatureShape> inputs) {
  return std::make_unique<ConcatenateLayer<Real>>(inputs, spec.output_of(inputs));
}

template std::unique_ptr<Layer<float>> make_layer(const Concatenate&,
                                                  std::span<const FeatureShape>);
template std::unique_ptr<Layer<double>> make_layer(const Concatenate&,
                                                   std::span<const FeatureShape>);

}  // namespace lockstep::nn
