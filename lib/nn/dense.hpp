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
/// B rows of this rank's piece of the batch, I inputs, O outputs. Everything here is local.
struct Dense {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  Activation activation = Activation::identity;
  std::size_t weight = 0;  ///< index of W [I, O] in the block; the bias [O] is the next

  /// The two tensors in the block's order, named "`prefix`.weight" and "`prefix`.bias".
  std::vector<Tensor> tensors(const std::string& prefix) const {
    return {{prefix + ".weight", inputs, outputs}, {prefix + ".bias", 1, outputs, true}};
  }

  /// y = activation(x W + b).  x [B, I], y [B, O].
  template <class Real>
  void forward(ParameterBlock<Real>& block, Matrix<const Real> x, Matrix<Real> y) const {
    multiply_forward<Real>(x, block.value(weight), block.value(weight + 1).flat(), activation, y);
  }

  /// Overwrites the gradients of W and b with sums over the batch.  x [B, I], dz [B, O].
  template <class Real>
  void backward_weights(ParameterBlock<Real>& block, Matrix<const Real> x,
                        Matrix<const Real> dz) const {
    multiply_backward_weights<Real>(x, dz, block.gradient(weight),
                                    block.gradient(weight + 1).flat());
  }

  /// dx = dz W^T, times the derivative of `below`, the activation that gave x.  dx [B, I].
  template <class Real>
  void backward_input(ParameterBlock<Real>& block, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) const {
    multiply_backward_input<Real>(dz, block.value(weight), x, below, dx);
  }
};

}  // namespace lockstep::nn
