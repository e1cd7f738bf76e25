#include "lockstep/nn/initialisers.hpp"

#include <cmath>

#include "lockstep/base/philox.hpp"

namespace lockstep::nn {
namespace {

struct Stream {
  Philox::Key key;
  Philox::Block counter;

  /// The random words of group `index`, which is added to the 128-bit counter.
  Philox::Block group(std::uint64_t index) const noexcept {
    Philox::Block at = counter;
    const std::uint64_t low = from_words(at[1], at[0]) + index;
    if (low < index && ++at[2] == 0) ++at[3];
    at[0] = low_word(low);
    at[1] = high_word(low);
    return Philox::at(at, key);
  }
};

/// TensorFlow's scrambling of the seed, so that every bit of it has an effect.
Stream scrambled(SeedPair seed) {
  const Philox::Block mix = Philox::at(
      {low_word(seed.first), high_word(seed.first), low_word(seed.second), high_word(seed.second)},
      {0x3EC8F720U, 0x02461E29U});
  return {{mix[0], mix[1]}, {0, 0, mix[2], mix[3]}};
}

}  // namespace

void stateless_uniform(SeedPair seed, float low, float high, std::span<float> values,
                       std::uint64_t first) {
  const Stream stream = scrambled(seed);
  const float range = high - low;
  Philox::Block words{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t at = first + i;
    if (i == 0 || at % words.size() == 0) words = stream.group(at / words.size());
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
