// Training under FILE and OFF: uneven and empty pieces, rows without examples.
#include <catch2/catch.hpp>
#include <cmath>

#include "lockstep/collectives/threads.hpp"
#include "lockstep/nn/custom_layer.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/canonical.hpp"
#include "tests/support/greatest_error.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using data::Rebatch;
using data::ShardPolicy;

namespace {

/// 203 records in 7 files, so that 3 ranks have 3, 2 and 2 of them, and streams of 151, 3 and 49.
ToyRun uneven(std::uint64_t batch) {
  return {.batch_size = batch, .policy = ShardPolicy::file, .files = {60, 3, 20, 50, 0, 29, 41}};
}

/// y = gain * log x^2, whose derivative by the gain is infinite at x = 0.
struct LogOfSquare {
  std::string name() const { return "log-of-square"; }
  nn::CustomSizes sizes(const nn::FeatureShape& input) const {
    return {.output = input, .weights = {{"gain", input.size(), nn::Start::ones()}}};
  }
  template <class Real>
  void forward(std::span<const Real> x, nn::Weights<const Real> weights, std::span<Real> y) const {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = weights[0][i] * std::log(x[i] * x[i]);
  }
  template <class Real>
  void backward(std::span<const Real> x, nn::Weights<const Real> weights, std::span<const Real> dy,
                std::span<Real> dx, nn::Weights<Real> dweights) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = 2 * weights[0][i] * dy[i] / x[i];
      dweights[0][i] = std::log(x[i] * x[i]) * dy[i];
    }
  }
};

}  // namespace

TEST_CASE("alone, every policy trains to the weights of DATA", "[train][policy]") {
  const std::uint64_t batch = GENERATE(1, 7, 24, 100, 500);
  const std::uint64_t leaf = GENERATE(0, 3);
  const auto expected = per_rank(1, {.batch_size = batch, .leaf = leaf}).front();
  for (const auto policy : {ShardPolicy::file, ShardPolicy::off}) {
    ToyRun run = uneven(batch);
    run.policy = policy;
    run.leaf = leaf;
    const auto result = per_rank(1, run).front();
    CHECK(result.weights == expected.weights);  // rows of zeros behind the last leaf included
    CHECK(result.report.epochs.back().train_loss == expected.report.epochs.back().train_loss);
  }
}

TEST_CASE("uneven files: every example once, the same bits on all ranks", "[train][policy]") {
  ToyRun run = uneven(GENERATE(2, 7, 24, 128));
  run.rebatch = run.batch_size > 3 ? GENERATE(Rebatch::ceil, Rebatch::balanced) : Rebatch::ceil;
  run.audit_every = 1;  // leaves without examples are passed over
  const auto results = per_rank(3, run);
  for (const auto& result : results) {
    REQUIRE(result.report.examples == std::uint64_t{3} * 203);
    REQUIRE(result.weights == results.front().weights);
  }
  REQUIRE(per_rank(3, run).front().weights == results.front().weights);
  run.audit_every.reset();
  run.exchange = train::Exchange::partial_sums;
  REQUIRE(per_rank(3, run).front().weights == results.front().weights);
  run.exchange = train::Exchange::automatic;
  run.options = [](train::ReplicaOptions& options) { options.micro_batch = 16; };
  REQUIRE(per_rank(3, run).front().weights == results.front().weights);
  run.options = nullptr;
  run.threads = 2;
  REQUIRE(per_rank(3, run).front().weights == results.front().weights);

  run.canonical = false;  // which sums no rows but examples
  const auto textbook = per_rank(3, run);
  REQUIRE(textbook.front().report.examples == std::uint64_t{3} * 203);
  REQUIRE(test::greatest_error(textbook.front().weights, results.front().weights) < 5e-4);
}

TEST_CASE("rows without an example are in no sum over the batch", "[train][policy][batch-norm]") {
  const data::Plan plan({.records = 203,
                         .batch_size = 24,
                         .ranks = 3,
                         .policy = ShardPolicy::file,
                         .file_records = {60, 3, 20, 50, 0, 29, 41}});
  std::vector<std::vector<double>> counts(3);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    ToySource source(203, 2, 2, 1);
    data::BatchReader reader(source, plan, comm.rank());
    const auto products = make_strict_products(Simd::automatic);
    nn::Network<float> network({nn::flat(2), {nn::BatchNorm{}}, 2}, 24, *products);
    train::GlobalBatch global(network, comm);
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      const std::size_t rows = reader.piece(step).size();
      global.begin(reader.read(0, step, network.inputs({0, rows}).flat()));
      std::vector<double> sum(1);
      global.sum(sum, [&](Range examples, std::span<double> into) {
        if (examples.end > rows) throw std::logic_error("a row that this rank does not hold");
        into[0] += static_cast<double>(examples.size());
      });
      counts[static_cast<std::size_t>(comm.rank())].push_back(sum[0]);
    }
  });
  for (const auto& found : counts) {
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      CHECK(found[step] == static_cast<double>(plan.examples(step)));
    }
  }
}

TEST_CASE("rows without an example are in no gradient, whatever a layer makes of zeros",
          "[train][policy][custom]") {
  ToyRun run = uneven(24);
  run.layers = {nn::Flatten{}, nn::custom(LogOfSquare{}), nn::Dense{6}};
  const auto expected = per_rank(3, run).front().weights;
  for (const float weight : expected) REQUIRE(std::isfinite(weight));
  run.exchange = train::Exchange::partial_sums;
  for (const auto& result : per_rank(3, run)) CHECK(result.weights == expected);
}

TEST_CASE("FILE and OFF train with batch statistics, on all ranks alike",
          "[train][policy][batch-norm]") {
  ToyRun run = uneven(24);
  run.layers = {nn::BatchNorm{}, nn::Flatten{}, nn::Dense{6}, nn::BatchNorm{}};
  const auto expected = per_rank(3, run).front().weights;
  for (const auto exchange : {train::Exchange::activations, train::Exchange::partial_sums}) {
    run.exchange = exchange;
    for (const auto& result : per_rank(3, run)) CHECK(result.weights == expected);
  }
  // Two workers that read the same double every example, which changes no statistics.
  run = {.records = 192, .batch_size = 12, .layers = run.layers, .epochs = 1};
  const auto alone = per_rank(1, run).front();
  run.batch_size = 24;
  run.policy = ShardPolicy::off;
  REQUIRE(test::greatest_error(per_rank(2, run).front().weights, alone.weights) < 5e-4);
}

TEST_CASE("OFF: the mean gradient of all workers is that of one", "[train][policy]") {
  const bool canonical = GENERATE(true, false);
  // Two workers cut each batch of 24 into two of 12, which one worker takes one by one.
  const auto alone =
      per_rank(1, {.records = 192, .batch_size = 12, .canonical = canonical}).front();
  const auto off =
      per_rank(
          2, {.records = 192, .batch_size = 24, .canonical = canonical, .policy = ShardPolicy::off})
          .front();
  CHECK(off.report.examples == 2 * alone.report.examples);
  CHECK(off.report.steps == alone.report.steps);
  REQUIRE(test::greatest_error(off.weights, alone.weights) < 5e-4);
  for (std::size_t e = 0; e < alone.report.epochs.size(); ++e) {
    CHECK(off.report.epochs[e].train_loss == Approx(alone.report.epochs[e].train_loss));
  }
}
