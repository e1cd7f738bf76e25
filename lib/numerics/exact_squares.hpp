// ExactSquares: the sum of the squares of float32 numbers without rounding, so that it depends
// neither on their order nor on which rank adds which of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// A sum of squares as a fixed-point number in words of 64 bits, each of which holds 32 bits and
/// what has been carried. Sums of several ranks are added word by word, as integers.
///
/// The square of a float is m^2 2^(2 e), with m below 2^24; so additions of integers give the sum
/// exactly, for up to 2^32 numbers and any grouping.
/// Cost     about a nanosecond for each number. Local.
/// Source   R. M. Neal, "Fast exact summation using small and large superaccumulators", 2015,
///          arXiv:1505.05571, whose accumulators for doubles are simpler here.
class ExactSquares {
 public:
  /// Bits from 2^-298, the square of the least float, to 2^288; then a word that is not 0 if a
  /// number was not finite.
  static constexpr std::size_t words = 20;
  using Words = std::array<std::uint64_t, words>;

  /// Adds the squares of `numbers`.
  void add(std::span<const float> numbers) noexcept;

  /// The sum as words, to be added to those of other ranks.
  const Words& sum() const noexcept { return sum_; }

  /// The value of such words: rounded to double in fixed operations, with a relative error below
  /// 2^-51; NaN if a number was not finite.
  static double value(std::span<const std::uint64_t, words> sum) noexcept;

 private:
  Words sum_{};
};

}  // namespace lockstep
