// Gradient checks: compare gradients with central differences. Every layer and loss must pass.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/loss.hpp"
#include "lockstep/nn/network_shape.hpp"

namespace lockstep::nn {

/// The greatest error, |difference - gradient| / max(1, |gradient|), and its position:
/// "2.weight[17]". At most about 1e-6 if the gradient is correct; a step of 1e-6 rarely crosses a
/// point where relu or a maximum is not differentiable.
struct GradientCheck {
  double worst = 0;
  std::string place = {};
};

/// Computes, in double, the gradient of a network of this shape with random weights on random rows
/// (whole numbers of the vocabulary, with an embedding), and compares it with central differences
/// of the loss for every weight that is not frozen, or for about sixty weights of a larger tensor.
/// Random layers use the same random numbers in every pass. Ranks local.
GradientCheck check_gradients(const NetworkShape& shape,
                              const Loss<double>& loss = SoftmaxCrossEntropy<double>(),
                              std::size_t rows = 3, std::uint32_t seed = 3);

}  // namespace lockstep::nn
