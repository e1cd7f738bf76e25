#include "lockstep/nn/cuda/device_network.hpp"

#include <algorithm>
#include <string>

#include "lockstep/numerics/cuda/elementwise.hpp"

namespace lockstep::nn {
namespace {

[[noreturn]] void refuse_layer(const std::string& layer) {
  throw ConfigError(
      "device cuda: " + layer + " is not dense, and other layers have no device code yet",
      "use `device=cpu`");
}

}  // namespace

DeviceNetwork::DeviceNetwork(Network<float>& host, std::size_t rows, DeviceProducts& products,
                             const cuda::Stream& stream)
    : host_(host),
      products_(products),
      values_(host.parameters().values().size()),
      results_(rows),
      hash_(1),
      hash_on_host_(1) {
  const auto sizes = shape().sizes();
  activations_.emplace_back(rows * shape().features);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_flatten(shape().layers[i])) continue;
    const auto* dense = std::get_if<Dense>(&shape().layers[i].function);
    if (dense == nullptr) refuse_layer(shape().layer_text(i));
    const std::size_t inputs = sizes[i].inputs[0].size();
    dense_.push_back(
        {inputs, dense->width, dense->activation, 2 * dense_.size(), shape().layers[i].frozen});
    products_.reserve(inputs, dense->width);
    activations_.emplace_back(rows * dense->width);
    gradients_.emplace_back(rows * dense->width);
    cuda::clear(gradients_.back().span(), stream);  // those of frozen layers are not computed
  }
  cuda::copy(std::span<const float>(host.parameters().values()), values(), stream);
  stream.synchronise();
}

Range DeviceNetwork::slice(std::size_t i) const noexcept {
  const auto& tensors = host_.parameters().tensors();
  const ParameterSpec& last = tensors[dense_[i].tensor + 1];
  return {tensors[dense_[i].tensor].offset, last.offset + last.stored};
}

void DeviceNetwork::copy_weights_to_host(Range slice, const cuda::Stream& stream) {
  if (slice.size() == 0) return;
  cuda::copy(std::span<const float>(values().subspan(slice.begin, slice.size())),
             host_.parameters().values().subspan(slice.begin, slice.size()), stream);
  stream.synchronise();
}

void DeviceNetwork::copy_weights_from_host(const cuda::Stream& stream) {
  cuda::copy(std::span<const float>(host_.parameters().values()), values(), stream);
  stream.synchronise();
}

std::uint64_t DeviceNetwork::hash(Range slice, const cuda::Stream& stream) const {
  cuda::hash_values(values().subspan(slice.begin, slice.size()), hash_.data(), stream);
  cuda::copy(std::span<const unsigned long long>(hash_.span()), hash_on_host_.span(), stream);
  stream.synchronise();
  return *hash_on_host_.data();
}

Matrix<float> DeviceNetwork::activation(std::size_t i, Range rows) const noexcept {
  const std::size_t width = i < layers() ? dense_[i].inputs : shape().classes;
  return {activations_[i].data() + rows.begin * width, rows.size(), width};
}

Matrix<float> DeviceNetwork::gradient(std::size_t i, Range rows) const noexcept {
  const std::size_t width = dense_[i].outputs;
  return {gradients_[i].data() + rows.begin * width, rows.size(), width};
}

std::span<float> DeviceNetwork::tensor(std::span<float> block, std::size_t index) const noexcept {
  const ParameterSpec& tensor = host_.parameters().tensors()[index];
  return block.subspan(tensor.offset, tensor.stored);
}

LayerWeights<float> DeviceNetwork::weights(std::size_t i) const noexcept {
  const DenseLayer& layer = dense_[i];
  return {layer.inputs, layer.outputs, tensor(values(), layer.tensor),
          tensor(values(), layer.tensor + 1)};
}

Matrix<const float> DeviceNetwork::forward(std::size_t count, const cuda::Stream& stream) {
  for (std::size_t i = 0; i < layers(); ++i) {
    products_.forward(activation(i, {0, count}), weights(i), dense_[i].activation,
                      activation(i + 1, {0, count}), stream);
  }
  return activation(layers(), {0, count});
}

void DeviceNetwork::loss(std::size_t count, const Targets& targets, const cuda::Stream& stream) {
  cuda::run_loss(formula_of(host_.loss_function()).value(), activation(layers(), {0, count}),
                 targets, results(count), gradient(layers() - 1, {0, count}), stream);
}

std::size_t DeviceNetwork::first_trained() const noexcept {
  const auto first = std::find_if(dense_.begin(), dense_.end(),
                                  [](const DenseLayer& layer) { return !layer.frozen; });
  return static_cast<std::size_t>(first - dense_.begin());
}

void DeviceNetwork::backward_input(std::size_t i, std::size_t count, const cuda::Stream& stream) {
  const Range rows = {0, count};
  products_.backward_input(gradient(i, rows), weights(i), activation(i, rows),
                           dense_[i - 1].activation, gradient(i - 1, rows), stream);
}

void DeviceNetwork::weight_gradients(std::size_t i, Range rows, std::size_t leaf,
                                     std::span<float> gradients, const cuda::Stream& stream) {
  if (dense_[i].frozen) return;
  products_.weight_gradients(
      activation(i, rows), gradient(i, rows), leaf, tensor(gradients, dense_[i].tensor),
      tensor(gradients, dense_[i].tensor + 1), gradients_branch_.fork(stream));
}

void DeviceNetwork::clear(Range rows, const cuda::Stream& stream) {
  if (rows.size() == 0) return;
  for (std::size_t i = 0; i < layers(); ++i) {
    cuda::clear(activation(i, rows).flat(), stream);
    cuda::clear(gradient(i, rows).flat(), stream);
  }
}

}  // namespace lockstep::nn
