// Gradients against central differences: the test that every layer and loss must pass.
#pragma once

#include <cstdint>
#include <string>

#include "lib/nn/layer_spec.hpp"
#include "lib/nn/loss.hpp"

namespace lockstep::nn {

/// The greatest difference that was found, |difference - gradient| / max(1, |gradient|), and its
/// place: "2.weight[17]". About 1e-6 and less where the gradient is right; kinks (relu, maxima)
/// that a step of 1e-6 crosses are rare.
struct GradientCheck {
  double worst = 0;
  std::string place = {};
};

/// Trains nothing: computes, in double, the gradient of a network of that shape with random weights
/// on random rows, and compares it with central differences of the loss by every weight, or some
/// sixty a tensor where there are more. What is random in training is drawn alike each time.
/// Ranks    local.
GradientCheck check_gradients(const NetworkShape& shape,
                              const Loss<double>& loss = SoftmaxCrossEntropy<double>(),
                              std::size_t rows = 3, std::uint32_t seed = 3);

}  // namespace lockstep::nn
