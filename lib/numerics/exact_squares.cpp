#include "lockstep/numerics/exact_squares.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr int least_exponent = -298;  // of a bit of the square of the least float
constexpr std::size_t digits = ExactSquares::words - 1;
constexpr std::uint64_t digit_bits = 32;
constexpr std::uint64_t mask = 0xFFFFFFFF;

/// Sums of mantissa squares, by exponent. Neighbours of the same exponent are added to different
/// lanes, which need not wait for each other.
constexpr std::size_t lanes = 4;
using Bins = std::array<std::array<std::uint64_t, ExactSquares::exponents>, lanes>;

void put(Bins& bins, std::size_t lane, float number) noexcept {
  const auto [exponent, square] = ExactSquares::square_of(number);
  bins[lane][exponent] += square;
}

}  // namespace

void ExactSquares::add(std::span<const float> numbers) noexcept {
  for (std::size_t first = 0; first < numbers.size(); first += max_squares) {
    const auto part = numbers.subspan(first, std::min(max_squares, numbers.size() - first));
    Bins bins{};
    std::size_t i = 0;
    for (; i + lanes <= part.size(); i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) put(bins, lane, part[i + lane]);
    }
    for (; i < part.size(); ++i) put(bins, 0, part[i]);
    for (std::uint32_t e = 0; e < exponents; ++e) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (bins[lane][e] == 0) continue;
        add_to_words(e, bins[lane][e],
                     [&](std::size_t word, std::uint64_t number) { sum_[word] += number; });
      }
    }
  }
}

double ExactSquares::value(std::span<const std::uint64_t, words> sum) noexcept {
  if (sum[digits] != 0) return std::numeric_limits<double>::quiet_NaN();
  std::array<std::uint64_t, digits + 1> digit{};
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    const std::uint64_t all = sum[i] + carry;
    digit[i] = all & mask;
    carry = all >> digit_bits;
  }
  digit[digits] = carry;
  std::size_t top = digits;
  while (top > 2 && digit[top] == 0) --top;
  constexpr double base = 0x1p32;
  const double value =
      (static_cast<double>(digit[top]) * base + static_cast<double>(digit[top - 1])) * base +
      static_cast<double>(digit[top - 2]);
  return std::ldexp(value, static_cast<int>((top - 2) * digit_bits) + least_exponent);
}

}  // namespace lockstep
