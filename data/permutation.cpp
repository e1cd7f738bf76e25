// The order of a shuffled epoch: Permutation of plan.hpp.
#include <bit>
#include <cassert>

#include "lockstep/base/philox.hpp"
#include "lockstep/data/plan.hpp"

namespace lockstep::data {

Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept
    : n_(n), seed_(seed), epoch_(epoch) {
  if (n > 2) half_bits_ = static_cast<int>(std::bit_width(n - 1) + 1) / 2;
}

std::uint64_t Permutation::operator()(std::uint64_t position) const noexcept {
  assert(position < n_);
  std::uint64_t value = once(position);
  while (value >= n_) value = once(value);  // the domain is at most 4 n: mean <= 4 iterations
  return value;
}

std::uint64_t Permutation::once(std::uint64_t value) const noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  const Philox::Key key = philox_key(seed_);
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < 4; ++round) {
    // Half a value has at most 32 bits; the epoch uses two words of the counter.
    const Philox::Block block =
        Philox::at({static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(epoch_),
                    static_cast<std::uint32_t>(epoch_ >> 32), round},
                   key);
    const std::uint64_t mixed = left ^ (block[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::uint64_t worker_seed(std::uint64_t seed, std::uint64_t worker) noexcept {
  if (worker == 0) return seed;
  constexpr std::uint32_t tag = 0x46494C45;  // "FILE"; differs from all rounds of Permutation
  const Philox::Block block = Philox::at(
      {static_cast<std::uint32_t>(worker), static_cast<std::uint32_t>(worker >> 32), 0, tag},
      philox_key(seed));
  return std::uint64_t{block[0]} << 32 | block[1];
}

}  // namespace lockstep::data
