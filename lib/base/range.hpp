// A half-open interval of whole numbers.
#pragma once

#include <cstdint>

namespace lockstep {

/// begin, begin + 1, ..., end - 1: records, rows, leaves, or elements of a flat block.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  constexpr std::uint64_t size() const noexcept { return end - begin; }
  constexpr bool empty() const noexcept { return begin == end; }
  constexpr bool operator==(const Range&) const = default;
};

}  // namespace lockstep
