#include "lockstep/nn/initialisers.hpp"

#include <cmath>

#include "lockstep/base/philox.hpp"

namespace lockstep::nn {
void stateless_uniform(SeedPair seed, float low, float high, std::span<float> values,
                       std::uint64_t first) {
  // TensorFlow's scrambling of the seed, so that every bit of it has an effect.
  const Philox::Block mix = Philox::at(
      {low_word(seed.first), high_word(seed.first), low_word(seed.second), high_word(seed.second)},
      {0x3EC8F720U, 0x02461E29U});
  const float range = high - low;
  Philox::Block words{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t at = first + i;
    if (i == 0 || at % words.size() == 0) {
      const std::uint64_t group = at / words.size();
      words = Philox::at({low_word(group), high_word(group), mix[2], mix[3]}, {mix[0], mix[1]});
    }
    values[i] = unit_float(words[at % words.size()]) * range + low;
  }
}

float glorot_limit(std::size_t inputs, std::size_t outputs) {
  return std::sqrt(6.0F) / std::sqrt(static_cast<float>(inputs + outputs));
}

void glorot_uniform(SeedPair seed, std::size_t inputs, std::size_t outputs,
                    std::span<float> values) {
  const float limit = glorot_limit(inputs, outputs);
  stateless_uniform(seed, -limit, limit, values);
}

}  // namespace lockstep::nn
