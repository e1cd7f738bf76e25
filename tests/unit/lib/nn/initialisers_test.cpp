// The reference bits were read off TensorFlow 2.21: tf.random.stateless_uniform, seed (22, 23).
#include "lockstep/nn/initialisers.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "lockstep/nn/network.hpp"

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("the unit interval equals TensorFlow's bits", "[nn]") {
  std::vector<float> values(8);
  stateless_uniform({22, 23}, 0.0F, 1.0F, values);
  const std::array<std::uint32_t, 8> expected = {0x3f4637e8, 0x3f668116, 0x3f1275d8, 0x3d392600,
                                                 0x3e355800, 0x3f3bb9fa, 0x3f760ec6, 0x3b1a3000};
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(std::bit_cast<std::uint32_t>(values[i]) == expected[i]);
  }
}

namespace {

double sum(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

TEST_CASE("the tutorial's first weights equal TensorFlow's", "[nn]") {
  const auto products = GENERATE(true, false) ? make_library_products<float>()
                                              : make_strict_products(Simd::automatic);
  Network<float> network({784, {700, 500}, 10}, 1, *products);
  initialise(network, {22, 23});
  const auto& block = network.parameters();
  REQUIRE(block.parameters() == 905010);
  const auto w0 = block.logical_value(0);
  CHECK(w0[0] == 0x1.1dc08cp-5F);
  CHECK(w0[1] == 0x1.a12384p-5F);
  CHECK(w0[2] == 0x1.2c7eep-7F);
  CHECK(w0[3] == -0x1.d9cd52p-5F);
  CHECK(w0.back() == Approx(0.0434348F).epsilon(1e-5));
  CHECK(sum(w0) == Approx(-41.9214351).epsilon(1e-8));
  // The others were written down to eight digits.
  const auto digits = [](double expected) { return Approx(expected).margin(6e-9).epsilon(0); };
  const auto w1 = block.logical_value(2);
  CHECK(w1[0] == digits(0.03879054));
  CHECK(w1[1] == digits(0.05662613));
  CHECK(w1[2] == digits(0.01019798));
  CHECK(w1[3] == digits(-0.06431811));
  CHECK(sum(w1) == Approx(-47.9090421).epsilon(1e-8));
  const auto w2 = block.logical_value(4);
  CHECK(w2[0] == digits(0.05950198));
  CHECK(w2[1] == digits(0.08686052));
  CHECK(w2[2] == digits(0.015643));
  CHECK(w2[3] == digits(-0.09865949));
  CHECK(sum(w2) == Approx(-4.17751552).epsilon(1e-8));
  for (const std::size_t bias : {1, 3, 5}) CHECK(sum(block.logical_value(bias)) == 0);
}

TEST_CASE("layers of one shape begin equal, within Glorot's limits", "[nn]") {
  const auto products = make_strict_products(Simd::automatic);
  const Convolution conv = {8, 3, Padding::same};
  const NetworkShape shape(FeatureShape{12, 12, 8, true}, {{conv, "a"}, {conv, "b"}, Flatten{}},
                           10);
  Network<float> network(shape, 1, *products);
  initialise(network, {22, 23});
  const auto a = network.parameters().logical_value(0);
  CHECK(a == network.parameters().logical_value(2));
  const float greatest = std::abs(*std::max_element(
      a.begin(), a.end(), [](float x, float y) { return std::abs(x) < std::abs(y); }));
  const float limit = glorot_limit(3 * 3 * 8, 3 * 3 * 8);
  CHECK(greatest <= limit);
  CHECK(greatest > 0.99F * limit);
}

TEST_CASE("every value can be computed without those before it", "[nn]") {
  // The 5th value is the first of the second group of four, whatever the length.
  std::vector<float> few(5);
  std::vector<float> many(5000);
  stateless_uniform({1, 2}, -1.0F, 1.0F, few);
  stateless_uniform({1, 2}, -1.0F, 1.0F, many);
  CHECK(std::equal(few.begin(), few.end(), many.begin()));
  for (const std::size_t first : {1, 4, 1234, 4995}) {
    stateless_uniform({1, 2}, -1.0F, 1.0F, few, first);
    CHECK(std::equal(few.begin(), few.end(), many.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}
