#include "lib/nn/network.hpp"

#include <algorithm>
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

template <class Real>
std::vector<Tensor> tensors_of(const std::vector<Dense>& layers, const Products<Real>& products) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (auto& tensor : layers[i].tensors(std::to_string(i), products)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

/// The part of `slice` that lies in the tensor, counted from the tensor's first element.
Slice within(const Tensor& tensor, Slice slice) {
  const std::size_t end = tensor.offset + tensor.stored;
  const std::size_t first = std::clamp(slice.first, tensor.offset, end);
  const std::size_t last = std::clamp(slice.last, first, end);
  return {first - tensor.offset, last - tensor.offset};
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
Network<Real>::Network(const NetworkShape& shape, std::size_t rows, Products<Real>& products,
                       std::size_t slices, std::pmr::memory_resource& memory)
    : shape_(shape),
      rows_(rows),
      products_(products),
      layers_(dense_layers(shape)),
      block_(tensors_of(layers_, products), products, slices, memory),
      results_(rows, memory) {
  activations_.emplace_back(rows * shape.features, memory);
  for (const Dense& layer : layers_) {
    activations_.emplace_back(rows * layer.outputs, memory);
    gradients_.emplace_back(rows * layer.outputs, memory);
  }
}

template <class Real>
Matrix<const Real> Network<Real>::forward(Rows rows) {
  assert(rows.first + rows.count <= rows_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Dense& layer = layers_[i];
    products_.forward(view(activations_[i], layer.inputs, rows), layer.weights(block_),
                      layer.activation, view(activations_[i + 1], layer.outputs, rows));
  }
  return view(activations_.back(), shape_.classes, rows);
}

template <class Real>
void Network<Real>::loss(Rows rows, std::span<const std::int32_t> labels, bool training) {
  const Matrix<const Real> logits = view(activations_.back(), shape_.classes, rows);
  const Matrix<Real> dz = training ? view(gradients_.back(), shape_.classes, rows) : Matrix<Real>();
  softmax_cross_entropy<Real>(logits, labels, results(rows), dz);
}

template <class Real>
void Network<Real>::backward(Rows rows) {
  for (std::size_t i = layers_.size(); i-- > 1;) {
    const Dense& layer = layers_[i];
    products_.backward_input(view(gradients_[i], layer.outputs, rows), layer.weights(block_),
                             view(activations_[i], layer.inputs, rows), layers_[i - 1].activation,
                             view(gradients_[i - 1], layer.inputs, rows));
  }
}

template <class Real>
void Network<Real>::weight_gradients(Rows rows, std::size_t leaf, Slice slice,
                                     std::span<Real> gradients) {
  const auto part = [&](const Tensor& tensor, Slice within) {
    return gradients.subspan(tensor.offset + within.first, within.size());
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Dense& layer = layers_[i];
    const Matrix<const Real> x = view(activations_[i], layer.inputs, rows);
    const Matrix<const Real> dz = view(gradients_[i], layer.outputs, rows);
    const Tensor& weight = block_.tensors()[layer.weight];
    const Tensor& bias = block_.tensors()[layer.weight + 1];
    const Slice w = within(weight, slice);
    if (w.size() > 0) products_.backward_weights(x, dz, leaf, w, part(weight, w));
    const Slice b = within(bias, slice);
    if (b.size() > 0) products_.backward_bias(dz, leaf, b, part(bias, b));
  }
}

void initialise(Network<float>& network, SeedPair seed) {
  auto& block = network.parameters();
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    const Tensor& tensor = block.tensors()[i];
    if (tensor.vector) continue;
    std::vector<float> weights(tensor.size());
    glorot_uniform(seed, tensor.rows, tensor.cols, weights);
    block.set_logical_value(i, weights);
  }
}

template class Network<float>;
template class Network<double>;

}  // namespace lockstep::nn
