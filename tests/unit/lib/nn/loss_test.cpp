#include "lockstep/nn/loss.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/strict_math.hpp"
#include "tests/support/greatest_error.hpp"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

template <class Real>
std::vector<ExampleResult> results_of(const std::vector<Real>& z, std::size_t classes,
                                      const std::vector<std::int32_t>& labels,
                                      std::vector<Real>* dz = nullptr) {
  std::vector<ExampleResult> results(labels.size());
  const Matrix<const Real> logits(z.data(), labels.size(), classes);
  if (dz == nullptr) {
    softmax_cross_entropy<Real>(logits, labels, results);
  } else {
    dz->resize(z.size());
    softmax_cross_entropy<Real>(logits, labels, results,
                                Matrix<Real>(dz->data(), labels.size(), classes));
  }
  return results;
}

}  // namespace

TEST_CASE("equal logits cost log(classes)", "[nn]") {
  const auto results = results_of<double>(std::vector<double>(10, 3.0), 10, {4});
  CHECK(results[0].loss == Approx(std::log(10.0)).epsilon(1e-15));
  CHECK(results[0].correct == 0);  // of equal logits the first is the prediction
}

TEST_CASE("the gradient is softmax minus one-hot and sums to zero", "[nn]") {
  std::vector<double> dz;
  const auto results = results_of<double>({1, 2, 3, -1, 0, 1}, 3, {2, 0}, &dz);
  const double total = std::exp(1) + std::exp(2) + std::exp(3);
  CHECK(dz[0] == Approx(std::exp(1) / total));
  CHECK(dz[2] == Approx(std::exp(3) / total - 1));
  CHECK(dz[0] + dz[1] + dz[2] == Approx(0).margin(1e-15));
  CHECK(dz[3] + dz[4] + dz[5] == Approx(0).margin(1e-15));
  CHECK(results[0].correct == 1);
  CHECK(results[1].correct == 0);
}

TEST_CASE("great logits neither overflow nor lose the loss", "[nn]") {
  std::vector<float> dz;
  const auto results = results_of<float>({1e4F, -1e4F, 0.0F}, 3, {1}, &dz);
  CHECK(results[0].loss == Approx(2e4));
  CHECK(dz[0] == 1.0F);
  CHECK(dz[1] == -1.0F);
}

TEST_CASE("what is not finite is seen in the loss", "[nn]") {
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  CHECK_FALSE(std::isfinite(results_of<float>({0.0F, bad, 1.0F}, 3, {2})[0].loss));
}

TEST_CASE("label smoothing has PyTorch's losses and gradients", "[nn]") {
  const Loss<double>* const loss = built_in_loss<double>(smoothed_loss(0.1));
  REQUIRE(loss != nullptr);
  CHECK(loss->name() == std::string("softmax cross-entropy, smoothing 0.1"));
  CHECK(built_in_loss<double>(loss->name()) == loss);
  const std::vector<double> z = {1.5, -2, 0.25, 0, 0, 0, -3, 4, 1};
  const std::vector<std::int32_t> labels = {0, 2, 1};
  std::vector<double> dz(z.size());
  std::vector<ExampleResult> results(3);
  loss->run({z.data(), 3, 3}, labels, results, {dz.data(), 3, 3});
  // torch.nn.functional.cross_entropy(z, labels, label_smoothing=0.1), in double.
  const std::vector<double> losses = {0.43346359558096875, 1.0986122886681098, 0.3827889430289791};
  const std::vector<double> gradients = {
      -0.17386014723635113,  -0.010399230333792909, 0.1842593775701439,  0.3, 0.3, -0.6,
      -0.032465452038443726, 0.018414072222434963,  0.014051379816008847};
  for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(results[i].loss - losses[i]) < 1e-12);
  for (std::size_t i = 0; i < 9; ++i) CHECK(std::abs(dz[i] - gradients[i]) < 1e-12);
  CHECK(results[0].correct == 1);
  for (const char* name :
       {"softmax cross-entropy, smoothing 0", "softmax cross-entropy, smoothing 1.0",
        "softmax cross-entropy, smoothing 0.10", "softmax cross-entropy, smoothing x"}) {
    CHECK(built_in_loss<float>(name) == nullptr);
  }
  CHECK_THROWS_AS(SmoothedCrossEntropy<float>(1), ConfigError);
}

TEST_CASE("losses and gradients have the bits of their definition", "[nn]") {
  const auto [rows, classes] = GENERATE(
      std::pair<std::size_t, std::size_t>{1, 1}, std::pair<std::size_t, std::size_t>{5, 3000},
      std::pair<std::size_t, std::size_t>{700, 10}, std::pair<std::size_t, std::size_t>{0, 10});
  std::mt19937 random(3);
  std::vector<float> z(rows * classes);
  for (float& logit : z) logit = std::normal_distribution<float>(0, 20)(random);
  if (rows > 1) z.back() = std::numeric_limits<float>::infinity();
  std::vector<std::int32_t> labels(rows);
  for (auto& label : labels) label = static_cast<std::int32_t>(random() % classes);
  std::vector<float> dz;
  const auto trained = results_of<float>(z, classes, labels, &dz);
  const auto tested = results_of<float>(z, classes, labels);
  const auto same = [](auto a, auto b) { return a == b || (a != a && b != b); };
  bool equal = true;
  for (std::size_t i = 0, at = 0; i < labels.size(); ++i) {
    const auto row = std::span<const float>(z).subspan(at, classes);
    const float normaliser = log_sum_exp(row);
    const auto label = static_cast<std::size_t>(labels[i]);
    const auto loss = static_cast<double>(normaliser - row[label]);
    equal = equal && same(trained[i].loss, loss) && same(tested[i].loss, loss);
    equal = equal && trained[i].correct == (predicted_class(row) == label ? 1 : 0);
    for (std::size_t j = 0; j < row.size(); ++j, ++at) {
      const float softmax = strict_exp(row[j] - normaliser);
      equal = equal && same(dz[at], j == label ? softmax - 1 : softmax);
    }
  }
  CHECK(equal);
}

TEST_CASE("losses are summed in a tree over leaves", "[nn]") {
  std::vector<ExampleResult> results;
  for (const double loss : {1e16, 1.0, 1.0, 1.0, -1e16, 3.0, 5.0}) results.push_back({loss, 1});
  // Leaves of 2: [1e16 + 1] [1 + 1] [-1e16 + 3] [5]; then ((a + b) + (c + d)).
  const double expected = ((1e16 + 1.0) + (1.0 + 1.0)) + ((-1e16 + 3.0) + 5.0);
  CHECK(sum_over_leaves(results, 2).loss_sum == expected);
  CHECK(sum_over_leaves(results, 2).correct == 7);
  CHECK(sum_over_leaves(std::span(results).first(1), 16).loss_sum == 1e16);
  CHECK(sum_over_leaves({}, 4).loss_sum == 0);
  CHECK(sum_over_leaves(results, 2).weight == 7);
  for (auto& result : results) result.weight = result.loss;
  CHECK(sum_over_leaves(results, 2).weight == expected);
  // Two halves of four leaves each: the parent is their sum.
  const auto half = [&](std::size_t begin) {
    return sum_over_leaves(std::span(results).subspan(begin, begin == 0 ? 4 : 3), 1).loss_sum;
  };
  CHECK(sum_over_leaves(results, 1).loss_sum == half(0) + half(4));
}

TEST_CASE("absolute error and Huber loss have the figures of PyTorch", "[nn]") {
  // torch.nn.functional.l1_loss and huber_loss(delta=0.75), of each row, and their gradients
  const std::vector<float> values = {1, 2, -1, 0.5F};
  const std::vector<double> z = {1.5, 2, 1, -0.25};
  const auto check = [&](const std::string& name, const std::vector<double>& losses,
                         const std::vector<double>& gradient) {
    const Loss<double>* const loss = built_in_loss<double>(name);
    REQUIRE(loss != nullptr);
    REQUIRE(loss->name() == name);
    REQUIRE(loss->target() == TargetKind::values);
    std::vector<double> dz(4);
    std::vector<ExampleResult> results(2);
    loss->run({z.data(), 2, 2}, {{}, values}, results, {dz.data(), 2, 2});
    CHECK(std::vector<double>{results[0].loss, results[1].loss} == losses);
    CHECK(dz == gradient);
  };
  check(absolute_error, {0.25, 1.375}, {0.5, 0, 0.5, -0.5});
  check(huber_loss(0.75), {0.0625, 0.75}, {0.25, 0, 0.375, -0.375});
  for (const char* name : {"huber loss of values, delta 0.0", "huber loss of values, delta -1.0",
                           "huber loss of values, delta 1", "huber loss of values, delta inf"}) {
    CHECK(built_in_loss<double>(name) == nullptr);
  }
  CHECK_THROWS_AS(HuberLoss<float>(0), ConfigError);
  for (const double delta : {1e39, 1e-50}) {  // not in float
    CHECK(built_in_loss<float>(huber_loss(delta)) == nullptr);
    CHECK(built_in_loss<double>(huber_loss(delta)) != nullptr);
    CHECK_THROWS_WITH(HuberLoss<float>(delta), Catch::Contains("not a finite float32 above 0"));
  }
}

namespace {

/// scale * sin(1.3 i + phase), rounded to float.
float wave(std::size_t i, double phase, double scale) {
  return static_cast<float>(scale * std::sin(1.3 * static_cast<double>(i) + phase));
}

/// The mean losses of steps of SGD in scripts/peers/losses.py.
template <class Real>
std::vector<double> losses_of_steps(const std::string& case_name, Products<Real>& products,
                                    std::size_t steps) {
  const std::string name = case_name.substr(0, case_name.find(" | "));
  const bool has_weights = case_name.find("sample weights") != std::string::npos;
  constexpr std::size_t batch = 8;
  constexpr std::size_t examples = 24;
  constexpr Range rows = {0, batch};
  Network<Real> network({4, {5}, 3}, batch, products);
  network.set_loss(*built_in_loss<Real>(name));
  if (case_name.find("class weights") != std::string::npos) {
    network.set_class_weights(std::vector<float>{0.5F, 2, 1.25F});
    CHECK_THROWS_AS(network.set_loss(*built_in_loss<Real>(regression_loss)), ConfigError);
  }
  auto& block = network.parameters();
  for (std::size_t t = 0; t < block.tensors().size(); ++t) {
    std::vector<Real> weights(block.tensors()[t].size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<Real>(wave(i, 0.7 * static_cast<double>(t), 0.3));
    }
    block.set_logical_value(t, weights);
  }
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t first = step * batch % examples;
    const auto x = network.inputs(rows).flat();
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<Real>(wave(4 * first + i, 0.1, 1));
    }
    std::vector<std::int32_t> labels;
    std::vector<float> values;
    std::vector<float> sample_weights;
    for (std::size_t i = first; i < first + batch; ++i) {
      if (has_weights) sample_weights.push_back(static_cast<float>((i * i + 3) % 5) / 4);
      labels.push_back(static_cast<std::int32_t>((i * i + i / 5) % 3));
      for (std::size_t j = 3 * i; j < 3 * i + 3; ++j) {
        values.push_back(name == binary_cross_entropy ? ((j * j + j / 4) % 3 == 0 ? 1.0F : 0.0F)
                                                      : wave(j, 0.5, 1));
      }
    }
    network.forward(rows, TrainingRows{step + 1, 0});
    const bool has_labels = network.loss_function().target() == TargetKind::label;
    Targets targets = has_labels ? Targets{labels} : Targets{{}, values};
    targets.weights = sample_weights;
    network.loss(rows, targets, true);
    const Tally tally = sum_over_leaves(network.results(rows), 4);
    losses.push_back(tally.loss_sum / tally.weight);
    network.backward(rows);
    network.end_training_pass();
    network.weight_gradients(rows, 4, {0, block.values().size()});
    const auto gradients = block.gradients();
    const auto weights = block.values();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= static_cast<Real>(0.1 / tally.weight) * gradients[i];
    }
  }
  return losses;
}

}  // namespace

TEST_CASE("losses follow PyTorch", "[nn]") {
  std::ifstream file(LOSS_FIGURES);
  const auto figures = nlohmann::json::parse(file);
  REQUIRE(figures.size() == 12);
  for (const auto& [name, losses] : figures.items()) {
    INFO(name);
    const auto recorded = losses.get<std::vector<double>>();
    REQUIRE(recorded.size() == 100);
    const auto worst = [&](const std::vector<double>& found) {
      return test::greatest_error(found, recorded, test::ErrorKind::relative);
    };
    CHECK(worst(losses_of_steps(name, *make_library_products<double>(), 100)) < 1e-12);
    CHECK(worst(losses_of_steps(name, *make_strict_products(Simd::automatic), 100)) < 1e-5);
  }
}

TEST_CASE("an example of weight 0 adds 0, whatever its loss", "[nn]") {
  const auto products = make_strict_products(Simd::automatic);
  Network<float> network({2, {}, 2}, 2, *products);
  network.set_loss(*built_in_loss<float>(regression_loss));
  const std::vector<float> values = {1, 2, 3e38F, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> weights = {3, 0};
  Targets targets = {{}, values};
  targets.weights = weights;
  std::ranges::fill(network.inputs({0, 2}).flat(), 1.0F);
  network.forward({0, 2}, TrainingRows{});
  network.loss({0, 2}, targets, true);
  const auto results = network.results({0, 2});
  CHECK(results[0].loss == 7.5);
  CHECK((results[1].loss == 0 && !std::signbit(results[1].loss)));
  CHECK(sum_over_leaves(results, 1).weight == 3);
  CHECK(network.gradient(0, {0, 1}).flat()[0] == -3);
  for (const float value : network.gradient(0, {1, 2}).flat()) {
    CHECK((value == 0 && !std::signbit(value)));
  }
}

TEST_CASE("weights of examples are checked", "[nn]") {
  const Loss<float>& loss = *built_in_loss<float>(default_loss);
  const std::vector<std::int32_t> labels = {0, 1, 2};
  const auto check = [&](const std::vector<float>& weights) {
    Targets targets = labels;
    targets.weights = weights;
    require_targets(targets, loss, 3, 3, 40);
  };
  CHECK_NOTHROW(check({}));
  CHECK_NOTHROW(check({0, 1.5F, 1e30F}));
  CHECK_THROWS_AS(check({1, 1}), ConfigError);
  CHECK_THROWS_WITH(check({1, -1, 1}), Catch::Contains("the weight -1.0 of example 41"));
  CHECK_THROWS_AS(check({1, 1, std::numeric_limits<float>::infinity()}), DataError);
  CHECK_THROWS_AS(check({std::numeric_limits<float>::quiet_NaN(), 1, 1}), DataError);
}

TEST_CASE("binary cross-entropy has the figures of PyTorch", "[nn]") {
  // torch.nn.functional.binary_cross_entropy_with_logits, of each row, and their gradients
  const std::vector<float> flags = {1, 0, 1, 0, 1, 0, 1, 0, 1};
  std::vector<float> with_half = flags;
  with_half[4] = 0.5F;
  const std::vector<double> z = {2, -1, 0.5, -30, 40, 0, -0.25, 3, -90};
  const std::vector<double> losses = {0.30475556091376732, 0.23104906018667923, 31.291508923817528};
  const std::vector<double> gradient = {
      -0.039734307340705891, 0.089647140456665025, -0.12584688959938178, 3.1192076562797663e-14, 0,
      0.16666666666666666,   -0.18739216696193267, 0.31752470894081108,  -0.33333333333333331};
  const auto run = [&](auto zero, double margin) {
    using Real = decltype(zero);
    const Loss<Real>* const loss = built_in_loss<Real>(binary_cross_entropy);
    REQUIRE(loss != nullptr);
    REQUIRE(loss->target() == TargetKind::flags);
    const std::vector<Real> logits(z.begin(), z.end());
    std::vector<Real> dz(9);
    std::vector<ExampleResult> results(3);
    loss->run({logits.data(), 3, 3}, {{}, flags}, results, {dz.data(), 3, 3});
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(results[i].loss == Approx(losses[i]).epsilon(margin));
      CHECK(results[i].correct == (i < 2 ? 1 : 0));
    }
    for (std::size_t i = 0; i < 9; ++i) {
      CHECK(static_cast<double>(dz[i]) == Approx(gradient[i]).epsilon(margin).margin(margin));
    }
    CHECK_THROWS_AS(require_targets({{}, with_half}, *loss, 3, 3), DataError);
    CHECK_THROWS_AS(require_targets({{}, flags}, *loss, 3, 2), ConfigError);
    CHECK_NOTHROW(require_targets({{}, flags}, *loss, 3, 3));
  };
  run(0.0F, 1e-6);
  run(0.0, 1e-14);
}

TEST_CASE("the loss of values is their mean squared distance, in both types", "[nn]") {
  const std::vector<float> values = {1, 2, -1, 0.5F};
  const std::vector<double> z = {1.5, 2, 1, 0};
  std::vector<double> dz(4);
  std::vector<ExampleResult> results(2);
  const Loss<double>* const loss = built_in_loss<double>(regression_loss);
  REQUIRE(loss != nullptr);
  REQUIRE(loss->target() == TargetKind::values);
  loss->run({z.data(), 2, 2}, {{}, values}, results, {dz.data(), 2, 2});
  CHECK(results[0].loss == 0.125);
  CHECK(results[1].loss == 2.125);
  CHECK(dz == std::vector<double>{0.5, 0, 2, -0.5});
  CHECK_THROWS_AS(require_targets({{}, values}, *loss, 2, 3), ConfigError);
  CHECK_NOTHROW(require_targets({{}, values}, *loss, 2, 2));
  CHECK_THROWS_AS(require_targets({{}, values}, *built_in_loss<double>(default_loss), 2, 2),
                  ConfigError);
}
