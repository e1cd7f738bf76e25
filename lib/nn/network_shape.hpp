// The description of a network without weights: a directed acyclic graph of layers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/layer_spec.hpp"

namespace lockstep::nn {
/// Inputs, output and number of weights of one layer of a network.
struct LayerSize {
  /// The value that each input is: 0 for the network's input, j + 1 for the output of layer j.
  /// Flatten is passed over: its output is the value before it.
  std::vector<std::size_t> from;
  std::vector<FeatureShape> inputs;  ///< one for each of `from`
  FeatureShape output;
  double weights = 0;
};

/// A directed acyclic graph of layers, in an order in which each comes after its inputs. A layer
/// takes the output of the layer before, or of the layers that LayerSpec::from names. Every output
/// is taken by a later layer, but for that of the last layer, which is dense and computes the
/// logits of the classes.
struct NetworkShape {
  FeatureShape input;
  std::vector<LayerSpec> layers;
  std::size_t features = 0;  ///< input.size()
  std::size_t classes = 0;

  NetworkShape() = default;

  /// features -> hidden widths, each followed by ReLU -> classes. No hidden widths: a linear
  /// classifier.
  NetworkShape(std::size_t features, const std::vector<std::size_t>& hidden, std::size_t classes);

  /// `hidden` layers, then a dense one from the last of them to the classes.
  /// Errors   throws ConfigError, with the number and name of the layer and its place: it does not
  ///          accept its inputs; `from` names no earlier layer; two layers have one name; no layer
  ///          takes an output.
  NetworkShape(const FeatureShape& input, std::vector<LayerSpec> hidden, std::size_t classes);

  /// True if the constructor with hidden widths can create this shape.
  bool is_mlp() const;

  /// Features, hidden widths and classes of an mlp.
  std::vector<std::size_t> widths() const;

  /// The size of each of `layers`. Throws ConfigError: see the constructor.
  std::vector<LayerSize> sizes() const;

  /// Number of weights; double, because it may exceed the memory size.
  double weights() const;
  std::size_t parameters() const { return static_cast<std::size_t>(weights()); }

  /// Number of weights that training changes by their gradients: see trained_weights_of().
  double trained_weights() const;

  /// Number of values in a row of a network's buffers; and the number of those that ranks exchange
  /// if each computes its slice of the gradient (Network::for_each_exchanged).
  double row_values() const;
  double exchanged_values() const;

  /// True if training sums over the global batch, so that rows depend on each other.
  bool sums_over_batch() const;

  /// The description: "784-700-500-10", or "28x28x1, conv 6@5x5, ..., dense 10". Layers with a
  /// name or `from`, and frozen ones: "conv 8@3x3 as a frozen", "add of a, b".
  std::string text() const;

  /// The description of a layer in messages: "layer 3 (conv 6@5x5) 'stem'".
  std::string layer_text(std::size_t number) const;
};

/// How often each value (LayerSize::from) is an input.
std::vector<std::size_t> uses_of_values(const NetworkShape& shape,
                                        std::span<const LayerSize> sizes);

/// The layers of LeNet without the last, with Caffe's widths and ReLU after the convolutions; for
/// images of about 28 x 28.
/// Source   Caffe, examples/mnist/lenet.prototxt; after LeCun et al. 1998, "Gradient-based learning
///          applied to document recognition", II.B.
std::vector<LayerSpec> lenet_layers();

}  // namespace lockstep::nn
