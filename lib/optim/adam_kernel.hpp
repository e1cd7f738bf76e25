// The inner loop of Adam, compiled for several instruction sets and chosen at run time.
#pragma once

#include <cstddef>

namespace lockstep::optim {

/// The constants of one step, so that a weight costs one division and one root.
struct AdamFactors {
  float inverse_examples;  ///< 1 / examples
  float beta1, rest1;
  float beta2, rest2;
  float corrected_rate;       ///< rate / (1 - beta1^t)
  float inverse_correction2;  ///< 1 / (1 - beta2^t)
  float epsilon;
};

/// What one step reads and writes: four ranges of equal length.
struct AdamRanges {
  float* values;
  const float* gradient_sums;
  float* first;
  float* second;
  std::size_t count;
};

/// The formula of adam.hpp. False where a gradient is not finite.
bool adam_kernel(const AdamFactors& factors, const AdamRanges& ranges);

}  // namespace lockstep::optim
