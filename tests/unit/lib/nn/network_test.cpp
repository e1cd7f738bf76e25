// Networks whose layers take several inputs, and outputs that several layers take.
#include "lockstep/nn/network.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "tests/support/greatest_error.hpp"

using namespace lockstep;
using namespace lockstep::nn;
using Catch::Contains;

namespace {

constexpr FeatureShape image = {6, 5, 2, true};

Convolution convolution(std::size_t filters, std::size_t kernel = 3, std::size_t stride = 1) {
  return {filters, kernel, Padding::same, Activation::identity, stride};
}

const BatchNorm norm_relu = {0.9, Activation::relu};

/// The network of scripts/peers/networks.py.
NetworkShape residual_network() {
  return {image,
          {convolution(4),
           {norm_relu, "stem"},
           convolution(4),
           norm_relu,
           convolution(4),
           {BatchNorm{}, "one"},
           {Add{Activation::relu}, "block1", {"one", "stem"}},
           convolution(6, 3, 2),
           norm_relu,
           convolution(6),
           {BatchNorm{}, "two"},
           {convolution(6, 1, 2), "", {"block1"}},
           {BatchNorm{}, "shortcut"},
           {Add{Activation::relu}, "", {"two", "shortcut"}},
           GlobalPool{}},
          3};
}

/// scale * sin(1.3 i + phase), rounded to float.
double wave(std::size_t i, double phase, double scale) {
  return static_cast<double>(
      static_cast<float>(scale * std::sin(1.3 * static_cast<double>(i) + phase)));
}

template <class Real>
void set_weights(Network<Real>& network) {
  auto& block = network.parameters();
  for (std::size_t t = 0; t < block.tensors().size(); ++t) {
    const double start = static_cast<double>(block.tensors()[t].start.value);
    std::vector<Real> weights(block.tensors()[t].size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] =
          static_cast<Real>(static_cast<float>(start + wave(i, 0.7 * static_cast<double>(t), 0.3)));
    }
    block.set_logical_value(t, weights);
  }
}

/// The losses of steps of SGD, and that of all examples in evaluation after them.
template <class Real>
std::vector<double> losses(Products<Real>& products, std::size_t steps) {
  constexpr std::size_t batch = 8;
  constexpr std::size_t examples = 24;
  constexpr double rate = 0.1;
  Network<Real> network(residual_network(), examples, products);
  WholeBatch sums(batch, 4);
  network.set_batch_sums(&sums);
  set_weights(network);
  std::vector<double> found;
  const auto run = [&](std::size_t first, Range rows, std::optional<TrainingRows> training) {
    const auto x = network.inputs(rows).flat();
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<Real>(wave(first * image.size() + i, 0.1, 1));
    }
    std::vector<std::int32_t> labels;
    for (std::size_t i = first; i < first + rows.size(); ++i) {
      labels.push_back(static_cast<std::int32_t>((i * i + i / 5) % 3));
    }
    network.forward(rows, training);
    network.loss(rows, {labels, {}}, training.has_value());
    found.push_back(sum_over_leaves(network.results(rows), 4).loss_sum /
                    static_cast<double>(rows.size()));
  };
  const Range rows = {0, batch};
  for (std::size_t step = 0; step < steps; ++step) {
    run(step * batch % examples, rows, TrainingRows{step + 1, 0});
    network.backward(rows);
    network.end_training_pass();
    const auto values = network.parameters().values();
    network.weight_gradients(rows, 4, {0, values.size()});
    const auto gradients = network.parameters().gradients();
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] -= static_cast<Real>(rate / batch) * gradients[i];
    }
  }
  run(0, {0, examples}, std::nullopt);
  return found;
}

std::string refusal(std::vector<LayerSpec> layers, const FeatureShape& input = image) {
  try {
    const NetworkShape shape(input, std::move(layers), 3);
  } catch (const ConfigError& error) {
    CHECK(!error.remedy().empty());
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a residual network follows PyTorch", "[nn][graph]") {
  std::ifstream file(NETWORK_FIGURES);
  const auto figures = nlohmann::json::parse(file);
  auto recorded = figures.at("losses").get<std::vector<double>>();
  const std::size_t steps = recorded.size();
  REQUIRE(steps >= 20);
  recorded.push_back(figures.at("evaluation").get<double>());
  const auto worst = [&](const std::vector<double>& found) {
    return test::greatest_error(found, recorded, test::ErrorKind::relative);
  };
  CHECK(worst(losses<double>(*make_library_products<double>(), steps)) < 1e-10);
  CHECK(worst(losses<float>(*make_library_products<float>(), steps)) < 1e-5);
  CHECK(worst(losses<float>(*make_strict_products(Simd::automatic), steps)) < 1e-5);
}

TEST_CASE("contributions to a gradient are added from the last user to the first", "[nn][graph]") {
  const auto products = make_strict_products(Simd::automatic);
  const Dense dense = {9, Activation::identity};
  const NetworkShape shape(flat(5),
                           {{Dense{9}, "a"},
                            {dense, "b"},
                            {dense, "c", {"a"}},
                            {dense, "d", {"a"}},
                            {Add{}, "", {"d", "b", "c"}}},
                           3);
  constexpr Range rows = {0, 7};
  Network<float> network(shape, rows.size(), *products);
  set_weights(network);
  const auto x = network.inputs(rows).flat();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(wave(i, 0.3, 1));
  network.forward(rows, TrainingRows{1, 0});
  const std::vector<std::int32_t> labels = {0, 1, 2, 0, 1, 2, 0};
  network.loss(rows, {labels, {}}, true);
  network.backward(rows);
  const Matrix<const float> a = network.activation(1, rows);
  const auto contribution = [&](std::size_t layer) {
    std::vector<float> dx(a.rows * a.cols);
    auto& block = network.parameters();
    const LayerWeights<float> weights = {9, 9, block.value(2 * layer), block.value(2 * layer + 1)};
    products->backward_input(network.gradient(layer, rows), weights, a, Activation::identity,
                             {dx.data(), a.rows, a.cols});
    return dx;
  };
  const auto by_b = contribution(1);
  const auto by_c = contribution(2);
  const auto by_d = contribution(3);
  const auto found = network.gradient(0, rows).flat();
  std::size_t in_another_order = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_active = a.flat()[i] > 0;
    REQUIRE(found[i] == (is_active ? (by_d[i] + by_c[i]) + by_b[i] : 0));
    if (is_active && found[i] != (by_b[i] + by_c[i]) + by_d[i]) ++in_another_order;
  }
  CHECK(in_another_order > 0);
}

TEST_CASE("each value that the weights' gradients need is exchanged once", "[nn][graph]") {
  const auto products = make_strict_products(Simd::automatic);
  const std::vector<LayerSpec> shared = {{Flatten{}, "flat"},
                                         {Dense{4}, "a", {"flat"}},
                                         {Dense{4}, "b", {"flat"}},
                                         {Concatenate{}, "", {"a", "b", "a"}},
                                         Dense{5}};
  for (const NetworkShape& shape :
       {residual_network(), NetworkShape(image, shared, 3), NetworkShape(9, {7, 8}, 3),
        NetworkShape(image, {Pool{Pooling::max, 2}, Flatten{}, Dense{4}}, 2)}) {
    INFO(shape.text());
    Network<float> network(shape, 1, *products);
    std::size_t exchanged = 0;
    network.for_each_exchanged({0, 1}, [&](std::span<float> v) { exchanged += v.size(); });
    CHECK(static_cast<double>(exchanged) == shape.exchanged_values());
  }
}

TEST_CASE("a strided convolution computes the windows of stride 1 that it names", "[nn][graph]") {
  const auto products = make_strict_products(Simd::automatic);
  const std::size_t kernel = GENERATE(1, 2, 3, 5);
  const std::size_t stride = GENERATE(2, 3, 7);
  const auto padding = GENERATE(Padding::same, Padding::valid);
  const FeatureShape input = {7, 6, 2, true};
  const auto output = [&](std::size_t step, FeatureShape& shape) {
    const Convolution spec = {3, kernel, padding, Activation::relu, step};
    shape = spec.output_of(input);
    Network<float> network({input, {spec, Flatten{}}, 2}, 1, *products);
    set_weights(network);
    const auto x = network.inputs({0, 1}).flat();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(wave(i, 0.3, 1));
    network.forward({0, 1});
    const auto y = network.activation(1, {0, 1}).flat();
    return std::vector<float>(y.begin(), y.end());
  };
  FeatureShape all;
  FeatureShape few;
  const auto whole = output(1, all);
  const auto strided = output(stride, few);
  REQUIRE(few.rows == (all.rows + stride - 1) / stride);
  REQUIRE(few.columns == (all.columns + stride - 1) / stride);
  for (std::size_t i = 0; i < few.positions(); ++i) {
    const std::size_t at = i / few.columns * stride * all.columns + i % few.columns * stride;
    for (std::size_t c = 0; c < 3; ++c) REQUIRE(strided[3 * i + c] == whole[3 * at + c]);
  }
}

TEST_CASE("global pooling gives the maximum and the mean of each channel", "[nn][graph]") {
  const auto products = make_strict_products(Simd::automatic);
  const auto pooling = GENERATE(Pooling::max, Pooling::average);
  Network<float> network({FeatureShape{2, 3, 2, true}, {GlobalPool{pooling}}, 2}, 1, *products);
  const std::vector<float> x = {1, -1, 5, -7, 2, 0, 3, -3, 4, -4, 9, -9};
  std::copy(x.begin(), x.end(), network.inputs({0, 1}).flat().begin());
  network.forward({0, 1});
  const auto y = network.activation(1, {0, 1}).flat();
  CHECK(std::vector<float>(y.begin(), y.end()) ==
        (pooling == Pooling::max ? std::vector<float>{9, 0} : std::vector<float>{4, -4}));
}

TEST_CASE("an embedding gives the rows of its inputs, and NaN without one", "[nn][graph]") {
  const auto products = make_strict_products(Simd::automatic);
  Network<float> network({flat(3), {Embedding{5, 2}, Flatten{}}, 2}, 40, *products);
  set_weights(network);
  const Range rows = {0, 40};
  const auto x = network.inputs(rows).flat();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i % 5);
  x[6] = 5;
  x[7] = -1;
  x[8] = 0.5F;
  network.forward(rows);
  const auto table = network.parameters().logical_value(0);
  const auto y = network.activation(1, rows).flat();
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t c = 0; c < 2; ++c) {
      if (i >= 6 && i <= 8) {
        REQUIRE(std::isnan(y[2 * i + c]));
      } else {
        REQUIRE(y[2 * i + c] == table[2 * static_cast<std::size_t>(x[i]) + c]);
      }
    }
  }
}

TEST_CASE("a flatten is not a second user of its input", "[nn][graph]") {
  const NetworkShape shape(image, {convolution(2), Flatten{}}, 3);
  CHECK(uses_of_values(shape, shape.sizes()) == std::vector<std::size_t>{1, 1, 0, 0});
  CHECK(shape.row_values() == 60 + 2 * 60 + 2 * 3);
}

TEST_CASE("a graph is described with its names", "[nn][graph]") {
  const NetworkShape shape(image,
                           {{convolution(2), "a"},
                            {convolution(2, 3, 1), "b", {"input"}},
                            {Add{}, "", {"a", "b"}},
                            GlobalPool{Pooling::max}},
                           3);
  CHECK(shape.text() ==
        "6x5x2, conv 2@3x3 as a, conv 2@3x3 as b of input, add of a, b, global-pool max, dense 3");
  CHECK(shape.layer_text(0) == "layer 1 (conv 2@3x3) 'a'");
  CHECK_FALSE(shape.is_mlp());
  NetworkShape named(4, {5}, 3);
  CHECK(named.is_mlp());
  named.layers[0].name = "a";
  CHECK_FALSE(named.is_mlp());  // its widths do not say the name
  // Windows of 3x3 pixels of 4 channels at 30 positions, of up to 242 images together.
  CHECK(residual_network().window_values(8, 1, 1) == 8 * 30 * 9 * 4);
  // Nodes of the tree: of 128 images there, and of 512 with 6 channels at 9 positions.
  CHECK(residual_network().window_values(1000, 1, 1) == 512 * 9 * 9 * 6);
  CHECK(residual_network().window_values(1000, 500, 1) == 500 * 30 * 9 * 4);
  // In forward and dX 60 images for each thread, and so without training and where all is frozen.
  CHECK(residual_network().window_values(1000, 1, 16) == 16 * 60 * 30 * 9 * 4);
  NetworkShape single(image, {convolution(4), Flatten{}}, 3);
  const double forward = 121 * 30 * 9 * 2;
  CHECK(single.window_values(1000, 0, 1) == forward);
  CHECK(single.window_values(1000, 1, 1) == 256 * 30 * 9 * 2);
  single.layers[0].frozen = true;
  CHECK(single.window_values(1000, 1, 1) == forward);
  CHECK(NetworkShape(4, {5}, 3).window_values(1000, 1, 1) == 0);
  // Values, outputs and their gradients, and the largest output that is taken twice.
  CHECK(residual_network().row_values() == 60 + 2 * (7 * 30 * 4 + 7 * 9 * 6 + 6 + 3) + 30 * 4);
}

TEST_CASE("a graph that cannot be is refused with the layer and both shapes", "[nn][graph]") {
  const LayerSpec a = {convolution(4), "a"};
  CHECK_THAT(refusal({a, {Add{}, "sum", {"a", "b"}}}),
             Contains("layer 2 (add) 'sum': from: 'b' is the name of no layer"));
  CHECK_THAT(refusal({{convolution(4), "stem"}, {Add{}, "", {"stem", "stme"}}}),
             Contains("layer 2 (add): from: 'stme'") && Contains("did you mean 'stem'?"));
  CHECK_THAT(refusal({a, {Add{}, "b", {"a", "c"}}, {convolution(4), "c"}}),
             Contains("layer 2 (add) 'b': from: 'c' is layer 3 (conv 4@3x3), which comes later") &&
                 Contains("no loops"));
  CHECK_THAT(refusal({a, {Add{}, "b", {"a", "b"}}}), Contains("'b' is the layer itself"));
  CHECK_THAT(refusal({a, {convolution(4), "a"}}),
             Contains("layer 2 (conv 4@3x3) 'a': layer 1 (conv 4@3x3) has the same name"));
  CHECK_THAT(refusal({{convolution(4), "input"}}),
             Contains("name: 'input' is the network's input"));
  CHECK_THAT(refusal({{convolution(4), "a b"}}), Contains("name: 'a b' is not a name"));
  CHECK_THAT(refusal({a, {convolution(5), "b"}, {Add{}, "sum", {"a", "b"}}}),
             Contains("layer 3 (add) 'sum': adds inputs of equal shape, but 6x5x4 and 6x5x5"));
  CHECK_THAT(refusal({a, Flatten{}, {Add{}, "", {"a", "input"}}}), Contains("6x5x4 and 6x5x2"));
  CHECK_THAT(refusal({a, {convolution(4, 3, 2), "b"}, {Concatenate{}, "", {"a", "b"}}}),
             Contains("layer 3 (concatenate)") && Contains("6x5x4 and 3x3x4"));
  CHECK_THAT(refusal({a, Add{}}), Contains("takes two or more inputs, but one comes in"));
  CHECK_THAT(refusal({convolution(0)}), Contains("filters: 0 is not a whole number in [1, "));
  CHECK_THAT(refusal({convolution(4, 3, 0)}), Contains("stride: 0 is not a whole number in [1, "));
  CHECK_THAT(refusal({Pool{Pooling::max, 0}}), Contains("size: 0 is not a whole number in [1, "));
  CHECK_THAT(refusal({Dropout{1}}), Contains("rate: 1.0 is not a number in [0, 1)"));
  CHECK_THAT(refusal({Embedding{}}), Contains("vocabulary: 0 is not a whole number in [1, "));
  CHECK_THAT(refusal({a, {convolution(4), "", {"a", "a"}}}),
             Contains("takes one input, but 'from' names 2"));
  CHECK_THAT(refusal({a, {convolution(4), "b", {"input"}}, Flatten{}}),
             Contains("layer 1 (conv 4@3x3) 'a': no layer takes its output"));
  CHECK_THAT(refusal({a, {Flatten{}, "dead"}, {GlobalPool{}, "", {"a"}}}),
             Contains("layer 2 (flatten) 'dead': no layer takes its output"));
  CHECK_THAT(refusal({Dense{4}, Embedding{5, 2}, Flatten{}}, flat(8)),
             Contains("layer 2 (embedding 2 of 5): takes the network's input"));
  CHECK_THAT(refusal({Embedding{5, 2}, Flatten{}}), Contains("6x5x2") && Contains("flatten"));
  CHECK_THAT(refusal({GlobalPool{}}, flat(8)), Contains("takes images"));
}

TEST_CASE("a layer's keys are read as they are written", "[nn][graph]") {
  for (const LayerSpec& layer :
       {LayerSpec(Convolution{4, 3, Padding::same, Activation::identity, 2}, "a", {"input"}),
        LayerSpec(BatchNorm{0.5, Activation::relu}, "b"), LayerSpec(GlobalPool{Pooling::max}),
        LayerSpec(Add{Activation::relu}, "c", {"a", "b"}), LayerSpec(Concatenate{}, "", {"a", "c"}),
        LayerSpec(Embedding{7, 3})}) {
    const Fields fields = fields_of(layer);
    const LayerSpec again = layer_of(fields);
    CHECK(fields_of(again) == fields);
    CHECK(again.from == layer.from);
    CHECK(again.function.index() == layer.function.index());
  }
  const auto said = [](Fields fields) {
    fields.insert(fields.begin(), {"kind", "add"});
    CHECK_THROWS_AS(layer_of(fields), ConfigError);
    try {
      layer_of(fields);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(said({{"name", "two words"}}), Contains("name: 'two words' is not a name"));
  CHECK_THAT(said({{"name", "input"}}), Contains("the network's input"));
  CHECK_THAT(said({{"from", std::vector<std::string>{}}}), Contains("from: [] names no layer"));
  CHECK_THAT(said({{"from", std::uint64_t{3}}}), Contains("from: 3 names no layer"));
  CHECK_THAT(said({{"activation", "relo"}}), Contains("did you mean 'relu'?"));
}
