// A shuffled order of [0, n) in constant memory.
#pragma once

#include <cstdint>

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

/// The seed of a worker's order under FILE. For worker 0 it is `seed`, so a single worker reads in
/// the same order as under DATA.
std::uint64_t worker_seed(std::uint64_t seed, std::uint64_t worker) noexcept;

}  // namespace lockstep::data
