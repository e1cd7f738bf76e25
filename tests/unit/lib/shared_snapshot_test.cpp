// Training that goes on from a snapshot in shared memory, in a smaller group of ranks.
#include "lockstep/train/shared_snapshot.hpp"

#include <catch2/catch.hpp>

#include "lockstep/collectives/agreement.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::train;

namespace {

using Snapshots = std::vector<std::unique_ptr<SharedSnapshot>>;

}  // namespace

TEST_CASE("smaller groups go on with the weights of a run that no rank left",
          "[survive][canonical]") {
  ToyRun run =
      GENERATE(ToyRun{}, ToyRun{.layers = {nn::Convolution{4, 3}, nn::BatchNorm{}, nn::Flatten{},
                                           nn::Dense{9}, nn::Dropout{0.5}}});
  run.exchange = GENERATE(Exchange::activations, Exchange::partial_sums);
  const auto whole = per_rank(3, run).front();
  Snapshots snapshots(5);
  run.snapshots = &snapshots;
  run.snapshot_every = 3;
  std::vector<std::uint64_t> kept;
  // 9 steps an epoch: the last step before a loss is within an epoch, at its end, at a snapshot.
  for (const auto& [ranks, steps] :
       std::vector<std::pair<int, std::uint64_t>>{{5, 7}, {4, 9}, {3, 12}, {2, 20}}) {
    run.steps = steps;
    per_rank(ranks, run);
    kept.push_back(snapshots[0]->newest()->state.steps);
  }
  CHECK(kept == std::vector<std::uint64_t>{6, 9, 12, 18});
  run.steps.reset();
  const auto last = per_rank(1, run).front();
  CHECK(last.weights == whole.weights);
  CHECK(last.report.weights_hash == whole.report.weights_hash);
  CHECK(last.report.epochs.back().train_loss == whole.report.epochs.back().train_loss);
}

TEST_CASE("the newest snapshot that all ranks of its group have written is taken", "[survive]") {
  Snapshots of(3);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    of[static_cast<std::size_t>(comm.rank())] = std::make_unique<SharedSnapshot>(comm, 30);
  });
  const auto write = [&](int rank, int ranks, std::uint64_t step) {
    const auto blocks = of[static_cast<std::size_t>(rank)]->begin(rank);
    for (const auto block : {blocks.weights, blocks.first, blocks.second}) {
      std::fill(block.begin() + 10 * rank, block.begin() + 10 * (rank + 1),
                static_cast<float>(step));
    }
    of[static_cast<std::size_t>(rank)]->commit(rank, ranks, {.steps = step});
  };
  const auto newest = [&] {
    const auto kept = of[1]->newest();
    if (!kept) return std::uint64_t{0};
    for (const auto block : {kept->blocks.weights, kept->blocks.first, kept->blocks.second}) {
      for (const float value : block) REQUIRE(value == static_cast<float>(kept->state.steps));
    }
    return kept->state.steps;
  };
  write(0, 3, 4);
  write(1, 3, 4);
  CHECK(newest() == 0);  // the first one is not complete
  write(2, 3, 4);
  CHECK(newest() == 4);
  write(2, 3, 8);
  write(0, 3, 8);
  CHECK(newest() == 4);
  of[1]->begin(1);  // and the rank is lost
  CHECK(newest() == 4);
  const auto three = [&](std::uint64_t step) {
    for (int rank = 0; rank < 3; ++rank) write(rank, 3, step);
  };
  three(8);
  CHECK(newest() == 8);
  three(12);
  CHECK(newest() == 12);
  // A group of two takes the place of step 8, whose third rank committed for a group of three.
  write(0, 2, 16);
  CHECK(newest() == 12);
  const auto rest = of[0]->begin(1);
  for (const auto block : {rest.weights, rest.first, rest.second}) {
    std::fill(block.begin() + 10, block.end(), 16.0F);
  }
  of[0]->commit(1, 2, {.steps = 16});
  CHECK(newest() == 16);
}

TEST_CASE("a repeated step with another loss is an error", "[survive]") {
  comm::SelfCommunicator self;
  SharedSnapshot snapshot(self, 1);
  snapshot.require_repeated(1, 0.5);
  snapshot.require_repeated(2, 0.25);
  snapshot.require_repeated(1, 0.5);
  try {
    snapshot.require_repeated(2, 0.25000001);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::invariant);
    CHECK(std::string(error.what()).find("step 2") != std::string::npos);
  }
}

TEST_CASE("a run whose results depend on its ranks cannot survive their loss", "[survive]") {
  Snapshots snapshots(2);
  ToyRun run = {.canonical = false};
  SECTION("all-reduce") {}
  SECTION("a shard policy") { run = {.policy = data::ShardPolicy::off}; }
  SECTION("a mesh") { run = {.model = 2}; }
  run.snapshots = &snapshots;
  CHECK_THROWS_AS(per_rank(2, run), comm::AgreedError);
}
