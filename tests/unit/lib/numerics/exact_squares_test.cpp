#include "lockstep/numerics/exact_squares.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using lockstep::ExactSquares;

namespace {

double sum_of(std::span<const float> numbers) {
  ExactSquares squares;
  squares.add(numbers);
  return ExactSquares::value(squares.sum());
}

/// Numbers of all magnitudes, denormal ones too.
std::vector<float> numbers(std::size_t count, int least, int greatest) {
  std::mt19937 random(5);
  std::vector<float> all(count);
  for (float& number : all) {
    const auto mantissa = static_cast<float>(random() % 20001) / 10000 - 1;
    const int exponent =
        least + static_cast<int>(random() % static_cast<unsigned>(greatest - least));
    number = std::ldexp(mantissa, exponent);
  }
  return all;
}

}  // namespace

TEST_CASE("sums of squares are exact", "[exact]") {
  CHECK(sum_of({}) == 0);
  CHECK(sum_of(std::vector<float>{3, -4}) == 25);
  const float least = std::numeric_limits<float>::denorm_min();
  const float greatest = std::numeric_limits<float>::max();
  CHECK(sum_of(std::vector<float>{least}) == 0x1p-298);
  CHECK(sum_of(std::vector<float>{greatest}) ==
        static_cast<double>(greatest) * static_cast<double>(greatest));
  // In double, one after the other, nothing of the small ones would be left.
  std::vector<float> mixed(1 << 20, 0x1p-30F);
  mixed.push_back(0x1p30F);
  CHECK(sum_of(mixed) == 0x1p60 + 0x1p-40);
  std::vector<float> many(200'000, 1.5F);
  CHECK(sum_of(many) == 450'000);
}

TEST_CASE("a sum of squares depends on no order and no grouping", "[exact]") {
  auto all = numbers(100'000, -150, 127);
  const double sum = sum_of(all);
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  CHECK(sum_of(all) == sum);
  ExactSquares::Words words{};
  for (std::size_t first = 0; first < all.size(); first += 777) {
    ExactSquares part;
    part.add(std::span(all).subspan(first, std::min<std::size_t>(777, all.size() - first)));
    for (std::size_t i = 0; i < words.size(); ++i) words[i] += part.sum()[i];
  }
  CHECK(ExactSquares::value(words) == sum);
}

TEST_CASE("a sum of squares agrees with long double", "[exact]") {
  for (const auto& [least, greatest] : {std::pair(-5, 5), std::pair(-60, -40), std::pair(60, 90)}) {
    const auto all = numbers(5000, least, greatest);
    long double expected = 0;
    for (const float number : all) expected += static_cast<long double>(number) * number;
    CHECK(std::abs(sum_of(all) / static_cast<double>(expected) - 1) < 1e-15);
  }
}

TEST_CASE("a number that is not finite makes the sum not a number", "[exact]") {
  CHECK(std::isnan(sum_of(std::vector<float>{1, std::numeric_limits<float>::infinity(), 2})));
  CHECK(std::isnan(sum_of(std::vector<float>(5, std::numeric_limits<float>::quiet_NaN()))));
}
