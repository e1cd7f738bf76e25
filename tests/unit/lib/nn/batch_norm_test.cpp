// Batch normalisation: its statistics, what evaluation takes, and sums over leaves.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lockstep/nn/network.hpp"
#include "lockstep/optim/optimizer.hpp"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

constexpr std::size_t rows = 7;
const NetworkShape shape(FeatureShape{3, 2, 2, true}, {BatchNorm{0.75}, Flatten{}}, 2);

struct Replica {
  std::unique_ptr<Products<float>> products = make_strict_products(Simd::automatic);
  Network<float> network{shape, rows, *products};
  WholeBatch batch{rows, 2};

  Replica() {
    initialise(network, {1, 2});
    std::mt19937 random(9);
    for (float& x : network.inputs({0, rows}).flat()) {
      x = 3 + 2 * std::normal_distribution<float>()(random);
    }
  }
  void train_pass() {
    network.set_batch_sums(&batch);
    network.forward({0, rows}, TrainingRows{1, 0});
    const std::vector<std::int32_t> labels = {0, 1, 1, 0, 1, 0, 0};
    network.loss({0, rows}, labels, true);
    network.backward({0, rows});
    network.end_training_pass();
    network.weight_gradients({0, rows}, 2, {0, network.parameters().values().size()});
  }
};

/// Of channel `c` of all rows and pixels, by the textbook.
std::pair<double, double> moments(Matrix<const float> x, std::size_t c) {
  double sum = 0;
  double squares = 0;
  double count = 0;
  for (std::size_t i = c; i < x.flat().size(); i += 2, ++count) {
    sum += static_cast<double>(x.flat()[i]);
  }
  for (std::size_t i = c; i < x.flat().size(); i += 2) {
    squares += std::pow(static_cast<double>(x.flat()[i]) - sum / count, 2);
  }
  return {sum / count, squares / count};
}

}  // namespace

TEST_CASE("running statistics move towards the batch's, and evaluation takes them",
          "[nn][layers][batch-norm]") {
  Replica replica;
  auto& block = replica.network.parameters();
  REQUIRE(block.tensors()[2].name == "0.mean");
  REQUIRE(block.tensors()[3].name == "0.variance");
  CHECK(block.logical_value(2) == std::vector<float>{0, 0});
  CHECK(block.logical_value(3) == std::vector<float>{1, 1});
  CHECK(block.parameters() == shape.parameters());
  const auto logits_before = replica.network.forward({0, rows});
  const std::vector<float> before(logits_before.flat().begin(), logits_before.flat().end());

  replica.train_pass();
  for (std::size_t c = 0; c < 2; ++c) {
    const auto [mean, variance] = moments(replica.network.inputs({0, rows}), c);
    CHECK(block.logical_value(2)[c] == Approx(0.25 * mean));
    CHECK(block.logical_value(3)[c] == Approx(0.75 + 0.25 * variance));
  }
  const auto after = replica.network.forward({0, rows});
  CHECK(std::vector<float>(after.flat().begin(), after.flat().end()) != before);
}

TEST_CASE("the optimiser leaves running statistics alone", "[nn][layers][batch-norm]") {
  Replica replica;
  auto& block = replica.network.parameters();
  std::fill(block.gradients().begin(), block.gradients().end(), 5.0F);
  replica.train_pass();
  const auto mean = block.logical_value(2);
  const auto variance = block.logical_value(3);
  const auto gain = block.logical_value(0);
  optim::Optimizer adam(block.values().size(), {}, {});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const std::array all = {optim::GradientSums{block.gradients()}};
    CHECK(adam.update(block.values(), all, rows, step, {}));
  }
  CHECK(block.logical_value(2) == mean);
  CHECK(block.logical_value(3) == variance);
  CHECK(block.logical_value(0) != gain);
}

TEST_CASE("training without sums over the batch is refused", "[nn][layers][batch-norm]") {
  Replica replica;
  CHECK(replica.network.sums_over_batch());
  CHECK_NOTHROW(replica.network.forward({0, rows}));
  CHECK_THROWS_AS(replica.network.forward({0, rows}, TrainingRows{1, 0}), std::logic_error);
}

TEST_CASE("leaves are summed in order, then as the balanced tree", "[nn][batch-norm]") {
  // With terms that lose bits when they are added in another order.
  const std::vector<double> terms = {1, 1e-16, 1e-16, 1e16, 3, -1e16, 0.1};
  WholeBatch batch(terms.size(), 2);
  std::vector<double> sums(1);
  batch.sum(sums, [&](Range examples, std::span<double> into) {
    for (std::size_t i = examples.begin; i < examples.end; ++i) into[0] += terms[i];
  });
  const double expected =
      ((terms[0] + terms[1]) + (terms[2] + terms[3])) + ((terms[4] + terms[5]) + terms[6]);
  CHECK(sums[0] == expected);
}
