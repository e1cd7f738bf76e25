// A network without its weights: input, layers, classes.
#pragma once

#include <string>
#include <vector>

#include "lib/nn/layer_spec.hpp"

namespace lockstep::nn {

/// One layer between its neighbours.
struct LayerSize {
  Extent input;
  Extent output;
  double weights = 0;
};

/// Layers one after the other; the last is dense and gives the logits of the classes.
struct NetworkShape {
  Extent input;
  std::vector<LayerSpec> layers;
  std::size_t features = 0;  ///< input.size()
  std::size_t classes = 0;

  NetworkShape() = default;

  /// features -> hidden widths, each followed by ReLU -> classes. No hidden widths: a linear
  /// classifier.
  NetworkShape(std::size_t features, const std::vector<std::size_t>& hidden, std::size_t classes);

  /// `hidden` layers, then a dense one to the classes.
  /// Errors   throws ConfigError: a layer cannot take what comes from the one before it.
  NetworkShape(const Extent& input, std::vector<LayerSpec> hidden, std::size_t classes);

  /// Whether the first constructor can make it.
  bool is_mlp() const;

  /// Of such a network: features, hidden widths, classes.
  std::vector<std::size_t> widths() const;

  /// One for each of `layers`.
  std::vector<LayerSize> sizes() const;

  /// Number of weights; in double for sizes that may be beyond all memory.
  double weights() const;
  std::size_t parameters() const { return static_cast<std::size_t>(weights()); }

  /// Values that a row of a network's buffers holds, and of them those that ranks show each other
  /// where each computes its slice of the gradient (Network::for_each_exchanged).
  double row_values() const;
  double exchanged_values() const;

  /// Whether training sums over the global batch, so that no row can be computed alone.
  bool sums_over_batch() const;

  /// "784-700-500-10", or "28x28x1, conv 6@5x5, ..., dense 10".
  std::string text() const;
};

/// LeNet with Caffe's widths and ReLU after its convolutions, but for its last layer: for images of
/// about 28 x 28.
/// Source   Caffe, examples/mnist/lenet.prototxt; after LeCun et al. 1998, "Gradient-based learning
///          applied to document recognition", II.B.
std::vector<LayerSpec> lenet_layers();

}  // namespace lockstep::nn
