#include "lockstep/train/balance.hpp"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "lockstep/base/flight_recorder.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::train;

using Shares = std::vector<std::uint64_t>;

TEST_CASE("slow ranks get fewer leaves", "[balance]") {
  CHECK(balanced_shares({2, 2, 2, 2}, {1, 1, 1, 2}, 4) == Shares{3, 2, 2, 1});
  CHECK(balanced_shares({4, 4}, {1, 3}, 8) == Shares{6, 2});
  CHECK(balanced_shares({4, 4}, {1, 100}, 8) == Shares{7, 1});  // one leaf is left
  CHECK(balanced_shares({3, 3, 3, 3}, {1, 1, 9, 9}, 6) == Shares{5, 5, 1, 1});
  CHECK(balanced_shares({2, 2, 2}, {1, 9, 2}, 3) == Shares{3, 1, 2});  // 3 at most
  CHECK(balanced_shares({7, 1}, {1, 1}, 8) == Shares{4, 4});           // no longer slow
}

TEST_CASE("shares stay where others are hardly better", "[balance]") {
  CHECK(balanced_shares({2, 2, 2, 2}, {1, 1, 1.05, 1.09}, 4) == Shares{2, 2, 2, 2});
  CHECK(balanced_shares({1, 1}, {1, 5}, 2) == Shares{1, 1});
  CHECK(balanced_shares({6, 6}, {1, 1.1}, 12) == Shares{6, 6});
  CHECK(balanced_shares({10, 10}, {1, 1.15}, 20) == Shares{10, 10});
  CHECK(balanced_shares({3}, {1}, 3) == Shares{3});
}

TEST_CASE("fewer leaves than ranks", "[balance]") {
  CHECK(balanced_shares({1, 1, 0}, {1, 4, 0}, 2) == Shares{1, 0, 1});  // the third counts as 1
  CHECK(balanced_shares({1, 1, 0, 0}, {1, 4, 0, 0}, 2) == Shares{1, 0, 1, 0});
}

TEST_CASE("leaves are dealt in runs, which have fewer sums", "[balance]") {
  CHECK(balanced_shares({16, 16}, {1, 2}, 32) == Shares{24, 8});  // 21 and 11 would be best
  CHECK(balanced_shares({16, 16}, {1, 3}, 32) == Shares{24, 8});
  CHECK(balanced_shares({15, 15}, {1, 2}, 30) == Shares{20, 10});
}

namespace {

/// Epochs of batches of 64 in 8 leaves on two ranks.
struct Measured {
  data::Plan plan{{.records = 140, .batch_size = 64, .ranks = 2, .leaf = 8, .balance = true}};
  Balance balance{plan};
  comm::SelfCommunicator self;

  /// `first`, `second`: seconds of the ranks' own work; `seconds`: of each whole step.
  void add(int steps, std::uint64_t step, double first, double second, double seconds = 1) {
    const std::vector<RankMessage> messages = {{0, first}, {0, second}};
    for (int i = 0; i < steps; ++i) balance.add(step, messages, seconds);
  }

  Shares next() {
    auto shares = balance.next_shares(self);
    plan.set_shares(shares);
    return shares;
  }
};

}  // namespace

TEST_CASE("full steps after the first ones are measured", "[balance]") {
  Measured run;
  REQUIRE(run.plan.shares() == Shares{4, 4});
  run.add(10, 0, 1000, 90000);  // warm-up
  run.add(10, 2, 1000, 90000);  // batches of 12
  CHECK(run.next() == Shares{4, 4});
  run.add(10, 1, 1000, 3000);
  CHECK(run.next() == Shares{6, 2});
  CHECK(run.next() == Shares{6, 2});  // nothing was measured
}

TEST_CASE("shares that make steps no faster are changed back", "[balance]") {
  Measured run;
  run.add(10, 0, 1, 1);
  run.add(10, 0, 1000, 3000, 1.0);
  CHECK(run.next() == Shares{6, 2});
  run.add(1, 0, 1, 1, 99);  // the first step with new shares
  run.add(10, 0, 1500, 1500, 1.1);
  CHECK(run.next() == Shares{4, 4});
  run.add(10, 0, 1000, 3000, 1.0);
  CHECK(run.next() == Shares{4, 4});  // waits
  run.add(10, 0, 1000, 3000, 1.0);
  CHECK(run.next() == Shares{6, 2});
  run.add(10, 0, 1500, 1500, 0.9);
  CHECK(run.next() == Shares{6, 2});
  run.add(10, 0, 3000, 500, 0.9);  // now the other one is slow
  CHECK(run.next() == Shares{2, 6});
}

TEST_CASE("canonical: one hash for any shares", "[balance][canonical]") {
  ToyRun run = GENERATE(
      ToyRun{.epochs = 1}, ToyRun{.batch_size = 100, .leaf = 7, .hidden = {30}, .epochs = 1},
      ToyRun{.batch_size = 60,
             .layers = {nn::BatchNorm{}, nn::Convolution{6, 3, nn::Padding::same, Activation::relu},
                        nn::Dropout{0.5}, nn::Flatten{}, nn::Dense{9}, nn::BatchNorm{}},
             .epochs = 1});
  const auto alone = per_rank(1, run).front();
  std::mt19937 random(3);
  for (const std::uint64_t ranks : {1, 2, 3, 5, 8}) {
    run.model = ranks == 8 ? 2 : 1;
    const data::Plan plan({.records = run.records,
                           .batch_size = run.batch_size,
                           .ranks = ranks / run.model,
                           .leaf = run.leaf,
                           .balance = true});
    for (int trial = 0; trial < 3; ++trial) {
      run.shares.assign(plan.options().ranks, 0);
      for (auto left = std::accumulate(plan.shares().begin(), plan.shares().end(), 0U); left > 0;) {
        auto& share = run.shares[random() % run.shares.size()];
        if (share == plan.largest_share()) continue;
        ++share;
        --left;
      }
      for (const auto& result : per_rank(static_cast<int>(ranks), run)) {
        REQUIRE(result.weights == alone.weights);
        REQUIRE(result.report.epochs[0].train_loss == alone.report.epochs[0].train_loss);
        REQUIRE(result.report.shares == run.shares);
      }
    }
  }
}

TEST_CASE("leaves move away from a slow rank between epochs", "[balance][train]") {
  // In the last two ranks wait for each other before they send their results.
  ToyRun run =
      GENERATE(ToyRun{.epochs = 4},
               ToyRun{.layers = {nn::BatchNorm{}, nn::Flatten{}, nn::Dense{9}}, .epochs = 4},
               ToyRun{.model = 2, .epochs = 4});
  const int model = static_cast<int>(run.model);
  const auto alone = per_rank(model, run).front();
  run.shares = {4, 4, 4};
  run.slow_rank = 1;
  const auto results = test::per_rank(3 * model, [&](comm::Communicator& comm) {
    FlightRecorder recorder(comm.rank(), comm.size());
    comm.record_in(&recorder);
    auto result = train_toy(comm, run);
    comm.record_in(nullptr);
    return result;
  });
  const std::size_t slow = model == 1 ? 1 : 0;
  for (const auto& result : results) {
    CHECK(result.weights == alone.weights);
    const auto& epochs = result.report.epochs;
    CHECK(epochs[0].new_shares.empty());  // of nine steps
    REQUIRE(epochs[1].new_shares == results[0].report.epochs[1].new_shares);
    REQUIRE(epochs[1].new_shares.size() == 3);
    CHECK(epochs[1].new_shares[slow] < 4);
    CHECK(epochs[3].new_shares.empty());  // the last one
  }
}

TEST_CASE("room for sums with shares", "[balance]") {
  const auto parts = [](std::uint64_t records, std::uint64_t ranks, bool balance) {
    const data::Plan plan({.records = records, .ranks = ranks, .balance = balance});
    return sum_parts(Exchange::partial_sums, plan);
  };
  for (const std::uint64_t records : {2944, 2945}) {  // the last batch has 128 examples, or one
    CHECK(parts(records, 2, true) == 4);              // at most 8 leaves a rank
    CHECK(parts(records, 4, true) == 3);              // at most 4
    CHECK(parts(records, 1, true) == parts(records, 1, false));
  }
  CHECK(parts(2992, 2, true) == 5);  // the last batch has 12 leaves
}

TEST_CASE("what cannot be balanced is refused", "[balance]") {
  ToyRun run{.shares = {6, 6}};
  const auto refusal = [](const ToyRun& made) {
    try {
      per_rank(2, made);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using Catch::Matchers::Contains;
  ToyRun other = run;
  other.exchange = Exchange::activations;
  CHECK_THAT(refusal(other), Contains("balance with exchange activations"));
  other = run;
  other.canonical = false;
  CHECK_THAT(refusal(other), Contains("balance with reduction allreduce"));
  other = run;
  other.audit_every = 1;
  CHECK_THAT(refusal(other), Contains("`audit_every` with balance"));
  other = run;
  other.policy = data::ShardPolicy::off;
  CHECK_THAT(refusal(other), Contains("`balance` with `policy=off`"));
  other = run;
  other.shares = {6, 7};
  CHECK_THAT(refusal(other), Contains("set_shares"));
}
