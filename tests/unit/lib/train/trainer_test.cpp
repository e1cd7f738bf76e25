#include "lockstep/train/trainer.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/strict.hpp"
#include "lockstep/train/nonfinite.hpp"
#include "tests/support/greatest_error.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::train;

namespace {

/// Every kind of layer, on images of 3 x 4.
std::vector<nn::LayerSpec> small_convolutions() {
  return {nn::Convolution{5, 3, nn::Padding::same, Activation::relu},
          nn::LayerNorm{},
          nn::Dropout{0.25},
          nn::Convolution{18, 2, nn::Padding::valid, Activation::relu},
          nn::Pool{nn::Pooling::max, 2},
          nn::Flatten{},
          nn::Dropout{0.5},
          nn::Dense{7, Activation::relu},
          nn::LayerNorm{}};
}

/// No weights in the first layer: its input must travel all the same.
std::vector<nn::LayerSpec> random_first() {
  return {nn::Dropout{0.5}, nn::Pool{nn::Pooling::average, 2}, nn::Flatten{}, nn::Dense{9}};
}

/// Statistics of the whole batch, of pixels and of values.
std::vector<nn::LayerSpec> batch_statistics() {
  return {nn::BatchNorm{},    nn::Convolution{6, 3, nn::Padding::same, Activation::relu},
          nn::BatchNorm{0.5}, nn::Flatten{},
          nn::Dense{9},       nn::BatchNorm{}};
}

/// A residual block and an output that three layers take.
std::vector<nn::LayerSpec> residual() {
  const auto conv = [](std::size_t stride) {
    return nn::Convolution{4, 3, nn::Padding::same, Activation::identity, stride};
  };
  return {{nn::Convolution{4, 3, nn::Padding::same, Activation::relu}, "stem"},
          conv(1),
          {nn::BatchNorm{0.9, Activation::relu}, "a"},
          {nn::Dropout{0.25}, "b", {"stem"}},
          {nn::Add{Activation::relu}, "add", {"a", "b", "stem"}},
          {conv(2), "c"},
          {conv(2), "d", {"add"}},
          {nn::Concatenate{}, "", {"c", "d"}},
          nn::GlobalPool{}};
}

struct Recorder final : Observer {
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  std::vector<std::uint64_t> saved;

  void on_step(const StepReport& report) override { steps.push_back(report); }
  void on_epoch(const EpochReport& report) override { epochs.push_back(report); }
  void on_checkpoint(const DueCheckpoint& due) override { saved.push_back(due.step); }
};

}  // namespace

TEST_CASE("canonical: one hash for any number of ranks and both exchanges", "[train][canonical]") {
  ToyRun run =
      GENERATE(ToyRun{}, ToyRun{.batch_size = 1}, ToyRun{.batch_size = 7},
               ToyRun{.batch_size = 500, .leaf = 3}, ToyRun{.batch_size = 128, .hidden = {}},
               ToyRun{.batch_size = 100, .hidden = {70, 130, 5}},
               ToyRun{.batch_size = 60, .layers = small_convolutions()},
               ToyRun{.batch_size = 40, .leaf = 16, .layers = random_first()},
               ToyRun{.batch_size = 60, .layers = batch_statistics()},
               ToyRun{.batch_size = 60, .layers = residual()},
               ToyRun{.batch_size = 7, .leaf = 2, .layers = residual()},
               ToyRun{.batch_size = 7, .leaf = 2, .layers = batch_statistics()});
  const auto alone = per_rank(1, run).front();
  run.exchange = GENERATE(train::Exchange::activations, train::Exchange::partial_sums);
  for (const int ranks : {1, 2, 3, 4, 5, 8, 13, 16}) {
    for (const auto& result : per_rank(ranks, run)) {
      REQUIRE(result.weights == alone.weights);
      REQUIRE(result.report.weights_hash == alone.report.weights_hash);
      for (std::size_t e = 0; e < alone.report.epochs.size(); ++e) {
        REQUIRE(result.report.epochs[e].train_loss == alone.report.epochs[e].train_loss);
        REQUIRE(result.report.epochs[e].test.loss == alone.report.epochs[e].test.loss);
        REQUIRE(result.report.epochs[e].test.score == alone.report.epochs[e].test.score);
      }
    }
  }
}

namespace {

/// Of 0, 0.3 and more.
float odd_weight(std::uint64_t record) { return 0.3F * static_cast<float>(record * record % 7); }

}  // namespace

TEST_CASE("weights of examples and classes: one hash, and the mean over their sum",
          "[train][weights]") {
  ToyRun run = GENERATE(ToyRun{}, ToyRun{.batch_size = 7, .audit_every = 2},
                        ToyRun{.batch_size = 500, .leaf = 3});
  run.weights = odd_weight;
  run.options = [](ReplicaOptions& options) { options.class_weights = {1, 2.5F, 0.1F, 1}; };
  Recorder recorder;
  comm::SelfCommunicator self;
  const ToyResult one = train_toy(self, run, {&recorder});
  double loss = 0;
  double weight = 0;
  for (const StepReport& step : recorder.steps) {
    if (step.epoch > 1) break;
    loss += step.loss * step.weight;
    weight += step.weight;
    CHECK(step.weight != static_cast<double>(step.examples));
  }
  CHECK(one.report.epochs[0].train_loss == Approx(loss / weight).epsilon(1e-14));
  const auto exchanges = run.audit_every
                             ? std::vector{Exchange::activations}
                             : std::vector{Exchange::activations, Exchange::partial_sums};
  for (const Exchange exchange : exchanges) {
    run.exchange = exchange;
    for (const int ranks : {2, 3, 5, 8}) {  // with few leaves some are idle
      for (const auto& result : per_rank(ranks, run)) {
        REQUIRE(result.weights == one.weights);
        REQUIRE(result.report.epochs.back().train_loss == one.report.epochs.back().train_loss);
      }
    }
  }
  ToyRun other = run;
  other.weights = [](std::uint64_t) { return 1.0F; };
  CHECK(train_toy(self, other).weights != one.weights);
}

TEST_CASE("equal weights change nothing", "[train][weights]") {
  comm::SelfCommunicator self;
  ToyRun run;
  const ToyResult without = train_toy(self, run);
  run.weights = [](std::uint64_t) { return 4.0F; };
  CHECK(train_toy(self, run).weights == without.weights);
  run.options = [](ReplicaOptions& options) { options.class_weights = {0.5F, 0.5F, 0.5F, 0.5F}; };
  CHECK(train_toy(self, run).weights == without.weights);
}

TEST_CASE("uneven pieces and idle ranks have weights, too", "[train][weights]") {
  ToyRun run{.records = 60,
             .batch_size = 12,
             .policy = data::ShardPolicy::file,
             .files = {30, 17, 13},
             .weights = odd_weight,
             .epochs = 2};
  const auto activations = per_rank(3, run);
  run.exchange = Exchange::partial_sums;
  const auto sums = per_rank(3, run);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(activations[rank].weights == activations[0].weights);
    CHECK(sums[rank].weights == activations[0].weights);
  }
}

TEST_CASE("a step whose weights sum to zero ends on every rank with code 65", "[train][weights]") {
  for (const int ranks : {1, 3, 8}) {
    INFO(ranks << " ranks");
    ToyRun run{.records = 24, .batch_size = 4, .epochs = 1};
    run.weights = [](std::uint64_t record) { return record < 2 ? 1.0F : 0.0F; };
    std::vector<int> codes(static_cast<std::size_t>(ranks));
    std::vector<std::string> texts(codes.size());
    comm::run_ranks(ranks, [&](comm::Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      try {
        train_toy(comm, run);
      } catch (const comm::AgreedError& error) {
        codes[rank] = static_cast<int>(error.code());
        texts[rank] = error.what();
      }
    });
    for (std::size_t rank = 0; rank < codes.size(); ++rank) {
      CHECK(codes[rank] == 65);
      CHECK(texts[rank] == texts[0]);
      CHECK_THAT(texts[rank], Catch::Contains("record ") &&
                                  Catch::Contains("the weights of the 4 examples of step ") &&
                                  Catch::Contains("sum to zero"));
    }
  }
}

TEST_CASE("canonical: one hash for every instruction set", "[train][canonical]") {
  const auto expected = per_rank(1, {}).front().weights;
  for (const Simd simd : {Simd::scalar, Simd::avx2, Simd::avx512, Simd::neon}) {
    if (!has_simd(simd)) {
      WARN("SKIPPED an instruction set that this processor lacks");
      continue;
    }
    CHECK(per_rank(2, {.simd = simd}).front().weights == expected);
  }
}

TEST_CASE("allreduce: the same bits on every rank, close to those of one", "[train]") {
  const std::uint64_t batch = GENERATE(1, 7, 24, 500);
  const ToyRun run{.batch_size = batch, .canonical = false};
  const auto alone = per_rank(1, run).front();
  const auto results = per_rank(GENERATE(2, 3, 5, 8), run);
  for (const auto& result : results) {
    REQUIRE(result.weights == results.front().weights);
    REQUIRE(result.report.weights_hash == results.front().report.weights_hash);
  }
  REQUIRE(test::greatest_error(results.front().weights, alone.weights) < 2e-4);
}

TEST_CASE("allreduce: statistics are those of the whole batch", "[train][batch-norm]") {
  const ToyRun run{.canonical = false, .layers = batch_statistics(), .epochs = 1};
  const auto alone = per_rank(1, run).front();
  for (const auto& result : per_rank(5, run)) {
    REQUIRE(test::greatest_error(result.weights, alone.weights) < 2e-3);
  }
}

TEST_CASE("an audit of layers that sum over the batch is refused", "[train][batch-norm]") {
  const ToyRun run{.layers = batch_statistics(), .audit_every = 1};
  CHECK_THROWS_WITH(per_rank(1, run), Catch::Contains("batch-norm"));
}

TEST_CASE("allreduce: another number of ranks gives other bits", "[train]") {
  // So that the test above it, which finds none, could fail.
  const ToyRun run{.canonical = false};
  CHECK(per_rank(3, run).front().weights != per_rank(1, run).front().weights);
}

TEST_CASE("it learns, and every example is counted once", "[train]") {
  comm::SelfCommunicator self;
  Recorder recorder;
  const auto result = train_toy(self, {.epochs = 20}, {&recorder});
  const auto& last = result.report.epochs.back();
  CHECK(last.train_score > 0.95);
  CHECK(last.test.score > 0.7);
  CHECK(result.report.examples == 4060);
  CHECK(result.report.steps == 180);  // 20 epochs of 9
  REQUIRE(recorder.steps.size() == 180);
  CHECK(recorder.epochs.size() == 20);
  double loss = 0;
  std::uint64_t examples = 0;
  for (std::size_t s = 0; s < 9; ++s) {
    loss += recorder.steps[s].loss * static_cast<double>(recorder.steps[s].examples);
    examples += recorder.steps[s].examples;
  }
  CHECK(examples == 203);
  CHECK(recorder.steps[8].examples == 203 % 24);
  CHECK(recorder.epochs[0].train_loss == Approx(loss / 203));
  CHECK(recorder.saved == std::vector<std::uint64_t>{180});
  CHECK(result.report.test.examples == 97);
}

TEST_CASE("steps end a run within an epoch", "[train]") {
  comm::SelfCommunicator self;
  Recorder recorder;
  const auto result = train_toy(self, {.steps = 11}, {&recorder});
  CHECK(result.report.steps == 11);
  CHECK(result.report.epochs.size() == 2);
  CHECK(recorder.steps.back().epoch == 2);
  CHECK(recorder.saved == std::vector<std::uint64_t>{11});
}

TEST_CASE("tensors are hashed every N steps, by rank 0, the same for any ranks", "[train]") {
  const auto steps_of = [](int ranks) {
    Recorder recorder;
    comm::run_ranks(ranks, [&](comm::Communicator& comm) {
      train_toy(comm, {.steps = 11, .hash_every = 3}, {&recorder});
    });
    return recorder.steps;
  };
  const auto alone = steps_of(1);
  REQUIRE(alone.size() == 11);
  for (const auto& step : alone) CHECK(step.hashes.size() == (step.step % 3 == 0 ? 6 : 0));
  CHECK(alone[8].hashes.front().first == "0.weight");
  CHECK(alone[8].hashes.back().first == "2.bias");
  CHECK(alone[8].hashes != alone[5].hashes);
  const auto three = steps_of(3);
  REQUIRE(three.size() == 11);
  for (std::size_t s = 0; s < 11; ++s) CHECK(three[s].hashes == alone[s].hashes);
}

TEST_CASE("a run that diverges ends on every rank with code 76", "[train]") {
  const int ranks = GENERATE(1, 3);
  std::vector<int> codes(static_cast<std::size_t>(ranks));
  std::vector<std::string> texts(codes.size());
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    try {
      train_toy(comm, {.epochs = 50, .learning_rate = 1e30F});
    } catch (const comm::AgreedError& error) {
      codes[me] = static_cast<int>(error.code());
      texts[me] = error.what();
    }
  });
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    CHECK(codes[rank] == 76);
    CHECK(texts[rank] == texts[0]);
  }
  CHECK_THAT(texts[0], Catch::Contains("step") && Catch::Contains("`learning_rate`"));
}

TEST_CASE("all ranks stop after the same step, with a checkpoint", "[train][mesh]") {
  const std::uint64_t model = GENERATE(1, 2);
  const int asking = GENERATE(0, 3);
  Recorder recorder;
  std::atomic<int> asked = 0;
  ToyRun run = {.model = model};
  run.canonical = model == 2 || GENERATE(true, false);
  run.stop = [&](int rank) {
    if (rank != asking) return std::uint64_t{0};
    return ++asked == 5 ? std::uint64_t{12} : 0;
  };
  std::vector<train::RunReport> reports(4);
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const auto observers =
        comm.rank() == 0 ? std::vector<Observer*>{&recorder} : std::vector<Observer*>{};
    reports[static_cast<std::size_t>(comm.rank())] = train_toy(comm, run, observers).report;
  });
  for (const auto& report : reports) {
    CHECK(report.stop == 12);
    CHECK(report.steps == 5);
    CHECK(report.epochs.empty());
  }
  CHECK(recorder.saved == std::vector<std::uint64_t>{5});
}

TEST_CASE("a stop within an evaluation saves what was trained, and a resumed run evaluates it",
          "[train][mesh]") {
  const std::uint64_t model = GENERATE(1, 2);
  const int asking = GENERATE(0, 3);
  ToyRun run = {.model = model};
  const auto whole = per_rank(4, run).front();
  const test::TemporaryFolder folder;
  CheckpointSaver saver(folder.path());
  std::atomic<int> asked = 0;
  run.stop = [&](int rank) {  // twice 9 steps and 1 batch of an evaluation
    return std::uint64_t{rank == asking && ++asked == 20 ? 12U : 0U};
  };
  for (const auto& [weights, report] : test::per_rank(
           4, [&](comm::Communicator& comm) { return train_toy(comm, run, {&saver}); })) {
    CHECK(report.stop == 12);
    CHECK(report.steps == 18);
    CHECK(report.epochs.size() == 1);
    CHECK(report.test.examples == 97);
  }
  run.stop = {};
  run.resume_from = folder.path() / train::checkpoint_name(18);
  const auto resumed = per_rank(4, run).front();
  CHECK(resumed.weights == whole.weights);
  REQUIRE(resumed.report.epochs.size() == 2);
  for (std::size_t e = 0; e < 2; ++e) {
    CHECK(resumed.report.epochs[e].epoch == e + 2);
    CHECK(resumed.report.epochs[e].train_loss == whole.report.epochs[e + 1].train_loss);
    CHECK(resumed.report.epochs[e].test.loss == whole.report.epochs[e + 1].test.loss);
  }
}

TEST_CASE("replicas that drift apart are found", "[train]") {
  CHECK_THROWS_WITH(comm::run_ranks(3,
                                    [](comm::Communicator& comm) {
                                      ToyRun run;
                                      run.canonical = false;  // canonical ranks share one Adam
                                      if (comm.rank() == 1) run.learning_rate = 0.02F;
                                      train_toy(comm, run);
                                    }),
                    Catch::Contains("differs between ranks") && Catch::Contains("rank 1"));
}

TEST_CASE("a step that is not finite is skipped and changes nothing", "[train][nonfinite]") {
  ToyRun run = GENERATE(ToyRun{}, ToyRun{.exchange = Exchange::partial_sums},
                        ToyRun{.layers = batch_statistics()},
                        ToyRun{.canonical = false, .layers = small_convolutions()});
  run.scales = {{17, 3e38F}, {101, 1e25F}};
  run.hash_every = 1;
  const bool in_parts = run.exchange == Exchange::partial_sums && GENERATE(false, true);
  run.options = [&](ReplicaOptions& options) {
    options.on_nonfinite = OnNonfinite::skip;
    options.micro_batch = in_parts ? 16 : 0;
  };
  const auto recorded = [&](int ranks) {
    Recorder recorder;
    const auto results = test::per_rank(
        ranks, [&](comm::Communicator& comm) { return train_toy(comm, run, {&recorder}); });
    for (const auto& result : results) CHECK(result.weights == results[0].weights);
    CHECK(results[0].report.skipped_steps >= 3);
    for (std::size_t i = 1; i < recorder.steps.size(); ++i) {
      const bool same = recorder.steps[i].hashes == recorder.steps[i - 1].hashes;
      CHECK(same == !recorder.steps[i].skipped.empty());
    }
    for (const auto& epoch : recorder.epochs) CHECK(std::isfinite(epoch.train_loss));
    return std::pair(results[0].weights, recorder.steps);
  };
  const auto [weights, steps] = recorded(1);
  const auto first = std::find_if(steps.begin(), steps.end(),
                                  [](const auto& step) { return !step.skipped.empty(); });
  REQUIRE(first != steps.end());
  CHECK_THAT(first->skipped, Catch::Contains("is not finite: rank 0 on "));
  if (!run.canonical) return;
  run.model = GENERATE(1, 2);
  CHECK(recorded(4).first == weights);
  CHECK(recorded(2).first == weights);
}

TEST_CASE("what is not finite is found in the order of a step", "[train][nonfinite]") {
  const auto products = make_strict_products(Simd::automatic);
  nn::Network<float> network(nn::NetworkShape(3, {4}, 2), 5, *products);
  nn::initialise(network, {1, 2});
  const std::vector<std::uint64_t> ids = {70, 71, 72, 73, 74};
  const std::vector<std::int32_t> labels(5);
  const data::Plan plan({.records = 15, .batch_size = 5});
  data::Batch batch = data::batch_at(plan, 2, 0, labels, ids);  // examples 10 to 14
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto compute = [&] {
    network.forward({0, 5});
    network.loss({0, 5}, labels, true);
    network.backward({0, 5});
    network.weight_gradients({0, 5}, 5, {0, network.parameters().values().size()});
  };
  const auto found = [&] {
    const auto activation = [&](std::size_t i) { return network.activation(i, {0, 5}); };
    const auto gradient = [&](std::size_t i) { return network.gradient(i, {0, 5}); };
    NonfiniteValue first = find_nonfinite(
        network, ExampleValues{batch, activation, gradient, network.results({0, 5})});
    const optim::GradientSums sums = {network.parameters().gradients()};
    first.add(find_nonfinite(network, std::span(&sums, 1), 1));
    return first;
  };
  comm::SelfCommunicator comm;
  const auto described = [&](const NonfiniteValue& value) {
    return describe_nonfinite("gradient", value, batch, network.results({0, 5}), Groups(comm)).text;
  };
  std::ranges::fill(network.inputs({0, 5}).flat(), 1.0F);
  compute();
  CHECK(found().order == NonfiniteValue::none);

  network.parameters().gradients()[0] = 1e30F;  // its square is not finite
  const auto gradient = found();
  CHECK(gradient.text == "the gradient of 0.weight");
  CHECK(gradient.rows.empty());
  network.results({0, 5})[2].loss = nan;
  const auto loss = found();
  CHECK(loss.text == "the loss");
  CHECK(loss.rows == std::vector<std::size_t>{2});
  network.activation(2, {0, 5}).row(3)[1] = nan;
  const auto output = found();
  CHECK(output.text == "the output of layer 2 (dense 2)");
  CHECK(described(output) == "the gradient is not finite: rank 0 on " + comm.place().host +
                                 " has the first such value in the output of layer 2 (dense 2), "
                                 "for record 73 (counted from 0)");
  for (const std::size_t row : {0, 1, 3, 4}) network.inputs({0, 5}).row(row)[2] = nan;
  batch.ids = {};
  const auto features = found();
  CHECK_THAT(
      described(features),
      Catch::EndsWith("the features, for examples 10, 11, 13 and 1 more of the epoch (counted "
                      "from 0)"));
  network.inputs({0, 5}).row(2)[0] = nan;
  CHECK_THAT(described(found()), Catch::EndsWith("the features, for all of its 5 examples"));

  NonfiniteValue both = loss;  // of two parts of a piece
  both.add({.order = loss.order, .rows = {4}});
  both.add({.order = gradient.order, .text = "a sum"});
  CHECK(both.text == "the loss");
  CHECK(both.rows == std::vector<std::size_t>{2, 4});
  both.add(output);
  CHECK(both.rows == output.rows);
  CHECK(features.order < output.order);
  CHECK(output.order < loss.order);
  CHECK(loss.order < gradient.order);
}
