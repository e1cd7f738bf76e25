#include "lib/train/trainer.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "collectives/agreement.hpp"
#include "collectives/self_communicator.hpp"
#include "collectives/thread_group.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::train;

namespace {

/// Results by rank; asserts stay on the test's thread.
std::vector<ToyResult> per_rank(int ranks, const ToyRun& run) {
  std::vector<ToyResult> results(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    results[static_cast<std::size_t>(comm.rank())] = train_toy(comm, run);
  });
  return results;
}

struct Recorder final : Observer {
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  std::vector<std::uint64_t> saved;

  void on_step(const StepReport& report) override { steps.push_back(report); }
  void on_epoch(const EpochReport& report) override { epochs.push_back(report); }
  void on_checkpoint(const nn::Network<float>&, std::uint64_t step, std::uint64_t) override {
    saved.push_back(step);
  }
};

}  // namespace

TEST_CASE("any number of ranks trains to the weights of one", "[train]") {
  const std::uint64_t batch = GENERATE(1, 7, 24, 500);
  const ToyRun run{.batch_size = batch};
  const auto alone = per_rank(1, run).front();
  const auto results = per_rank(GENERATE(2, 3, 5, 8), run);
  for (const auto& result : results) {
    REQUIRE(result.weights == results.front().weights);  // the same bits on every rank
    REQUIRE(result.report.weights_hash == results.front().report.weights_hash);
  }
  for (std::size_t i = 0; i < alone.weights.size(); ++i) {
    REQUIRE(results.front().weights[i] == Approx(alone.weights[i]).margin(2e-4));
  }
  const auto& expected = alone.report.epochs;
  const auto& found = results.front().report.epochs;
  REQUIRE(found.size() == expected.size());
  for (std::size_t e = 0; e < found.size(); ++e) {
    CHECK(found[e].train_loss == Approx(expected[e].train_loss).epsilon(1e-4));
    CHECK(found[e].test_loss == Approx(expected[e].test_loss).epsilon(1e-4));
  }
}

TEST_CASE("it learns, and every example is counted once", "[train]") {
  comm::SelfCommunicator self;
  Recorder recorder;
  const auto result = train_toy(self, {.epochs = 20}, {&recorder});
  const auto& last = result.report.epochs.back();
  CHECK(last.train_accuracy > 0.95);
  CHECK(last.test_accuracy > 0.7);
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
  CHECK_THAT(texts[0], Catch::Contains("step") && Catch::Contains("--learning-rate"));
}

TEST_CASE("replicas that differ are found at the end of the epoch", "[train]") {
  CHECK_THROWS_WITH(comm::run_ranks(3,
                                    [](comm::Communicator& comm) {
                                      ToyRun run;
                                      if (comm.rank() == 1) run.learning_rate = 0.02F;
                                      train_toy(comm, run);
                                    }),
                    Catch::Contains("the weights' hash") && Catch::Contains("rank 1"));
}
