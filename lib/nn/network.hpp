// A network of dense layers with softmax cross-entropy: one replica.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/nn/dense.hpp"
#include "lib/nn/initialisers.hpp"
#include "lib/nn/loss.hpp"
#include "lib/nn/parameters.hpp"

namespace lockstep::nn {

/// features -> hidden widths, each followed by ReLU -> classes (logits). No hidden widths: a
/// linear classifier.
struct NetworkShape {
  std::size_t features = 0;
  std::vector<std::size_t> hidden;
  std::size_t classes = 0;

  /// features, hidden widths, classes.
  std::vector<std::size_t> widths() const;

  /// Number of weights.
  std::size_t parameters() const;
};

/// The weights and gradients of one replica, and the buffers to run `rows` examples at once.
///
/// All memory is taken in the constructor; a step allocates nothing. One thread. Local.
template <class Real>
class Network {
 public:
  /// Weights are zero. `rows`: the most examples that a call will bring.
  /// Errors   throws std::bad_alloc.
  Network(const NetworkShape& shape, std::size_t rows);

  const NetworkShape& shape() const noexcept { return shape_; }
  ParameterBlock<Real>& parameters() noexcept { return block_; }
  const ParameterBlock<Real>& parameters() const noexcept { return block_; }

  /// Logits of x.  x [B, features], result [B, classes]; valid until the next call.
  Matrix<const Real> forward(Matrix<const Real> x);

  /// Forward, loss, backward: overwrites the gradients with those of the *sum* of losses over x.
  /// B = 0 gives zero gradients and an empty tally.
  Tally forward_backward(Matrix<const Real> x, std::span<const std::int32_t> labels);

 private:
  Matrix<const Real> activation(std::size_t layer, Matrix<const Real> x) const;

  NetworkShape shape_;
  std::vector<Dense> layers_;
  ParameterBlock<Real> block_;
  std::vector<AlignedBuffer<Real>> outputs_;    // of each layer, [rows, O]
  std::vector<AlignedBuffer<Real>> gradients_;  // of the loss by each layer's x W + b, [rows, O]
};

/// Glorot uniform weights, zero biases; the same seed for every layer, as in the tutorial.
void initialise(Network<float>& network, SeedPair seed);

}  // namespace lockstep::nn
