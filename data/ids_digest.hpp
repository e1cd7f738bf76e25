// A digest that verifies that all ranks together visited every record exactly once.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep::data {

/// The number of ids added and the sum of a 64-bit mix of each. The sum is independent of order, so
/// the digests of all ranks add up to the digest of all ids.
///
/// Proves   the mix is a bijection, so a single missing, duplicated or replaced id always changes
///          the sum; any other non-adversarial set of ids passes with probability 2^-64.
/// Limits   it does not identify the wrong id; it is not collision-resistant against deliberate
///          construction; it covers ids, not the records read under them.
class IdsDigest {
 public:
  void add(std::uint64_t id) noexcept {
    ++parts_[0];
    parts_[1] += mixed(id);
  }
  void add(std::span<const std::uint64_t> ids) noexcept {
    for (const std::uint64_t id : ids) add(id);
  }

  std::uint64_t count() const noexcept { return parts_[0]; }

  /// Count and sum; ranks are combined by adding these modulo 2^64.
  std::span<std::uint64_t, 2> parts() noexcept { return parts_; }

  /// A hash of count and sum.
  std::uint64_t value() const noexcept { return mixed(parts_[1] + mixed(parts_[0])); }

  bool operator==(const IdsDigest&) const = default;

 private:
  /// Finaliser of SplitMix64, a permutation of 64-bit numbers.
  /// Source   Steele et al. 2014, "Fast splittable pseudorandom number generators", OOPSLA.
  static constexpr std::uint64_t mixed(std::uint64_t id) noexcept {
    id += 0x9E3779B97F4A7C15U;
    id = (id ^ (id >> 30)) * 0xBF58476D1CE4E5B9U;
    id = (id ^ (id >> 27)) * 0x94D049BB133111EBU;
    return id ^ (id >> 31);
  }

  std::array<std::uint64_t, 2> parts_{};
};

/// The digest of 0, 1, ..., records - 1, each once. Takes about 1 ns per record.
inline IdsDigest digest_of_all(std::uint64_t records) noexcept {
  IdsDigest digest;
  for (std::uint64_t id = 0; id < records; ++id) digest.add(id);
  return digest;
}

}  // namespace lockstep::data
