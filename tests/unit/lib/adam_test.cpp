#include "lockstep/optim/adam.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace lockstep::optim;

namespace {

/// The formula of the header in double.
struct Reference {
  std::vector<double> w, m, v;
  int t = 0;

  void update(const std::vector<float>& sums, double examples) {
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = static_cast<double>(sums[i]) / examples;
      m[i] = 0.9 * m[i] + (1 - 0.9) * g;
      v[i] = 0.999 * v[i] + (1 - 0.999) * g * g;
      const double mean = m[i] / (1 - std::pow(0.9, t));
      const double square = v[i] / (1 - std::pow(0.999, t));
      w[i] -= 1e-3 * mean / (std::sqrt(square) + 1e-7);
    }
  }
};

std::vector<float> gradients(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::normal_distribution<float>()(random) *
            std::pow(10.0F, static_cast<float>(random() % 8) - 6);
  }
  if (count > 2) values[2] = 0;
  return values;
}

}  // namespace

TEST_CASE("the first step equals the formula in double", "[adam]") {
  const std::size_t count = GENERATE(1, 15, 16, 17, 1000);
  const auto sums = gradients(count, 1);
  std::vector<float> w(count);
  Adam adam(count, {});
  REQUIRE(adam.update(w, sums, 128));
  for (std::size_t i = 0; i < count; ++i) {
    const double g = std::abs(static_cast<double>(sums[i]) / 128);
    CHECK(std::abs(std::abs(static_cast<double>(w[i])) - 1e-3 * g / (g + 1e-7)) < 1e-7);
  }
}

TEST_CASE("a hundred steps stay with the formula in double", "[adam]") {
  const std::size_t count = 200;
  std::vector<float> w(count, 0.5F);
  Reference exact{std::vector<double>(count, 0.5), std::vector<double>(count),
                  std::vector<double>(count)};
  Adam adam(count, {});
  for (unsigned step = 0; step < 100; ++step) {
    const auto sums = gradients(count, step);
    REQUIRE(adam.update(w, sums, 100 + step));
    exact.update(sums, 100 + step);
  }
  CHECK(adam.scalars().steps == 100);
  for (std::size_t i = 0; i < count; ++i) CHECK(std::abs(w[i] - exact.w[i]) < 1e-5);
}

// std::pow() gives another float32 at steps 9 and 12 here, and no library promises its last bit.
TEST_CASE("bias correction takes the powers of beta as running products", "[adam]") {
  const AdamOptions options = {.beta1 = 0.999, .beta2 = 0.99999999};
  Adam adam(1, options);
  std::vector<float> w(1);
  double product1 = 1;
  double product2 = 1;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    REQUIRE(adam.update(w, std::vector<float>{1}, 1));
    product1 *= options.beta1;
    product2 *= options.beta2;
    const AdamState& state = adam.scalars();
    REQUIRE(state.steps == step);
    REQUIRE(state.beta1_power == product1);
    REQUIRE(state.beta2_power == product2);
    const AdamFactors factors = adam_factors(options, state, 1);
    REQUIRE(factors.corrected_rate == static_cast<float>(1e-3 / (1 - product1)));
    REQUIRE(factors.inverse_correction2 == static_cast<float>(1 / (1 - product2)));
  }
}

TEST_CASE("an update does not depend on how the range is divided", "[adam]") {
  const std::size_t count = 1003;
  std::vector<float> whole(count, 0.25F);
  std::vector<float> parts(count, 0.25F);
  Adam one(count, {});
  Adam left(77, {});
  Adam right(count - 77, {});
  for (unsigned step = 0; step < 5; ++step) {
    const auto sums = gradients(count, step);
    REQUIRE(one.update(whole, sums, 7));
    REQUIRE(left.update(std::span(parts).first(77), std::span(sums).first(77), 7));
    REQUIRE(right.update(std::span(parts).subspan(77), std::span(sums).subspan(77), 7));
  }
  CHECK(whole == parts);
}

TEST_CASE("a gradient that is not finite is reported", "[adam]") {
  const std::size_t count = 70;
  const std::size_t place = GENERATE(0, 15, 63, 64, 69);
  auto sums = gradients(count, 1);
  sums[place] =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  std::vector<float> w(count);
  Adam adam(count, {});
  CHECK_FALSE(adam.update(w, sums, 1));
}

TEST_CASE("a gradient whose square is not finite is reported", "[adam]") {
  const std::size_t place = GENERATE(0, 15, 63, 64, 69);
  std::vector<float> sums(70, 1.0F);
  std::vector<float> w(70);
  Adam adam(70, {});
  sums[place] = 1.8e19F;  // the largest whose square is a float32 is 1.84e19
  CHECK(adam.update(w, sums, 1));
  sums[place] = 1.9e19F;
  CHECK_FALSE(adam.update(w, sums, 1));
  CHECK_FALSE(adam.update(w, std::vector<float>(70, 1.0F), 1));  // the moment stays infinite
}

TEST_CASE("what is next to nothing becomes zero and stays there", "[adam]") {
  std::vector<float> w(20, 0.0F);
  Adam adam(20, {});
  REQUIRE(adam.update(w, std::vector<float>(20, 1e-20F), 1));
  CHECK(w == std::vector<float>(20, 0.0F));  // the formula gives -1e-16
  REQUIRE(adam.update(w, std::vector<float>(20, 1e-9F), 1));
  for (int step = 0; step < 1000; ++step) {
    REQUIRE(adam.update(w, std::vector<float>(20, 0.0F), 1));
  }
  const auto settled = w;
  REQUIRE(adam.update(w, std::vector<float>(20, 0.0F), 1));
  CHECK(w == settled);  // the first moment is 0, not denormal
}

TEST_CASE("spans of another length are a caller's mistake", "[adam]") {
  Adam adam(4, {});
  std::vector<float> w(4);
  std::vector<float> sums(5);
  CHECK_THROWS_AS(adam.update(w, sums, 1), std::invalid_argument);
  CHECK_THROWS_AS(adam.update(w, std::span(sums).first(4), 0), std::invalid_argument);
}
