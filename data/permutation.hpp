// A shuffled order of [0, n) in constant memory.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

#include "lockstep/base/philox.hpp"

namespace lockstep::data {

/// A keyed bijection of [0, n): position in an epoch -> record.
///
/// Random access: any rank evaluates any position of any epoch directly, for any n.
/// Source   a balanced Feistel network of four Philox rounds over the least even number of bits
///          that holds n, with cycle walking (Black & Rogaway 2002, "Ciphers with arbitrary finite
///          domains", methods 2 and 3).
class Permutation {
 public:
  /// The order of epoch `epoch` (from 0) under `seed`. n may be 0.
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept;

  /// The record at `position`, which must be below n (asserted).
  std::uint64_t operator()(std::uint64_t position) const noexcept;

 private:
  std::uint64_t once(std::uint64_t value) const noexcept;

  std::uint64_t n_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  int half_bits_ = 1;
};

inline Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept
    : n_(n), seed_(seed), epoch_(epoch) {
  if (n > 2) half_bits_ = static_cast<int>(std::bit_width(n - 1) + 1) / 2;
}

inline std::uint64_t Permutation::operator()(std::uint64_t position) const noexcept {
  assert(position < n_);
  std::uint64_t value = once(position);
  while (value >= n_) value = once(value);  // the domain is at most 4 n: mean <= 4 iterations
  return value;
}

inline std::uint64_t Permutation::once(std::uint64_t value) const noexcept {
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

/// The seed of a worker's order under FILE. For worker 0 it is `seed`, so a single worker reads in
/// the same order as under DATA.
inline std::uint64_t worker_seed(std::uint64_t seed, std::uint64_t worker) noexcept {
  if (worker == 0) return seed;
  constexpr std::uint32_t tag = 0x46494C45;  // "FILE"; differs from all rounds of Permutation
  const Philox::Block block = Philox::at(
      {static_cast<std::uint32_t>(worker), static_cast<std::uint32_t>(worker >> 32), 0, tag},
      philox_key(seed));
  return std::uint64_t{block[0]} << 32 | block[1];
}

}  // namespace lockstep::data
