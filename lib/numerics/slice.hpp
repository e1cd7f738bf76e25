// A contiguous run of elements of a flat block.
#pragma once

#include <cstddef>

namespace lockstep {

/// Elements [first, last).
struct Slice {
  std::size_t first = 0;
  std::size_t last = 0;

  constexpr std::size_t size() const noexcept { return last - first; }
  constexpr bool operator==(const Slice&) const = default;
};

}  // namespace lockstep
