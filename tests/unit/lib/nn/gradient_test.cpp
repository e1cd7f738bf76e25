// Every derivative against central differences in double, and the float replica against the
// double one. The double network runs the same code, so the first check covers both.
#include <Eigen/Dense>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/nn/custom_layer.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/threads.hpp"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

constexpr TrainingRows training = {5, 1000};  // any step, the same for all: masks do not move

constexpr FeatureShape image = {6, 7, 2, true};

std::vector<NetworkShape> layer_shapes() {
  const Pool max = {Pooling::max, 2};
  const Convolution same = {3, 4, Padding::same, Activation::relu};
  const Convolution valid = {4, 3, Padding::valid, Activation::identity};
  return {
      {image, {same, Flatten{}}, 3},
      {image, {valid, same, Flatten{}}, 3},
      {image, {max, same, Pool{Pooling::average, 2}, Flatten{}}, 3},
      {image, {same, max, same, Flatten{}, Dense{5}}, 2},
      {image, {Convolution{2, 9, Padding::same, Activation::relu}, Flatten{}}, 2},
      {image, {same, LayerNorm{}, Dropout{0.4}, Flatten{}, LayerNorm{}}, 3},
      {image, {BatchNorm{}, same, BatchNorm{}, max, Flatten{}, Dense{4}, BatchNorm{}}, 3},
      {flat(6), {Dense{5}, Dropout{0.5}, Dense{4, Activation::identity}, LayerNorm{}}, 3},
      {FeatureShape{16, 16, 1, true}, lenet_layers(), 10},
      // Strides that leave pixels out, and both kinds of padding.
      {image, {Convolution{3, 3, Padding::same, Activation::relu, 2}, Flatten{}}, 3},
      {image, {valid, Convolution{3, 2, Padding::valid, Activation::relu, 3}, Flatten{}}, 3},
      {image, {same, Convolution{3, 1, Padding::same, Activation::identity, 2}, GlobalPool{}}, 3},
      {image, {same, GlobalPool{Pooling::max}}, 3},
      // Relu outputs that two and three layers take, and one layer twice.
      {image,
       {{same, "a"}, {same, "b"}, {Add{Activation::relu}, "", {"a", "b", "a"}}, Flatten{}},
       3},
      {image,
       {{same, "a"},
        {valid, "b"},
        {same, "c", {"a"}},
        {Concatenate{}, "d", {"c", "a"}},
        {GlobalPool{}, "e"},
        {Flatten{}, "f", {"b"}},
        {Dense{4}, "g"},
        {Concatenate{}, "", {"e", "g", "f"}}},
       3},
      {flat(6),
       {{Dense{5}, "a"},
        {Dropout{0.3}, "b"},
        {LayerNorm{}, "c", {"a"}},
        {Dense{5, Activation::identity}, "d", {"a"}},
        {Add{}, "", {"d", "b", "c"}}},
       3},
      // Residual blocks, with an identity and a strided shortcut.
      {image,
       {{same, "stem"},
        Convolution{3, 3, Padding::same, Activation::identity},
        BatchNorm{0.9, Activation::relu},
        Convolution{3, 3, Padding::same, Activation::identity},
        {BatchNorm{}, "one"},
        {Add{Activation::relu}, "add", {"one", "stem"}},
        {Convolution{4, 3, Padding::same, Activation::identity, 2}},
        {BatchNorm{}, "two"},
        {Convolution{4, 1, Padding::same, Activation::identity, 2}, "short", {"add"}},
        {Add{Activation::relu}, "", {"two", "short"}},
        GlobalPool{}},
       3}};
}

struct Problem {
  NetworkShape shape;
  std::size_t rows;
  std::vector<double> x;
  std::vector<std::int32_t> labels;
};

Problem random_problem(const NetworkShape& shape, std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  Problem problem{shape, rows, std::vector<double>(rows * shape.features), {}};
  for (double& value : problem.x) value = std::normal_distribution<double>()(random);
  for (std::size_t i = 0; i < rows; ++i) {
    problem.labels.push_back(static_cast<std::int32_t>(random() % shape.classes));
  }
  return problem;
}

/// A network with random weights, the same in float and double and for all products.
template <class Real>
struct RandomNetwork {
  std::unique_ptr<Products<Real>> products;
  Network<Real> network;
  WholeBatch batch;

  RandomNetwork(const NetworkShape& shape, std::size_t rows, unsigned seed,
                std::unique_ptr<Products<Real>> by = make_library_products<Real>())
      : products(std::move(by)), network(shape, rows, *products), batch(rows, 4) {
    network.set_batch_sums(&batch);
    std::mt19937 random(seed);
    auto& block = network.parameters();
    for (std::size_t t = 0; t < block.tensors().size(); ++t) {
      std::vector<Real> weights(block.tensors()[t].size());
      for (Real& weight : weights) {
        weight = static_cast<Real>(std::normal_distribution<float>(0, 0.5F)(random));
      }
      block.set_logical_value(t, weights);
    }
  }
};

/// Sets the rows' features and runs everything; the gradients are those of these rows.
template <class Real>
Tally forward_backward(Network<Real>& network, std::span<const double> x, Range rows,
                       std::span<const std::int32_t> labels) {
  std::copy(x.begin(), x.end(), network.inputs(rows).flat().begin());
  network.forward(rows, training);
  network.loss(rows, labels, true);
  network.backward(rows);
  network.weight_gradients(rows, 4, {0, network.parameters().values().size()});
  return sum_over_leaves(network.results(rows), 4);
}

/// Between the gradients of two networks, against the length of the second's.
double distance(Network<float>& single, Network<double>& exact) {
  double error = 0;
  double norm = 0;
  for (std::size_t t = 0; t < exact.parameters().tensors().size(); ++t) {
    const auto expected = exact.parameters().logical_gradient(t);
    const auto found = single.parameters().logical_gradient(t);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
      norm += expected[i] * expected[i];
    }
  }
  return std::sqrt(error / norm);
}

std::unique_ptr<Products<float>> float_products(const std::string& name) {
  return name == "strict" ? make_strict_products(Simd::automatic) : make_library_products<float>();
}

}  // namespace

TEST_CASE("gradients agree with central differences in double", "[nn][gradient]") {
  const auto shape =
      GENERATE(NetworkShape{5, {}, 3}, NetworkShape{7, {6}, 4}, NetworkShape{6, {9, 5}, 3},
               NetworkShape{4, {5, 6, 4}, 2}, NetworkShape{3, {1}, 1});
  const std::size_t rows = GENERATE(1, 2, 9);
  for (const std::string& name :
       {std::string(default_loss), smoothed_loss(0.1), std::string(squared_error),
        std::string(regression_loss), std::string(absolute_error), huber_loss(0.1),
        std::string(binary_cross_entropy)}) {
    INFO(name);
    if (shape.classes == 1 && name.starts_with(default_loss)) continue;  // of no gradient: refused
    CHECK(check_gradients(shape, *built_in_loss<double>(name), rows).worst < 1e-6);
  }
}

TEST_CASE("every kind of layer agrees with central differences", "[nn][gradient][layers]") {
  for (const auto& shape : layer_shapes()) {
    INFO(shape.text());
    const auto check = check_gradients(shape);
    INFO(check.place);
    CHECK(check.worst < 1e-5);
  }
}

TEST_CASE("an embedding agrees with central differences", "[nn][gradient][layers]") {
  const Convolution conv = {3, 3, Padding::same, Activation::relu};
  const auto check = check_gradients(
      {flat(6),
       {{Embedding{4, 5}, "a"}, {conv, "b"}, {Concatenate{}, "", {"a", "b"}}, GlobalPool{}},
       3});
  CHECK(check.worst < 1e-6);
  const auto of_two = check_gradients({flat(6),
                                       {{Embedding{9, 3}, "a"},
                                        {Embedding{2, 3}, "b", {"input"}},
                                        {Add{}, "", {"a", "b"}},
                                        GlobalPool{}},
                                       3});
  CHECK(of_two.worst < 1e-6);
}

TEST_CASE("float layers compute the double ones' gradients", "[nn][gradient][layers]") {
  const std::string by = GENERATE("library", "strict");
  for (const auto& shape : layer_shapes()) {
    INFO(shape.text() << " by " << by);
    auto problem = random_problem(shape, 9, 5);
    for (double& value : problem.x) value = static_cast<double>(static_cast<float>(value));
    RandomNetwork<double> exact(shape, 9, 6);
    RandomNetwork<float> single(shape, 9, 6, float_products(by));
    forward_backward<float>(single.network, problem.x, {0, 9}, problem.labels);
    forward_backward<double>(exact.network, problem.x, {0, 9}, problem.labels);
    CHECK(distance(single.network, exact.network) < 1e-4);
  }
}

TEST_CASE("layers compute the same bits on any number of threads", "[nn][layers]") {
  constexpr FeatureShape large = {16, 16, 8, true};  // each layer's work is divided: see share()
  constexpr std::size_t rows = 64;
  const Convolution conv = {16, 1, Padding::same, Activation::relu};
  LayerSpec frozen = BatchNorm{};
  frozen.frozen = true;
  const std::vector<NetworkShape> shapes = {
      {large, {conv, BatchNorm{0.9, Activation::relu}, LayerNorm{}, conv, GlobalPool{}}, 3},
      {large, {conv, LayerNorm{}, conv, Pool{Pooling::max, 3}, Dropout{0.3}, Flatten{}}, 3},
      {large, {conv, Dropout{0.3}, conv, BatchNorm{}, frozen, conv, frozen, GlobalPool{}}, 3},
      {large, {{conv, "a"}, {conv, "b", {"input"}}, {Add{}, "", {"a", "b"}}, GlobalPool{}}, 3},
      {large,
       {{conv, "a"}, {conv, "b", {"input"}}, {Concatenate{}, "", {"a", "b"}}, GlobalPool{}},
       3},
      {flat(64), {Embedding{9, 16}, conv, GlobalPool{}}, 3}};
  for (const NetworkShape& shape : shapes) {
    INFO(shape.text());
    auto problem = random_problem(shape, rows, 5);
    for (double& x : problem.x) x = std::floor(std::min(std::abs(4 * x), 8.0));  // for embeddings
    const auto results = [&](int threads) {
      set_product_threads(threads);
      RandomNetwork<float> random(shape, rows, 6, float_products("strict"));
      WholeBatch sums(rows, 32);
      random.network.set_batch_sums(&sums);
      auto& block = random.network.parameters();
      for (std::size_t t = 0; t < block.tensors().size(); ++t) {
        const ParameterSpec& tensor = block.tensors()[t];
        if (!tensor.name.ends_with(".variance")) continue;  // of a frozen layer: above 0
        block.set_logical_value(t, std::vector<float>(tensor.size(), 2));
      }
      forward_backward<float>(random.network, problem.x, {0, rows}, problem.labels);
      set_product_threads(1);
      std::vector<float> all;
      const auto add = [&](std::span<const float> values) {
        all.insert(all.end(), values.begin(), values.end());
      };
      for (std::size_t i = 0; i < random.network.layers(); ++i) {
        add(random.network.activation(i + 1, {0, rows}).flat());
        add(random.network.gradient(i, {0, rows}).flat());
      }
      add(block.gradients());
      return all;
    };
    const auto expected = results(1);
    CHECK(std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    for (const int threads : {2, 3}) CHECK((results(threads) == expected));
  }
}

TEST_CASE("dropout keeps what it should, anew in every step and row", "[nn][layers]") {
  const NetworkShape shape(flat(4000), {Dropout{0.25}}, 2);
  const auto products = float_products("strict");
  Network<float> network(shape, 3, *products);
  const auto mask = [&](std::uint64_t step, std::uint64_t first) {
    std::fill(network.inputs({0, 3}).flat().begin(), network.inputs({0, 3}).flat().end(), 1.0F);
    network.forward({0, 3}, TrainingRows{step, first});
    const std::vector<std::int32_t> labels(3);
    network.loss({0, 3}, labels, true);
    std::vector<bool> kept;  // dW of a dropped input is zero
    network.weight_gradients({1, 2}, 1, {0, network.parameters().values().size()});
    const auto dw = network.parameters().logical_gradient(0);
    for (std::size_t i = 0; i < dw.size(); i += 2) kept.push_back(dw[i] != 0);
    return kept;
  };
  const auto first = mask(1, 0);
  CHECK(std::count(first.begin(), first.end(), true) == Approx(3000).margin(150));
  CHECK(mask(1, 0) == first);
  CHECK(mask(2, 0) != first);
  CHECK(mask(1, 1) != first);
  network.set_seed(9);
  CHECK(mask(1, 0) != first);
  const auto x = network.inputs({0, 3}).flat();
  std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
  network.forward({0, 3}, TrainingRows{1, 0});
  const auto y = network.activation(1, {0, 3}).flat();  // what is wrong is not dropped
  CHECK(std::all_of(y.begin(), y.end(), [](float value) { return std::isnan(value); }));
}

TEST_CASE("float replicas compute the double one's gradients", "[nn][gradient]") {
  const NetworkShape shape{37, {41, 129}, 10};
  const std::size_t rows = GENERATE(1, 16, 33);
  const std::string by = GENERATE("library", "strict");
  auto problem = random_problem(shape, rows, 5);
  for (double& value : problem.x) value = static_cast<double>(static_cast<float>(value));
  RandomNetwork<double> exact(shape, rows, 6);
  RandomNetwork<float> single(shape, rows, 6, float_products(by));
  const Range all = {0, rows};
  const auto tally = forward_backward<float>(single.network, problem.x, all, problem.labels);
  const auto reference = forward_backward<double>(exact.network, problem.x, all, problem.labels);
  CHECK(tally.correct == reference.correct);
  CHECK(tally.loss_sum == Approx(reference.loss_sum).epsilon(1e-5));
  CHECK(distance(single.network, exact.network) < 1e-5);
}

TEST_CASE("the gradient of a whole is the sum of its pieces'", "[nn][gradient]") {
  const NetworkShape shape{11, {13}, 5};
  const auto problem = random_problem(shape, 10, 7);
  RandomNetwork<double> random(shape, 10, 8);
  const auto gradients_of = [&](std::size_t begin, std::size_t end) {
    const auto tally = forward_backward<double>(
        random.network,
        std::span(problem.x).subspan(begin * shape.features, (end - begin) * shape.features),
        {begin, end}, std::span(problem.labels).subspan(begin, end - begin));
    const auto gradients = random.network.parameters().gradients();
    std::vector<double> result(gradients.begin(), gradients.end());
    result.push_back(tally.loss_sum);
    result.push_back(static_cast<double>(tally.correct));
    return result;
  };
  const auto whole = gradients_of(0, 10);
  std::vector<double> sum(whole.size());
  for (const auto& [begin, end] : {std::pair(0, 3), {3, 3}, {3, 4}, {4, 10}}) {
    const auto piece = gradients_of(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += piece[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == Approx(whole[i]).margin(1e-12));
}

TEST_CASE("an empty piece contributes exactly nothing", "[nn]") {
  const std::string by = GENERATE("library", "strict");
  RandomNetwork<float> random({11, {13}, 5}, 4, 8, float_products(by));
  const auto gradients = random.network.parameters().gradients();
  std::fill(gradients.begin(), gradients.end(), 9.0F);
  const auto tally = forward_backward<float>(random.network, {}, {4, 4}, {});
  CHECK(tally.loss_sum == 0);
  CHECK(tally.correct == 0);
  for (std::size_t t = 0; t < random.network.parameters().tensors().size(); ++t) {
    for (const float g : random.network.parameters().gradient(t)) REQUIRE(g == 0);
  }
}

TEST_CASE("the forward product is Eigen's in double", "[numerics]") {
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const RowMajor x = RowMajor::Random(5, 7);
  const RowMajor w = RowMajor::Random(7, 4);
  const Eigen::RowVectorXd bias = Eigen::RowVectorXd::Random(4);
  RowMajor y(5, 4);
  make_library_products<double>()->forward({x.data(), 5, 7},
                                           {7, 4, {w.data(), 28}, {bias.data(), 4}},
                                           Activation::relu, {y.data(), 5, 4});
  const RowMajor expected = ((x * w).rowwise() + bias).cwiseMax(0);
  CHECK((y - expected).cwiseAbs().maxCoeff() < 1e-15);
}

TEST_CASE("gradients pass frozen layers, and stop before the first that is trained", "[gradient]") {
  const auto frozen = [](LayerSpec layer) {
    layer.frozen = true;
    return layer;
  };
  const Convolution same = {3, 4, Padding::same, Activation::relu};
  const Convolution valid = {4, 3, Padding::valid, Activation::identity};
  const auto check =
      check_gradients({image,
                       {frozen(same), valid, frozen(BatchNorm{0.9, Activation::relu}), frozen(same),
                        BatchNorm{}, frozen(LayerNorm{}), Flatten{}, frozen(Dense{4})},
                       3});
  INFO(check.place);
  CHECK(check.worst < 1e-6);
}
