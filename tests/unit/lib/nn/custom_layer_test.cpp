// A layer and a loss of the user's own: shapes, checkpoints, gradients, and one hash on any ranks.
#include "lockstep/nn/custom_layer.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "lockstep/base/errors.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "tests/support/manifest.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::nn;
using Catch::Contains;

namespace {

/// y = factor * weight * x with one weight; `wrong`: its gradient is off by that factor.
template <class Real>
class Scale final : public Layer<Real> {
 public:
  Scale(std::size_t width, double factor, double wrong)
      : Layer<Real>(width, width),
        factor_(static_cast<Real>(factor)),
        wrong_(static_cast<Real>(wrong)) {}

  std::vector<nn::ParameterSpec> tensors(const std::string& prefix,
                                         const Products<Real>& products) const override {
    return {{prefix + ".scale", 1, 1, true, products.bias_size(1), 0, Start::ones()}};
  }
  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const Real scale = factor_ * pass.block.value(pass.tensor)[0];
    for (std::size_t i = 0; i < x.flat().size(); ++i) y.flat()[i] = scale * x.flat()[i];
  }
  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const Real scale = factor_ * pass.block.value(pass.tensor)[0];
    for (std::size_t i = 0; i < dz.flat().size(); ++i) dx.flat()[i] = scale * dz.flat()[i];
    apply_relu_gradient(below, x, dx);
  }
  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    const auto terms = pass.scratch.get(Scratch<Real>::columns, x.rows);
    for (std::size_t i = 0; i < x.rows; ++i) {
      Real sum = 0;
      for (std::size_t j = 0; j < x.cols; ++j) sum = sum + x(i, j) * dz(i, j);
      terms[i] = factor_ * wrong_ * sum;
    }
    out.with(pass.tensor, [&](Range slice, std::span<Real> sums) {
      pass.products.backward_bias({terms.data(), x.rows, 1}, leaf, slice, sums);
    });
  }

 private:
  Real factor_;
  Real wrong_;
};

class ScaleKind final : public LayerKind {
 public:
  explicit ScaleKind(double factor, double wrong = 1) : factor_(factor), wrong_(wrong) {}

  std::string name() const override { return "scale"; }
  Fields fields() const override { return {{"factor", factor_}}; }
  std::string text() const override { return "scale " + literal_of(factor_); }
  FeatureShape output_of(const FeatureShape& input) const override {
    if (input.image) throw ConfigError("scale takes no images", "place it behind flatten");
    return input;
  }
  double weights(const FeatureShape&) const override { return 1; }
  std::unique_ptr<Layer<float>> make(const FeatureShape& input) const override {
    return std::make_unique<Scale<float>>(input.size(), factor_, wrong_);
  }
  std::unique_ptr<Layer<double>> make_double(const FeatureShape& input) const override {
    return std::make_unique<Scale<double>>(input.size(), factor_, wrong_);
  }

 private:
  double factor_;
  double wrong_;
};

/// Twice as many outputs: gain * x, and factor * (x + shift)^2.
struct Squares {
  double factor = 1;

  Squares() = default;
  explicit Squares(double of_square) : factor(of_square) {}
  explicit Squares(const Fields& fields) : factor(std::get<double>(fields.at(1).second)) {}

  std::string name() const { return "squares"; }
  Fields fields() const { return {{"factor", factor}}; }
  CustomSizes sizes(const FeatureShape& input) const {
    return {.output = flat(2 * input.size()),
            .weights = {{"gain", input.size(), Start::ones()},
                        {"shift", input.size(), Start::glorot(input.size(), input.size())}}};
  }
  template <class Real>
  void forward(std::span<const Real> x, Weights<const Real> weights, std::span<Real> y) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Real sum = x[i] + weights[1][i];
      y[i] = weights[0][i] * x[i];
      y[x.size() + i] = static_cast<Real>(factor) * sum * sum;
    }
  }
  template <class Real>
  void backward(std::span<const Real> x, Weights<const Real> weights, std::span<const Real> dy,
                std::span<Real> dx, Weights<Real> dweights) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Real of_sum = 2 * static_cast<Real>(factor) * (x[i] + weights[1][i]) * dy[x.size() + i];
      dx[i] = weights[0][i] * dy[i] + of_sum;
      dweights[0][i] = x[i] * dy[i];
      dweights[1][i] = of_sum;
    }
  }
};

std::shared_ptr<const LayerKind> read_scale(const Fields& fields) {
  for (const auto& [key, value] : fields) {
    if (key == "factor") return std::make_shared<ScaleKind>(std::get<double>(value));
  }
  throw ConfigError("no 'factor'", "give it a value");
}

Custom scale(double factor, double wrong = 1) {
  return {std::make_shared<ScaleKind>(factor, wrong)};
}

NetworkShape own_network() { return {flat(5), {Dense{4}, scale(0.5), Dense{3}}, 2}; }

}  // namespace

TEST_CASE("custom layers have their place in shapes", "[nn][custom]") {
  const NetworkShape shape = own_network();
  CHECK(shape.text() == "5, dense 4, scale 0.5, dense 3, dense 2");
  CHECK(shape.parameters() == 24 + 1 + 15 + 8);
  CHECK_FALSE(shape.is_mlp());
  CHECK_THROWS_WITH(NetworkShape(FeatureShape{2, 2, 1, true}, {scale(1)}, 2),
                    Contains("layer 1 (scale 1.0): scale takes no images"));
  CHECK_THROWS_WITH(NetworkShape(0, {4}, 2), Contains("a network of 0 features"));
}

namespace {

/// A kind that says what its layer is not.
class Wrong final : public LayerKind {
 public:
  std::string called = "wrong";
  double said_weights = 1;
  bool said_sums = false;
  std::size_t made_width = 4;
  bool makes = true;
  Fields keys;

  std::string name() const override { return called; }
  Fields fields() const override { return keys; }
  FeatureShape output_of(const FeatureShape& input) const override { return input; }
  double weights(const FeatureShape&) const override { return said_weights; }
  bool sums_over_batch() const override { return said_sums; }
  std::unique_ptr<Layer<float>> make(const FeatureShape&) const override {
    return makes ? std::make_unique<Scale<float>>(made_width, 1, 1) : nullptr;
  }
  std::unique_ptr<Layer<double>> make_double(const FeatureShape&) const override { return nullptr; }
};

/// What is said of a network with such a layer behind 4 values.
std::string said_of(const std::shared_ptr<const LayerKind>& kind) {
  const auto products = make_strict_products(Simd::automatic);
  try {
    const Network<float> network({flat(4), {Custom{kind}}, 2}, 1, *products);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// A vector whose padding was forgotten.
class Unpadded final : public Layer<float> {
 public:
  Unpadded() : Layer<float>(4, 4) {}
  std::vector<nn::ParameterSpec> tensors(const std::string& prefix,
                                         const Products<float>&) const override {
    return {{prefix + ".bias", 1, 4, true}};
  }
  void forward(const Pass<float>&, Matrix<const float>, Matrix<float>) override {}
  void backward_input(const Pass<float>&, Matrix<const float>, Matrix<const float>, Activation,
                      Matrix<float>) override {}
};

}  // namespace

TEST_CASE("a layer that is not what its kind says is refused", "[nn][custom]") {
  const auto wrong = std::make_shared<Wrong>();
  CHECK(said_of(wrong).empty());
  SECTION("weights") {
    wrong->said_weights = 0;
    CHECK_THAT(said_of(wrong), Contains("layer 1 (wrong)") && Contains("1 weights") &&
                                   Contains("LayerKind::weights() is 0"));
  }
  SECTION("sums over the batch") {
    wrong->said_sums = true;
    CHECK_THAT(said_of(wrong), Contains("'wrong'") && Contains("sums_over_batch"));
  }
  SECTION("sizes") {
    wrong->made_width = 5;
    CHECK_THAT(said_of(wrong), Contains("from 5 values to 5, where 4 and 4 are"));
  }
  SECTION("no kind") {
    CHECK_THAT(said_of(nullptr),
               Contains("layer 1 (custom): a custom layer without a LayerKind\n  remedy: "));
  }
  SECTION("no layer") {
    wrong->makes = false;
    CHECK_THAT(said_of(wrong), Contains("'wrong': it makes no layer"));
  }
  SECTION("a built-in kind's name") {
    wrong->called = "dropout";
    CHECK_THAT(said_of(wrong), Contains("built-in") && Contains("LayerKind::name()"));
  }
  SECTION("keys that no checkpoint could hold") {
    wrong->keys = {{"kind", std::string("another")}};
    CHECK_THAT(said_of(wrong), Contains("the key 'kind'"));
    wrong->keys = {{"rate", std::numeric_limits<double>::quiet_NaN()}};
    CHECK_THAT(said_of(wrong), Contains("'rate' of LayerKind::fields() is not finite"));
    wrong->keys = {{"label", std::string("caf\xe9")}};
    CHECK_THAT(said_of(wrong), Contains("'label' of LayerKind::fields() is not UTF-8"));
  }
  SECTION("tensors without the products' padding") {
    const auto products = make_strict_products(Simd::automatic);
    std::vector<NumberedLayer<float>> layers;
    layers.push_back({0, std::make_unique<Unpadded>()});
    CHECK_THROWS_WITH(Network<float>({flat(4), {Custom{wrong}}, 2}, 1, *products, 1,
                                     *std::pmr::new_delete_resource(), std::move(layers)),
                      Contains("0.bias") && Contains("bias_size()"));
  }
}

namespace {

/// A layer written for one example whose sizes are given.
struct Sized {
  std::string called = "sized";
  CustomSizes said;

  std::string name() const { return called; }
  CustomSizes sizes(const FeatureShape&) const { return said; }
  template <class Real>
  void forward(std::span<const Real>, Weights<const Real>, std::span<Real>) const {}
  template <class Real>
  void backward(std::span<const Real>, Weights<const Real>, std::span<const Real>, std::span<Real>,
                Weights<Real>) const {}
};

}  // namespace

TEST_CASE("a layer whose checkpoint could not be read is refused with its number", "[nn][custom]") {
  const auto refusal = [](const Sized& layer) {
    try {
      const NetworkShape shape(flat(4), {Dense{4}, custom(layer)}, 2);
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  CHECK(refusal({"sized", {flat(3), {{"a", 1}, {"b", 1}}}}).empty());
  CHECK_THAT(refusal({"sized", {flat(3), {{"a", 1}, {"b", 1}, {"a", 2}}}}),
             Contains("layer 2 (sized): its weights 1 and 3 are both named 'a'\n  remedy: "));
  CHECK_THAT(refusal({"sized", {flat(3), {{"", 1}}}}),
             Contains("layer 2 (sized): its weights 1 have no name\n  remedy: "));
  CHECK_THAT(refusal({"sized", {}}),
             Contains("layer 2 (sized): its output has 0 values\n  remedy: "));
  CHECK_THAT(refusal({"sized", {flat(3), {{"\xe9", 1}}}}), Contains("weights 1 is not UTF-8"));
  CHECK_THAT(refusal({"caf\xe9", {flat(3)}}), Contains("LayerKind::name() is not UTF-8"));
  CHECK_THAT(refusal({"", {flat(3)}}),
             Contains("layer 2 (): a custom layer without a name\n  remedy: "));
}

TEST_CASE("labels of no class are refused before anything is written", "[nn][loss]") {
  const auto products = make_strict_products(Simd::automatic);
  Network<float> network({2, {}, 3}, 2, *products);
  network.forward({0, 2});
  for (const std::int32_t label : {-1, 3}) {
    const std::vector<std::int32_t> labels = {0, label};
    CHECK_THROWS_WITH(network.loss({0, 2}, labels, true),
                      Contains("label " + std::to_string(label) + " of example 1"));
  }
  const std::vector<std::int32_t> one = {0};
  CHECK_THROWS_WITH(network.loss({0, 2}, one, true), Contains("1 labels for 2 examples"));
  const std::vector<float> values(6);
  CHECK_THROWS_WITH(network.loss({0, 2}, {{}, values}, true),
                    Contains("'softmax cross-entropy' takes labels, but the data has values") &&
                        Contains("Loss::target()"));
  network.set_loss(*built_in_loss<float>(regression_loss));
  CHECK_THROWS_WITH(
      network.loss({0, 2}, one, true),
      Contains("'mean squared error of values' takes values, but the data has labels"));
}

TEST_CASE("the gradient check finds a wrong gradient, and its place", "[nn][custom][gradient]") {
  CHECK(check_gradients(own_network()).worst < 1e-6);
  CHECK(check_gradients(own_network(), MeanSquaredError<double>()).worst < 1e-6);
  const auto check = check_gradients({flat(5), {Dense{4}, scale(0.5, 1.01)}, 2});
  CHECK(check.worst > 1e-4);
  CHECK(check.place == "1.scale[0]");
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const auto none = check_gradients({flat(5), {Dense{4}, scale(0.5, nan), Dense{3}}, 2});
  CHECK(std::isnan(none.worst));
  CHECK(none.place == "1.scale[0]");
  const NetworkShape one_output(flat(5), {Dense{4}}, 1);
  CHECK_THROWS_WITH(check_gradients(one_output), Contains("'softmax cross-entropy' are zero"));
  CHECK(check_gradients(one_output, RegressionLoss<double>()).worst < 1e-6);
  CHECK_THROWS_WITH(check_gradients(own_network(), MeanSquaredError<double>(), 0),
                    Contains("0 rows"));
}

TEST_CASE("a layer written for one example has the gradients of the batch",
          "[nn][custom][gradient]") {
  const NetworkShape shape(flat(5), {Dense{4}, custom(Squares(0.25)), custom(Squares())}, 3);
  CHECK(shape.parameters() == 24 + 8 + 16 + 51);
  CHECK(check_gradients(shape).worst < 1e-6);
  CHECK(check_gradients(shape, RegressionLoss<double>()).worst < 1e-6);

  const test::TemporaryFolder folder;
  const auto products = make_strict_products(Simd::automatic);
  Network<float> network(shape, 1, *products);
  initialise(network, {1, 2});
  const auto path = train::save_checkpoint(folder.path(), network, {});
  LayerKinds kinds;
  add_custom<Squares>(kinds, "squares");
  const auto saved = train::read_description(path, kinds);
  Network<float> again(saved.shape, 1, *products);
  train::read_weights(saved, again);
  CHECK(weights_hash(again.parameters()) == weights_hash(network.parameters()));
  CHECK(literal_of(std::get<Custom>(saved.shape.layers[1].function).fields().at(1).second) ==
        "0.25");
}

namespace {

/// y = slope * sqrt(x), whose derivative is infinite at x = 0.
struct Root {
  std::string name() const { return "root"; }
  CustomSizes sizes(const FeatureShape& input) const {
    return {.output = input, .weights = {{"slope", input.size(), Start::ones()}}};
  }
  template <class Real>
  void forward(std::span<const Real> x, Weights<const Real> weights, std::span<Real> y) const {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = weights[0][i] * std::sqrt(x[i]);
  }
  template <class Real>
  void backward(std::span<const Real> x, Weights<const Real> weights, std::span<const Real> dy,
                std::span<Real> dx, Weights<Real> dweights) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = weights[0][i] * dy[i] / (2 * std::sqrt(x[i]));
      dweights[0][i] = std::sqrt(x[i]) * dy[i];
    }
  }
};

}  // namespace

TEST_CASE("an example of weight 0 adds 0 where a derivative is infinite", "[nn][custom]") {
  const auto products = make_strict_products(Simd::automatic);
  const NetworkShape shape(flat(1), {Dense{1, Activation::identity}, custom(Root())}, 1);
  Network<float> network(shape, 2, *products);
  network.set_loss(*built_in_loss<float>(regression_loss));
  for (const std::size_t tensor : {0, 2, 3}) {  // weight, slope, weight; biases are 0
    network.parameters().set_logical_value(tensor, std::vector<float>{1});
  }
  network.inputs({0, 2})(0, 0) = 4;
  network.inputs({0, 2})(1, 0) = 0;
  const std::vector<float> values = {0, 5};
  const std::vector<float> weights = {1, 0};
  Targets targets = {{}, values};
  targets.weights = weights;
  network.forward({0, 2}, TrainingRows{});
  network.loss({0, 2}, targets, true);
  network.backward({0, 2});
  CHECK(network.gradient(0, {0, 2})(0, 0) == 1);  // 2 y / (2 sqrt(4))
  CHECK(network.gradient(0, {0, 2})(1, 0) == 0);
  network.weight_gradients({0, 2}, 1, {0, network.parameters().values().size()});
  CHECK(network.parameters().gradients()[0] == 4);
}

TEST_CASE("checkpoints with custom layers need their kinds", "[checkpoint][custom]") {
  const test::TemporaryFolder folder;
  const NetworkShape shape = own_network();
  const auto products = make_strict_products(Simd::automatic);
  Network<float> network(shape, 1, *products);
  initialise(network, {1, 2});
  const auto path = train::save_checkpoint(folder.path(), network, {});
  CHECK_THROWS_WITH(train::read_description(path), Contains("'scale' is none of dense"));

  LayerKinds kinds;
  kinds.add("scale", read_scale);
  const auto saved = train::read_description(path, kinds);
  CHECK(saved.shape.text() == shape.text());
  Network<float> again(saved.shape, 1, *products);
  train::read_weights(saved, again);
  CHECK(weights_hash(again.parameters()) == weights_hash(network.parameters()));

  const auto description_with = [&](const std::string& factor) {
    std::ifstream in(path / "network.json");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::string field = "\"factor\": 0.5";
    text.replace(text.find(field), field.size(), "\"factor\": " + factor);
    return text;
  };
  const std::string damaged = description_with("\"half\"");
  test::write_signed(path, "network.json", damaged);
  CHECK_THROWS_WITH(train::read_description(path, kinds),
                    Contains("network.json") && Contains("'scale' cannot be made"));
  LayerKinds eager;
  eager.add("scale", [](const Fields& fields) { return read_scale({fields.at(7)}); });
  CHECK_THROWS_WITH(train::read_description(path, eager), Contains("its keys (kind, factor)"));
  LayerKinds none;
  none.add("scale", [](const Fields&) { return nullptr; });
  CHECK_THROWS_AS(train::read_description(path, none), DataError);

  CHECK_THROWS_AS(kinds.add("scale", read_scale), std::invalid_argument);
  CHECK_THROWS_AS(kinds.add("dense", read_scale), std::invalid_argument);
}

namespace {

/// A loss of the user's own under a name that is taken.
class Impostor final : public Loss<float> {
 public:
  const char* name() const noexcept override { return default_loss; }
  void run(Matrix<const float>, const Targets&, std::span<ExampleResult>,
           Matrix<float>) const override {}
};

}  // namespace

TEST_CASE("checkpoints name the loss", "[checkpoint][custom]") {
  const test::TemporaryFolder folder;
  const auto products = make_strict_products(Simd::automatic);
  const MeanSquaredError<float> squares;
  const Impostor impostor;
  Network<float> network({2, {}, 3}, 1, *products);
  const auto saved_loss = [&](std::uint64_t step) {
    return train::read_description(train::save_checkpoint(folder.path(), network, {.step = step}))
        .loss;
  };
  CHECK(saved_loss(1) == "softmax cross-entropy");
  network.set_loss(squares);
  CHECK(saved_loss(2) == "mean squared error");
  CHECK(built_in_loss<float>("mean squared error") != nullptr);
  CHECK(built_in_loss<float>("squared hinge") == nullptr);
  CHECK_THROWS_WITH(network.set_loss(impostor), Contains("Loss::name()"));
}

TEST_CASE("checkpoints of a mesh name the loss", "[checkpoint][custom][mesh]") {
  struct Watch final : train::Observer {
    std::string loss;
    void on_step(const train::StepReport&) override {}
    void on_epoch(const train::EpochReport&) override {}
    void on_checkpoint(const train::DueCheckpoint& due) override { loss = due.snapshot.loss; }
  };
  const MeanSquaredError<float> squares;
  Watch watch;
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    train_toy(comm, {.model = 2, .loss = &squares, .epochs = 1}, {&watch});
  });
  CHECK(watch.loss == "mean squared error");
}

TEST_CASE("custom layers and losses: one hash on any ranks", "[train][canonical][custom]") {
  ToyRun run{.batch_size = 40,
             .layers = {Flatten{}, Dense{7}, scale(0.5), custom(Squares(0.1))},
             .epochs = 1};
  const MeanSquaredError<float> squares;
  const bool own_loss = GENERATE(false, true);
  if (own_loss) run.loss = &squares;
  run.exchange = GENERATE(train::Exchange::activations, train::Exchange::partial_sums);
  std::vector<std::uint64_t> hashes;
  for (const int ranks : {1, 2, 3, 5}) {
    comm::run_ranks(ranks, [&](comm::Communicator& comm) {
      const auto hash = train_toy(comm, run).report.weights_hash;
      if (comm.rank() == 0) hashes.push_back(hash);
    });
  }
  CHECK(hashes == std::vector<std::uint64_t>(4, hashes.front()));
}

TEST_CASE("an audit with another loss computes with the labels of the rows", "[train][custom]") {
  const MeanSquaredError<float> squares;
  const ToyRun run{.audit_every = 1, .loss = &squares, .epochs = 1};
  CHECK_NOTHROW(per_rank(2, run));
}

namespace {

/// y = x. Counts training steps in a tensor whose gradient is zero.
class Counter final : public Layer<float> {
 public:
  explicit Counter(std::size_t width) : Layer<float>(width, width) {}

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<float>& products) const override {
    return {{prefix + ".count", 1, 1, true, products.bias_size(1)}};
  }
  void forward(const Pass<float>& /*pass*/, Matrix<const float> x, Matrix<float> y) override {
    std::copy(x.flat().begin(), x.flat().end(), y.flat().begin());
  }
  void backward_input(const Pass<float>& /*pass*/, Matrix<const float> dz,
                      Matrix<const float> /*x*/, Activation below, Matrix<float> dx) override {
    if (below != Activation::identity) throw std::logic_error("behind flatten alone");
    std::copy(dz.flat().begin(), dz.flat().end(), dx.flat().begin());
  }
  void weight_gradients(const Pass<float>& pass, Matrix<const float> /*x*/,
                        Matrix<const float> /*dz*/, std::size_t /*leaf*/,
                        const GradientSlice<float>& out) override {
    out.with(pass.tensor, [](Range /*slice*/, std::span<float> sums) {
      std::fill(sums.begin(), sums.end(), 0.0F);
    });
  }
  void end_training_pass(ParameterBlock<float>& block, std::size_t tensor) override {
    block.value(tensor)[0] += 1;
  }
};

class CounterKind final : public LayerKind {
 public:
  std::string name() const override { return "counter"; }
  FeatureShape output_of(const FeatureShape& input) const override { return input; }
  double weights(const FeatureShape&) const override { return 1; }
  std::unique_ptr<Layer<float>> make(const FeatureShape& input) const override {
    return std::make_unique<Counter>(input.size());
  }
  std::unique_ptr<Layer<double>> make_double(const FeatureShape&) const override { return nullptr; }
};

}  // namespace

TEST_CASE("an audit changes no running state", "[train][custom][audit]") {
  ToyRun run{.layers = {Flatten{}, Custom{std::make_shared<CounterKind>()}, Dense{5}}, .epochs = 1};
  const int ranks = GENERATE(1, 2, 3);
  const auto plain = per_rank(ranks, run);
  CHECK(plain.front().weights.front() == static_cast<float>(plain.front().report.steps));
  run.audit_every = 1;
  for (const auto& audited : per_rank(ranks, run)) {
    CHECK(audited.weights == plain.front().weights);
  }
}
