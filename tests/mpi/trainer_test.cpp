// Training over MPI leaves the same weights as ranks that are threads, and as one rank alone.
#include <catch2/catch.hpp>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/collectives/two_level.hpp"
#include "tests/support/greatest_error.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/require_on_all.hpp"
#include "tests/support/toy_run.hpp"
#include "tests/support/two_levels.hpp"

using namespace lockstep;

TEST_CASE("canonical training over MPI gives the bits of one rank alone", "[mpi][canonical]") {
  auto& comm = test::mpi_world();
  const ToyRun run = GENERATE(ToyRun{}, ToyRun{.batch_size = 1}, ToyRun{.batch_size = 500},
                              ToyRun{.batch_size = 100, .hidden = {70, 130, 5}});
  comm::SelfCommunicator self;
  const auto alone = train_toy(self, run);
  const auto mine = train_toy(comm, run);
  REQUIRE_ON_ALL(comm, mine.weights == alone.weights);
  REQUIRE_ON_ALL(comm, mine.report.weights_hash == alone.report.weights_hash);
  for (std::size_t e = 0; e < alone.report.epochs.size(); ++e) {
    REQUIRE_ON_ALL(comm, mine.report.epochs[e].train_loss == alone.report.epochs[e].train_loss);
    REQUIRE_ON_ALL(comm, mine.report.epochs[e].test.loss == alone.report.epochs[e].test.loss);
  }
}

TEST_CASE("canonical training in shared memory, below MPI too, gives the same bits",
          "[mpi][canonical]") {
  comm::MpiCommunicator wire;
  const auto exchange = GENERATE(train::Exchange::activations, train::Exchange::partial_sums);
  const ToyRun run =
      GENERATE_COPY(ToyRun{.exchange = exchange},
                    ToyRun{.batch_size = 100, .exchange = exchange, .hidden = {70, 130, 5}});
  comm::SelfCommunicator self;
  const auto alone = train_toy(self, run);
  comm::SharedCommunicator shared(wire, wire.place());
  REQUIRE_ON_ALL(wire, train_toy(wire, run).weights == alone.weights);
  REQUIRE_ON_ALL(wire, train_toy(shared, run).weights == alone.weights);
  for (const test::Nodes& nodes : test::layouts(wire.size())) {
    const comm::Place place = test::place_in(nodes, wire.rank());
    comm::TwoLevelCommunicator two(wire, place);
    REQUIRE_ON_ALL(wire, train_toy(two, run).weights == alone.weights);
  }
}

TEST_CASE("a mesh over MPI, shared memory and both gives the bits of one rank alone",
          "[mpi][canonical]") {
  comm::MpiCommunicator wire;
  const auto exchange = GENERATE(train::Exchange::activations, train::Exchange::partial_sums);
  ToyRun run{.batch_size = 100, .exchange = exchange, .hidden = {70, 130, 5}};
  comm::SelfCommunicator self;
  const auto alone = train_toy(self, run);
  for (int model = 1; model <= wire.size(); ++model) {
    if (wire.size() % model != 0 || model > 4) continue;
    run.model = static_cast<std::uint64_t>(model);
    REQUIRE_ON_ALL(wire, train_toy(wire, run).weights == alone.weights);
    comm::SharedCommunicator shared(wire, wire.place());
    REQUIRE_ON_ALL(wire, train_toy(shared, run).weights == alone.weights);
    for (const test::Nodes& nodes : test::layouts(wire.size())) {
      comm::TwoLevelCommunicator two(wire, test::place_in(nodes, wire.rank()));
      REQUIRE_ON_ALL(wire, train_toy(two, run).weights == alone.weights);
    }
  }
}

TEST_CASE("allreduce training over MPI follows one rank alone", "[mpi][train]") {
  auto& comm = test::mpi_world();
  const std::uint64_t batch = GENERATE(1, 24, 500);
  const ToyRun run{.batch_size = batch, .canonical = false};
  comm::SelfCommunicator self;
  const auto alone = train_toy(self, run);
  const auto mine = train_toy(comm, run);
  REQUIRE_ON_ALL(comm, test::greatest_error(mine.weights, alone.weights) < 2e-4);
}
