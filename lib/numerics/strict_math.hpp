// Exponential and logarithm in fixed operations: the same bits on every IEEE 754 machine.
//
// Results of the C library differ between versions and processors. These functions evaluate a fixed
// polynomial in double by additions, multiplications and one division, each rounded separately (the
// build disables contraction); strict_exp() and strict_log() round once to float at the end. The
// relative error of the double is below 1e-15, so the float is the nearest one except for about one
// argument in ten million.
//
// The functions are constexpr so that device code can call them (nvcc's
// --expt-relaxed-constexpr). Compile them without contraction (-ffp-contract=off, --fmad=false).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace lockstep {
/// c[0] + c[1] x + c[2] x^2 + ... by Horner's rule.
template <std::size_t N>
constexpr double polynomial(const std::array<double, N>& c, double x) noexcept {
  double sum = c[N - 1];
  for (std::size_t n = N - 1; n > 0; --n) sum = sum * x + c[n - 1];
  return sum;
}

/// 1 / n!: the remainder is below 2^-57 for |x| <= log(2) / 2.
constexpr std::array<double, 14> exponential_series() noexcept {
  std::array<double, 14> c{};
  double factorial = 1;
  for (std::size_t n = 0; n < c.size(); ++n) {
    if (n > 0) factorial *= static_cast<double>(n);
    c[n] = 1 / factorial;
  }
  return c;
}

/// 1 / (2 n + 1), as in atanh(s) = s + s^3 / 3 + ...: the remainder is below 2^-60 for s^2 <= (3 -
/// sqrt(8))^2.
constexpr std::array<double, 12> area_tangent_series() noexcept {
  std::array<double, 12> c{};
  for (std::size_t n = 0; n < c.size(); ++n) c[n] = 1 / static_cast<double>(2 * n + 1);
  return c;
}

/// The logarithm of 2 in two parts; the first has 32 bits, so its product with an exponent is
/// exact.
struct Log2 {
  static constexpr double high = 0x1.62e42feep-1;
  static constexpr double low = 0x1.a39ef35793c76p-33;
  static constexpr double inverse = 0x1.71547652b82fep+0;
};

/// The exponent field of a double.
struct DoubleBits {
  static constexpr int bias = 1023;
  static constexpr int mantissa = 52;
};

/// Floats overflow above e^88.7 and are 0 below e^-104: beyond these limits all are alike.
struct ExpRange {
  static constexpr float least = -110;
  static constexpr float greatest = 100;
};

/// e^x for |x| <= 708, where no double is denormal.
constexpr double exp_in_double(double x) noexcept {
  constexpr auto series = exponential_series();
  const double scaled = x * Log2::inverse;
  const int exponent = static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double rest = (x - exponent * Log2::high) - exponent * Log2::low;
  const auto power = std::bit_cast<double>(static_cast<std::uint64_t>(exponent + DoubleBits::bias)
                                           << DoubleBits::mantissa);
  return polynomial(series, rest) * power;
}

/// The natural logarithm of a normal number above 0.
constexpr double log_in_double(double x) noexcept {
  // x = mantissa * 2^exponent, with the mantissa in [sqrt(1/2), sqrt(2)).
  constexpr auto series = area_tangent_series();
  constexpr auto root_half = std::bit_cast<std::uint64_t>(0x1.6a09e667f3bcdp-1);
  constexpr auto one = std::bit_cast<std::uint64_t>(1.0);
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) + (one - root_half);
  const int exponent = static_cast<int>(bits >> DoubleBits::mantissa) - DoubleBits::bias;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << DoubleBits::mantissa) - 1);
  const auto mantissa = std::bit_cast<double>(fraction + root_half);
  const double s = (mantissa - 1) / (mantissa + 1);
  const double square = s * s;
  const double log_mantissa = 2 * (s * polynomial(series, square));
  return exponent * Log2::high + (exponent * Log2::low + log_mantissa);
}

/// e^x. Overflows to infinity and underflows gradually to 0; NaN gives the positive quiet NaN.
constexpr float strict_exp(float x) noexcept {
  using Float = std::numeric_limits<float>;
  if (x != x) return Float::quiet_NaN();
  if (x > ExpRange::greatest) return Float::infinity();
  if (x < ExpRange::least) return 0;
  return static_cast<float>(exp_in_double(x));
}

/// Replaces each value by its strict_exp(), to the bit, in vectors. Local.
void strict_exp(std::span<float> values) noexcept;

/// The natural logarithm. -infinity for +0 and -0; the positive quiet NaN below zero and for NaN.
constexpr float strict_log(float x) noexcept {
  using Float = std::numeric_limits<float>;
  if (x != x || x < 0) return Float::quiet_NaN();
  if (x == 0) return -Float::infinity();
  if (x == Float::infinity()) return x;
  return static_cast<float>(log_in_double(x));  // no float is denormal as a double
}

}  // namespace lockstep
