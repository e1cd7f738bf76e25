// Counter-based random numbers: every value is a pure function of a key and a counter.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace lockstep {

/// Philox 4x32-10: four random words as a pure function of key and counter.
///
/// Stateless: any rank can compute any value of any stream without computing the previous ones.
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

/// The uses of random numbers: a tag per use, so that uses of one seed share no key and counter.
///
/// Below, `seed` is the user's. 64-bit numbers take two words.
///
///   use                      key                          counter
///   order of records         seed                         value, epoch (2), round 0 to 3
///   order of another worker  seed: makes that one's seed  worker (2), 0, "FILE"
///   image changes            seed ^ augmentation          draw, epoch, record (2)
///   shuffle in a buffer      seed ^ buffer                0, draw (2), epoch
///   order of files           seed ^ files                 as order of records
///   test split               seed ^ split                 as order of records
///   validation set           seed ^ validation            as order of records
///   map_random               seed ^ map                   draw, element (2), epoch
///   settings of a sweep      seed ^ sweep                 hash of the name (2), trial (2)
///   dropout                  Philox(seed, step; layer)    group (2), row (2)
///   initialisers             TensorFlow's mix of seed     group (2), two words of the mix
///   built-in images          their own seed               draw, set and part, record (2)
///
/// The images' seed is 1 unless `generate` is given another: do not shuffle with that seed.
enum class RandomUse : std::uint64_t {
  order = 0,
  augmentation = 0x656E74216175676D,  // "augm", "ent!": low word first
  buffer = 0x6572212162756666,        // "buff", "er!!"
  files = 0x7321212166696C65,         // "file", "s!!!"
  map = 0x72616E646D61705F,           // "map_", "rand"
  split = 0x7421212173706C69,         // "spli", "t!!!"
  validation = 0x6174696F76616C69,    // "vali", "atio"
  sweep = 0x7021212173776565,         // "swee", "p!!!"
};

/// The seed of `use` for the user's `seed`: seed ^ tag.
constexpr std::uint64_t seed_for(RandomUse use, std::uint64_t seed) noexcept {
  return seed ^ static_cast<std::uint64_t>(use);
}

/// The two words of a 64-bit number.
constexpr std::uint32_t low_word(std::uint64_t number) noexcept {
  return static_cast<std::uint32_t>(number);
}
constexpr std::uint32_t high_word(std::uint64_t number) noexcept {
  return static_cast<std::uint32_t>(number >> 32);
}

/// The 64-bit number of two words.
constexpr std::uint64_t from_words(std::uint32_t high, std::uint32_t low) noexcept {
  return std::uint64_t{high} << 32 | low;
}

/// The key of a seed: its low word, then its high word.
constexpr Philox::Key philox_key(std::uint64_t seed) noexcept {
  return {low_word(seed), high_word(seed)};
}

/// A float in [0, 1) from the low 23 bits of `word`, as in TensorFlow.
constexpr float unit_float(std::uint32_t word) noexcept {
  constexpr std::uint32_t one = 127U << 23;  // the bits of 1.0F
  return std::bit_cast<float>(one | (word & 0x7FFFFFU)) - 1.0F;
}

}  // namespace lockstep
