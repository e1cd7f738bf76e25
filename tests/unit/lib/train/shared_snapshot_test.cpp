// Training that goes on from a snapshot in shared memory, in a smaller group of ranks.
#include "lockstep/train/shared_snapshot.hpp"

#include <catch2/catch.hpp>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/two_level.hpp"
#include "tests/support/toy_run.hpp"
#include "tests/support/two_levels.hpp"

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
    comm::SelfCommunicator self;
    kept.push_back(snapshots[0]->newest(self)->state.steps);
  }
  CHECK(kept == std::vector<std::uint64_t>{6, 9, 12, 18});
  run.steps.reset();
  const auto last = per_rank(1, run).front();
  CHECK(last.weights == whole.weights);
  CHECK(last.report.weights_hash == whole.report.weights_hash);
  CHECK(last.report.epochs.back().train_loss == whole.report.epochs.back().train_loss);
}

namespace {

constexpr std::size_t length = 30;

/// Writes the part of rank `rank` of `ranks` on a host.
void write(SharedSnapshot& snapshot, int rank, int ranks, std::uint64_t step) {
  const auto blocks = snapshot.begin(rank);
  for (const auto block : {blocks.weights, blocks.first, blocks.second}) {
    const auto at = [&](int r) {
      return block.begin() + static_cast<std::ptrdiff_t>(length) * r / ranks;
    };
    std::fill(at(rank), at(rank + 1), static_cast<float>(step));
  }
  snapshot.commit(rank, ranks, {.steps = step});
}

/// The step of the newest snapshot, whose blocks must be of that step; 0: none.
std::uint64_t newest(SharedSnapshot& snapshot, comm::Communicator& comm) {
  const auto kept = snapshot.newest(comm);
  if (!kept) return 0;
  for (const auto block : {kept->blocks.weights, kept->blocks.first, kept->blocks.second}) {
    for (const float value : block) {
      if (value != static_cast<float>(kept->state.steps)) return 1000;
    }
  }
  return kept->state.steps;
}

}  // namespace

TEST_CASE("the newest snapshot that all ranks of its group have written is taken", "[survive]") {
  Snapshots of(3);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    of[static_cast<std::size_t>(comm.rank())] = std::make_unique<SharedSnapshot>(comm, length);
  });
  // The first `writers` of a group of `ranks` write a snapshot; the others are lost before.
  const auto group = [&](int ranks, std::uint64_t step, int writers) {
    for (int rank = 0; rank < writers; ++rank) {
      write(*of[static_cast<std::size_t>(rank)], rank, ranks, step);
    }
    std::vector<std::uint64_t> found;
    comm::SelfCommunicator self;
    for (auto& snapshot : of) found.push_back(newest(*snapshot, self));
    CHECK(found == std::vector<std::uint64_t>(3, found[0]));
    return found[0];
  };
  CHECK(group(3, 4, 2) == 0);  // the first one is not complete
  CHECK(group(3, 4, 3) == 4);
  CHECK(group(3, 8, 2) == 4);
  CHECK(group(3, 8, 3) == 8);
  CHECK(group(3, 12, 3) == 12);
  CHECK(group(3, 16, 2) == 12);  // rank 2 wrote step 8 there
  of[0]->begin(0);               // and is lost
  CHECK(group(2, 16, 0) == 12);
  CHECK(group(2, 16, 1) == 12);  // rank 1 wrote step 8 there, in a group of three
  CHECK(group(2, 16, 2) == 16);
}

TEST_CASE("a snapshot from after a fault is dropped, with the losses since", "[survive]") {
  comm::SelfCommunicator self;
  SharedSnapshot snapshot(self, length);
  write(snapshot, 0, 1, 4);
  write(snapshot, 0, 1, 8);
  for (const std::uint64_t step : {5, 6, 7, 8}) snapshot.require_repeated(step, 0.5, self);
  CHECK(snapshot.newest(self, 8)->state.steps == 8);
  CHECK(snapshot.newest(self, 6)->state.steps == 4);
  CHECK(snapshot.newest(self)->state.steps == 4);  // that of step 8 is gone
  snapshot.require_repeated(7, 0.25, self);
  CHECK_THROWS_AS(snapshot.require_repeated(6, 0.25, self), NotRepeated);
  CHECK_FALSE(snapshot.newest(self, 3));
}

TEST_CASE("hosts take the newest snapshot that is complete on all of them", "[survive]") {
  comm::run_ranks(4, [&](comm::Communicator& threads) {
    const auto place = test::place_in(test::layouts(4)[0], threads.rank());
    comm::TwoLevelCommunicator comm(threads, place);
    SharedSnapshot snapshot(comm, length);
    std::vector<std::uint64_t> found;
    const auto all_write = [&](std::uint64_t step, int writers) {
      if (comm.rank() < writers) write(snapshot, place.local_rank, place.local_ranks, step);
      comm.all_agree(true);
      found.push_back(newest(snapshot, comm));
      comm.all_agree(true);
    };
    all_write(4, 4);
    all_write(8, 3);  // complete on the first host alone
    comm::SelfCommunicator self;
    if (comm.rank() == 0) found.push_back(newest(snapshot, self));  // the others are lost
    comm.all_agree(true);
    all_write(8, 4);
    all_write(12, 2);  // nothing was written on the second host
    all_write(16, 4);
    std::vector<std::uint64_t> expected = {4, 4, 8, 8, 16};
    if (comm.rank() == 0) expected.insert(expected.begin() + 2, 4);
    if (found != expected) throw std::runtime_error("another");
  });
}

TEST_CASE("a repeated step with another loss is an error of all ranks", "[survive]") {
  std::vector<std::string> errors(2);
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    SharedSnapshot snapshot(comm, length);
    write(snapshot, comm.rank(), comm.size(), 4);
    snapshot.require_repeated(5, 0.5, comm);
    if (comm.rank() == 1) snapshot.require_repeated(6, 0.25, comm);  // rank 0 did not get there
    newest(snapshot, comm);
    snapshot.require_repeated(5, 0.5, comm);
    try {
      snapshot.require_repeated(6, 0.25000001, comm);
    } catch (const NotRepeated& error) {
      if (error.code() != ExitCode::invariant || error.good_steps() != 4) throw;
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  CHECK_THAT(errors[0], Catch::Contains("step 6") && Catch::Contains("0.25000001") &&
                            Catch::Contains("step 4 or before"));
  CHECK(errors[1] == errors[0]);
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
