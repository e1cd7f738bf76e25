// The layers that are built in.
#pragma once

#include <memory>
#include <vector>

#include "lib/nn/layer.hpp"

namespace lockstep::nn {

/// A layer, and its number in the shape: layers that only rename values (flatten) are none.
template <class Real>
struct NumberedLayer {
  std::size_t number;
  std::unique_ptr<Layer<Real>> layer;
};

/// The layers of a shape in order.
template <class Real>
std::vector<NumberedLayer<Real>> make_layers(const NetworkShape& shape);

/// One of a kind. `input`: what comes into it.
///
// clang-format off
///   dense        y = activation(x W + b)
///   convolution  the dense product of every window with W [kernel * kernel * channels, filters],
///                whose rows stand in the window's order: row, column, channel. dx adds up windows
///                in the order of their pixels
///   pool         max: the greatest value, dx goes to the first of them; average: the sum in the
///                window's order, divided by their number
///   dropout      element e of row r: word e % 4 of Philox(e / 4, r; key of seed, layer, step)
///                below rate * 2^32 is zero
///   layer norm   m = sum(x) / C, s = sum((x - m)^2) / C, each in order; y = (x - m) /
///                sqrt(s + 1e-5) * gain + bias, every operation rounded
///   batch norm   as layer norm, but with m = S1 / N and s = S2 / N - m^2 of the sums S1 of x and S2
///                of x^2 over the batch (batch_sums.hpp), N terms a channel, and 1 / sqrt(s + 1e-5),
///                all in double and then rounded
// clang-format on
template <class Real>
std::unique_ptr<Layer<Real>> make_dense(const Dense& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_convolution(const Convolution& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_pool(const Pool& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_dropout(const Dropout& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer_norm(const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_batch_norm(const BatchNorm& spec, const FeatureShape& input);

}  // namespace lockstep::nn
