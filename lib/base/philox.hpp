// Counter-based random numbers: every value is a pure function of a key and a counter.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace lockstep {

/// Philox 4x32-10: four random words as a pure function of key and counter.
///
/// No state: any rank can compute any value of any stream without computing those before it.
/// Source   Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC11.
struct Philox {
  using Key = std::array<std::uint32_t, 2>;
  using Block = std::array<std::uint32_t, 4>;

  static constexpr Block at(Block counter, Key key) noexcept {
    for (int round = 0; round < 10; ++round) {
      if (round > 0) {
        key[0] += 0x9E3779B9U;
        key[1] += 0xBB67AE85U;
      }
      const std::uint64_t even = 0xD2511F53ULL * counter[0];
      const std::uint64_t odd = 0xCD9E8D57ULL * counter[2];
      counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0],
                 static_cast<std::uint32_t>(odd),
                 static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1],
                 static_cast<std::uint32_t>(even)};
    }
    return counter;
  }
};

/// A float in [0, 1) from the low 23 bits of `word`, as TensorFlow makes it.
constexpr float unit_float(std::uint32_t word) noexcept {
  constexpr std::uint32_t one = 127U << 23;  // the bits of 1.0F
  return std::bit_cast<float>(one | (word & 0x7FFFFFU)) - 1.0F;
}

}  // namespace lockstep
