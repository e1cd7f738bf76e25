#include "lib/optim/adam.hpp"

#include <stdexcept>

#include "lib/optim/adam_kernel.hpp"

namespace lockstep::optim {

AdamFactors adam_factors(const AdamOptions& options, const AdamState& state,
                         std::uint64_t examples) {
  return {.inverse_examples = static_cast<float>(1 / static_cast<double>(examples)),
          .beta1 = static_cast<float>(options.beta1),
          .rest1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .rest2 = static_cast<float>(1 - options.beta2),
          .corrected_rate = static_cast<float>(options.learning_rate / (1 - state.beta1_power)),
          .inverse_correction2 = static_cast<float>(1 / (1 - state.beta2_power)),
          .epsilon = static_cast<float>(options.epsilon)};
}

Adam::Adam(std::size_t weights, const AdamOptions& options)
    : options_(options), first_(weights), second_(weights) {}

bool Adam::update(std::span<float> values, std::span<const float> gradient_sums,
                  std::uint64_t examples) {
  if (values.size() != first_.size() || gradient_sums.size() != first_.size() || examples == 0) {
    throw std::invalid_argument("Adam::update: spans differ from the moments, or no examples");
  }
  state_.advance(options_);
  const AdamFactors factors = adam_factors(options_, state_, examples);
  return adam_kernel(
      factors, {values.data(), gradient_sums.data(), first_.data(), second_.data(), values.size()});
}

}  // namespace lockstep::optim
