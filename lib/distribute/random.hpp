// Random numbers for transformations: functions of what is transformed, never of who does it.
#pragma once

#include <cstdint>

#include "lib/base/philox.hpp"

namespace lockstep {

/// Random numbers of one element in one epoch: word(0), word(1), ... as many as wanted.
///
/// A pure function of (seed, epoch, id, index): whichever rank transforms the element, and whatever
/// it has transformed before, the numbers are the same. Indices below 2^32; epochs count modulo
/// 2^32.
/// Source   Philox 4x32-10 with the seed as key and (index, id, epoch) as counter.
struct Draw {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t id = 0;  ///< of the element in the data set

  std::uint64_t word(std::uint32_t index) const noexcept {
    const auto block = at(index);
    return std::uint64_t{block[0]} << 32 | block[1];
  }

  /// In [0, 1).
  float uniform(std::uint32_t index) const noexcept { return unit_float(at(index)[2]); }

 private:
  Philox::Block at(std::uint32_t index) const noexcept {
    const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
    return Philox::at({index, low(id), low(id >> 32), low(epoch)}, {low(seed), low(seed >> 32)});
  }
};

}  // namespace lockstep
