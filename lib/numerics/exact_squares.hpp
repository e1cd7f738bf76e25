// ExactSquares: the sum of the squares of float32 numbers without rounding, so that it depends
// neither on their order nor on which rank adds which of them.
#pragma once

#include <array>
#include <bit>
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

  /// A square is mantissa^2 times a power of two that depends on the exponent field of the number
  /// alone, so integers of one field are added before they enter the words.
  struct Square {
    std::uint32_t exponent;         ///< the field; exponents - 1: not finite
    std::uint64_t mantissa_square;  ///< below 2^48; not 0 if the number is not finite
  };
  static constexpr std::uint32_t exponents = 256;
  static constexpr std::size_t max_squares = std::size_t{1} << 15;  ///< their sum is below 2^63
  static constexpr Square square_of(float number) noexcept {
    constexpr int mantissa_bits = 23;
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const std::uint32_t exponent = bits >> mantissa_bits & (exponents - 1);
    const std::uint32_t hidden = exponent == 0 ? 0 : std::uint32_t{1} << mantissa_bits;
    const std::uint64_t mantissa = (bits & ((std::uint32_t{1} << mantissa_bits) - 1)) | hidden;
    return {exponent, mantissa * mantissa};
  }

  /// Calls add(word, number) for each addition that `sum`, a sum of mantissa squares of one
  /// exponent field, makes to the words.
  template <class Add>
  static constexpr void add_to_words(std::uint32_t exponent, std::uint64_t sum, Add add) {
    if (exponent == exponents - 1) return add(words - 1, std::uint64_t{1});
    constexpr std::uint64_t mask = 0xFFFFFFFF;
    const std::size_t position = exponent == 0 ? 0 : 2 * (exponent - 1);
    const std::size_t word = position / 32;
    const std::uint64_t shift = position % 32;
    const std::uint64_t low = (sum & mask) << shift;  // below 2^64
    const std::uint64_t high = (sum >> 32) << shift;
    add(word, low & mask);
    add(word + 1, (low >> 32) + (high & mask));
    add(word + 2, high >> 32);
  }

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
