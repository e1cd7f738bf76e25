// A network of dense layers in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/nn/loss_formula.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/cuda/device_products.hpp"
#include "lockstep/numerics/matrix.hpp"

namespace lockstep::nn {
/// Weights in the layout of the host's network, and buffers for rows: Network on a device.
///
/// Functions enqueue, and may be recorded in a graph, unless they say that they block. Layers are
/// numbered from the input; all are dense, and so a chain: a layer takes one input, and each output
/// is taken. One thread; everything is local.
class DeviceNetwork {
 public:
  /// Copies the weights of `host`, which must have the layout of `products`. Both must outlive
  /// this.
  /// Errors   throws ConfigError: a layer without device code, memory exhausted.
  DeviceNetwork(Network<float>& host, std::size_t rows, DeviceProducts& products,
                const cuda::Stream& stream);

  const NetworkShape& shape() const noexcept { return host_.shape(); }
  const Network<float>& host() const noexcept { return host_; }
  std::size_t layers() const noexcept { return dense_.size(); }

  /// The block of weights, padding included, as long as the host's.
  std::span<float> values() const noexcept { return values_.span(); }

  /// The weights of layer `i` within the block.
  Range slice(std::size_t i) const noexcept;

  /// Copies this slice of the weights to the host's block; blocks until it is complete.
  void copy_weights_to_host(Range slice, const cuda::Stream& stream);

  /// Copies the host's weights to the device; blocks until it is complete.
  void copy_weights_from_host(const cuda::Stream& stream);

  /// The hash of this slice of the weights (hash_values() of numerics/cuda/elementwise.hpp).
  /// Blocks.
  std::uint64_t hash(Range slice, const cuda::Stream& stream) const;

  /// [count, features], results [count]
  Matrix<float> inputs(std::size_t count) const noexcept { return activation(0, {0, count}); }
  std::span<ExampleResult> results(std::size_t count) const noexcept {
    return results_.span().first(count);
  }

  /// Rows of the inputs (0) or of the outputs of layer i - 1, and of the gradients by the outputs
  /// of layer i.
  Matrix<float> activation(std::size_t i, Range rows) const noexcept;
  Matrix<float> gradient(std::size_t i, Range rows) const noexcept;

  /// Logits of the first `count` rows.  [count, classes]
  Matrix<const float> forward(std::size_t count, const cuda::Stream& stream);

  /// After forward(): computes results and the gradient of the logits of the first `count` rows.
  /// The host's loss must be built in. `targets`: of these rows, on the device; their weights are
  /// those of training.
  void loss(std::size_t count, const Targets& targets, const cuda::Stream& stream);

  /// The first layer that is not frozen: those before it need no gradients.
  std::size_t first_trained() const noexcept;

  /// Computes the input gradient of layer `i` (at least 1) from its output gradient.
  void backward_input(std::size_t i, std::size_t count, const cuda::Stream& stream);

  /// Writes the gradients of layer `i` to a block as long as values(), summed over `rows`, which
  /// begin at a leaf of `leaf` rows. Writes nothing for a frozen layer. Runs after what `stream`
  /// has been given so far and beside what it is given next, such as backward_input() of this
  /// layer, until await_gradients(stream).
  void weight_gradients(std::size_t i, Range rows, std::size_t leaf, std::span<float> gradients,
                        const cuda::Stream& stream);

  /// Makes later work of `stream` wait for the gradients. A recording must end with it.
  void await_gradients(const cuda::Stream& stream) { gradients_branch_.join(stream); }

  /// Zeroes rows without an example in all buffers that are summed over.
  void clear(Range rows, const cuda::Stream& stream);

 private:
  struct DenseLayer {
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    Activation activation = Activation::identity;
    std::size_t tensor = 0;  ///< of the weight; the bias follows
    bool frozen = false;
  };

  std::span<float> tensor(std::span<float> block, std::size_t index) const noexcept;
  LayerWeights<float> weights(std::size_t i) const noexcept;

  Network<float>& host_;
  DeviceProducts& products_;
  std::vector<DenseLayer> dense_;
  cuda::DeviceBuffer<float> values_;
  std::vector<cuda::DeviceBuffer<float>> activations_;  // inputs, then each layer's output
  std::vector<cuda::DeviceBuffer<float>> gradients_;    // of the loss by each layer's output
  cuda::DeviceBuffer<ExampleResult> results_;
  cuda::DeviceBuffer<unsigned long long> hash_;
  cuda::PinnedBuffer<unsigned long long> hash_on_host_;
  cuda::Branch gradients_branch_;
};

}  // namespace lockstep::nn

namespace lockstep::cuda {
// Losses on a device.

/// A built-in loss on device memory, times the weights of the rows, as Network::loss(): the same
/// bits for finite values. Values that are not finite are the positive quiet NaN in dz, and NaN or
/// infinity in the results. Enqueues. Targets are not checked.
/// Shapes   z [B, C]; targets as for nn::Loss::run(), with weights [B]; results [B]; dz [B, C], or
///          empty. B may be 0.
/// Errors   throws DeviceError.
void run_loss(const nn::LossFormula<float>& loss, Matrix<const float> z, const nn::Targets& targets,
              std::span<nn::ExampleResult> results, Matrix<float> dz, const Stream& stream);

}  // namespace lockstep::cuda
