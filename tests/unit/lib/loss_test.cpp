#include "lib/nn/loss.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("equal logits cost log(classes)", "[nn]") {
  const std::vector<double> z(10, 3.0);
  const std::vector<std::int32_t> labels = {4};
  const auto tally = softmax_cross_entropy<double>({z.data(), 1, 10}, labels);
  CHECK(tally.loss_sum == Approx(std::log(10.0)).epsilon(1e-15));
  CHECK(tally.correct == 0);  // of equal logits the first is the prediction
}

TEST_CASE("the gradient is softmax minus one-hot and sums to zero", "[nn]") {
  const std::vector<double> z = {1, 2, 3, -1, 0, 1};
  const std::vector<std::int32_t> labels = {2, 0};
  std::vector<double> dz(6);
  const auto tally =
      softmax_cross_entropy<double>({z.data(), 2, 3}, labels, Matrix<double>(dz.data(), 2, 3));
  const double total = std::exp(1) + std::exp(2) + std::exp(3);
  CHECK(dz[0] == Approx(std::exp(1) / total));
  CHECK(dz[2] == Approx(std::exp(3) / total - 1));
  CHECK(dz[0] + dz[1] + dz[2] == Approx(0).margin(1e-15));
  CHECK(dz[3] + dz[4] + dz[5] == Approx(0).margin(1e-15));
  CHECK(tally.correct == 1);
}

TEST_CASE("great logits neither overflow nor lose the loss", "[nn]") {
  const std::vector<float> z = {1e4F, -1e4F, 0.0F};
  std::vector<float> dz(3);
  const std::vector<std::int32_t> labels = {1};
  const auto tally =
      softmax_cross_entropy<float>({z.data(), 1, 3}, labels, Matrix<float>(dz.data(), 1, 3));
  CHECK(tally.loss_sum == Approx(2e4));
  CHECK(dz[0] == 1.0F);
  CHECK(dz[1] == -1.0F);
}

TEST_CASE("what is not finite is seen in the loss", "[nn]") {
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  const std::vector<float> z = {0.0F, bad, 1.0F};
  const std::vector<std::int32_t> labels = {2};
  const auto tally = softmax_cross_entropy<float>({z.data(), 1, 3}, labels);
  CHECK_FALSE(std::isfinite(tally.loss_sum));
}
