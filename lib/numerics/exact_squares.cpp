#include "lockstep/numerics/exact_squares.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr int mantissa_bits = 23;
constexpr std::uint32_t exponents = 256;
constexpr std::uint32_t not_finite = exponents - 1;
constexpr int least_exponent = -298;  // of a bit of the square of the least float
constexpr std::size_t digits = ExactSquares::words - 1;
constexpr std::uint64_t digit_bits = 32;
constexpr std::uint64_t mask = 0xFFFFFFFF;

/// Squares of mantissas, below 2^48, by exponent. Neighbours of the same exponent are added to
/// different lanes, which need not wait for each other.
constexpr std::size_t lanes = 4;
constexpr std::size_t block = std::size_t{1} << 15;  // then a bin is below 2^63
using Bins = std::array<std::array<std::uint64_t, exponents>, lanes>;

void put(Bins& bins, std::size_t lane, float number) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t exponent = bits >> mantissa_bits & (exponents - 1);
  const std::uint32_t hidden = exponent == 0 ? 0 : std::uint32_t{1} << mantissa_bits;
  const std::uint64_t mantissa = (bits & ((std::uint32_t{1} << mantissa_bits) - 1)) | hidden;
  bins[lane][exponent] += mantissa * mantissa;
}

/// Adds bin * 2^position.
void add_at(ExactSquares::Words& sum, std::uint64_t bin, std::size_t position) noexcept {
  const std::size_t digit = position / digit_bits;
  const std::uint64_t shift = position % digit_bits;
  const std::uint64_t low = (bin & mask) << shift;  // below 2^64
  const std::uint64_t high = (bin >> digit_bits) << shift;
  sum[digit] += low & mask;
  sum[digit + 1] += (low >> digit_bits) + (high & mask);
  sum[digit + 2] += high >> digit_bits;
}

}  // namespace

void ExactSquares::add(std::span<const float> numbers) noexcept {
  for (std::size_t first = 0; first < numbers.size(); first += block) {
    const auto part = numbers.subspan(first, std::min(block, numbers.size() - first));
    Bins bins{};
    std::size_t i = 0;
    for (; i + lanes <= part.size(); i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) put(bins, lane, part[i + lane]);
    }
    for (; i < part.size(); ++i) put(bins, 0, part[i]);
    for (std::uint32_t e = 0; e < not_finite; ++e) {
      const std::size_t position = e == 0 ? 0 : 2 * (e - 1);
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (bins[lane][e] != 0) add_at(sum_, bins[lane][e], position);
      }
    }
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      if (bins[lane][not_finite] != 0) sum_[digits] = 1;
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
