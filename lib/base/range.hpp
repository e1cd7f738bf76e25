// A half-open interval of whole numbers, and how such numbers are divided.
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

/// floor(count * part / parts), without overflow: where part `part` of `parts` nearly equal ones
/// of `count` begins.
constexpr std::uint64_t share_begin(std::uint64_t count, std::uint64_t part,
                                    std::uint64_t parts) noexcept {
  return count / parts * part + count % parts * part / parts;
}

/// a / b, rounded up; b >= 1.
constexpr std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) noexcept {
  return a / b + (a % b == 0 ? 0 : 1);
}

/// The least multiple of `unit` that is at least `count`.
constexpr std::uint64_t round_up(std::uint64_t count, std::uint64_t unit) noexcept {
  return ceil_divide(count, unit) * unit;
}

}  // namespace lockstep
