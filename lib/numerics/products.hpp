// The three matrix products of a dense layer, each with what can be fused to it.
//
// B rows of the batch held by this rank, I inputs, O outputs of the layer.
#pragma once

#include <span>

#include "lib/numerics/matrix.hpp"

namespace lockstep {

enum class Activation { identity, relu };

/// y = activation(x W + b).
///
/// Shapes   x [B, I], w [I, O], bias [O], y [B, O]; B may be 0.
/// Ranks    local, as all functions here. Shapes are the caller's duty (asserted).
template <class Real>
void multiply_forward(Matrix<const Real> x, Matrix<const Real> w, std::span<const Real> bias,
                      Activation activation, Matrix<Real> y);

/// dx = (dz W^T), times the derivative of the activation that gave x.
///
/// Shapes   dz [B, O], w [I, O], dx [B, I]; x [B, I] is what the layer below gave, and
///          `below` its activation: for relu, dx is zero where x is not positive.
template <class Real>
void multiply_backward_input(Matrix<const Real> dz, Matrix<const Real> w, Matrix<const Real> x,
                             Activation below, Matrix<Real> dx);

/// dw = x^T dz and db = column sums of dz: sums over the batch, never means.
///
/// Shapes   x [B, I], dz [B, O], dw [I, O], db [O]; for B = 0 both become zero.
template <class Real>
void multiply_backward_weights(Matrix<const Real> x, Matrix<const Real> dz, Matrix<Real> dw,
                               std::span<Real> db);

/// Threads that this rank's products use from now on, at least 1. Local to the calling thread.
void set_product_threads(int threads);

}  // namespace lockstep
