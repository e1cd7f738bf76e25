// The dense layer: y = activation(x W + b).
#pragma once

#include <string>
#include <vector>

#include "lib/nn/parameters.hpp"
#include "lib/numerics/matrix.hpp"
#include "lib/numerics/products.hpp"

namespace lockstep::nn {

/// A layer is a value: its shape, and which tensors of the block are its own.
///
/// It owns no memory; forward and backward work on the block and the buffers they are given.
/// B rows, I inputs, O outputs. Everything here is local.
struct Dense {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  Activation activation = Activation::identity;
  std::size_t weight = 0;  ///< index of W [I, O] in the block; the bias [O] is the next

  /// The two tensors in the block's order, named "`prefix`.weight" and "`prefix`.bias".
  template <class Real>
  std::vector<Tensor> tensors(const std::string& prefix, const Products<Real>& products) const {
    return {{prefix + ".weight", inputs, outputs, false, products.weight_size(inputs, outputs)},
            {prefix + ".bias", 1, outputs, true, products.bias_size(outputs)}};
  }

  /// What the products take.
  template <class Real>
  LayerWeights<Real> weights(const ParameterBlock<Real>& block) const {
    return {inputs, outputs, block.value(weight), block.value(weight + 1)};
  }
};

}  // namespace lockstep::nn
