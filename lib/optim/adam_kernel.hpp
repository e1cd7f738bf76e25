// The inner loop of Adam, compiled for several instruction sets and chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::optim {

struct AdamOptions;
struct AdamState;

/// The constants of one step, so that a weight costs one division and one root.
struct AdamFactors {
  float inverse_examples;  ///< 1 / examples
  float beta1, rest1;
  float beta2, rest2;
  float corrected_rate;       ///< rate / (1 - beta1^t)
  float inverse_correction2;  ///< 1 / (1 - beta2^t)
  float epsilon;
};

/// Those of the step that `state` was advanced to, over so many examples, at least 1: computed in
/// double, rounded once.
AdamFactors adam_factors(const AdamOptions& options, const AdamState& state,
                         std::uint64_t examples);

/// What is nearer to zero than these becomes zero, before it can decay into denormal numbers, which
/// processors take a hundred times longer for: after two epochs of MNIST a step took half as long
/// again. The weights do not see it: such a moment moves one by less than 1e-13.
inline constexpr float least_gradient = 0x1p-56F;
inline constexpr float least_first_moment = 0x1p-80F;
inline constexpr float least_second_moment = 0x1p-120F;

/// What one step reads and writes: four ranges of equal length.
struct AdamRanges {
  float* values;
  const float* gradient_sums;
  float* first;
  float* second;
  std::size_t count;
};

/// The formula of adam.hpp. False where a second moment is not finite.
bool adam_kernel(const AdamFactors& factors, const AdamRanges& ranges);

}  // namespace lockstep::optim
