#include "lib/nn/network.hpp"

#include <cassert>

namespace lockstep::nn {
namespace {

std::vector<Dense> dense_layers(const NetworkShape& shape) {
  const auto widths = shape.widths();
  std::vector<Dense> layers;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const bool last = i + 2 == widths.size();
    layers.push_back(
        {widths[i], widths[i + 1], last ? Activation::identity : Activation::relu, 2 * i});
  }
  return layers;
}

std::vector<Tensor> tensors_of(const std::vector<Dense>& layers) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (auto& tensor : layers[i].tensors(std::to_string(i))) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

std::vector<std::size_t> NetworkShape::widths() const {
  std::vector<std::size_t> all = {features};
  all.insert(all.end(), hidden.begin(), hidden.end());
  all.push_back(classes);
  return all;
}

std::size_t NetworkShape::parameters() const {
  const auto all = widths();
  std::size_t count = 0;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) count += (all[i] + 1) * all[i + 1];
  return count;
}

template <class Real>
Network<Real>::Network(const NetworkShape& shape, std::size_t rows)
    : shape_(shape), layers_(dense_layers(shape)), block_(tensors_of(layers_)) {
  for (const Dense& layer : layers_) {
    outputs_.emplace_back(rows * layer.outputs);
    gradients_.emplace_back(rows * layer.outputs);
  }
}

/// What layer `layer` reads: x itself, or the output of the layer below.
template <class Real>
Matrix<const Real> Network<Real>::activation(std::size_t layer, Matrix<const Real> x) const {
  if (layer == 0) return x;
  return {outputs_[layer - 1].data(), x.rows, layers_[layer - 1].outputs};
}

template <class Real>
Matrix<const Real> Network<Real>::forward(Matrix<const Real> x) {
  assert(x.cols == shape_.features && x.rows * shape_.classes <= outputs_.back().size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].forward(block_, activation(i, x),
                       Matrix<Real>(outputs_[i].data(), x.rows, layers_[i].outputs));
  }
  return activation(layers_.size(), x);
}

template <class Real>
Tally Network<Real>::forward_backward(Matrix<const Real> x, std::span<const std::int32_t> labels) {
  const auto gradient = [&](std::size_t i) {
    return Matrix<Real>(gradients_[i].data(), x.rows, layers_[i].outputs);
  };
  const Matrix<const Real> logits = forward(x);
  const Tally tally = softmax_cross_entropy<Real>(logits, labels, gradient(layers_.size() - 1));
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Matrix<const Real> input = activation(i, x);
    layers_[i].backward_weights(block_, input, Matrix<const Real>(gradient(i)));
    if (i > 0) {
      layers_[i].backward_input(block_, Matrix<const Real>(gradient(i)), input,
                                layers_[i - 1].activation, gradient(i - 1));
    }
  }
  return tally;
}

void initialise(Network<float>& network, SeedPair seed) {
  auto& block = network.parameters();
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    const Tensor& tensor = block.tensors()[i];
    if (!tensor.vector) glorot_uniform(seed, tensor.rows, tensor.cols, block.value(i).flat());
  }
}

template class Network<float>;
template class Network<double>;

}  // namespace lockstep::nn
