// Training over MPI leaves the same weights as ranks that are threads, and as one rank alone.
#include <catch2/catch.hpp>

#include "collectives/self_communicator.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/require_on_all.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;

TEST_CASE("training over MPI follows one rank alone", "[mpi][train]") {
  auto& comm = test::mpi_world();
  const std::uint64_t batch = GENERATE(1, 24, 500);
  const ToyRun run{.batch_size = batch};
  comm::SelfCommunicator self;
  const auto alone = train_toy(self, run);
  const auto mine = train_toy(comm, run);
  double worst = 0;
  for (std::size_t i = 0; i < alone.weights.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(mine.weights[i] - alone.weights[i])));
  }
  REQUIRE_ON_ALL(comm, worst < 2e-4);
  for (std::size_t e = 0; e < alone.report.epochs.size(); ++e) {
    REQUIRE_ON_ALL(comm, mine.report.epochs[e].train_loss ==
                             Approx(alone.report.epochs[e].train_loss).epsilon(1e-4));
  }
}
