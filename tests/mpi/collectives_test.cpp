#include <stdexcept>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/collectives/two_level.hpp"
#include "tests/support/communicator_contract.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/require_on_all.hpp"
#include "tests/support/two_levels.hpp"

using namespace lockstep;

TEST_CASE("MPI keeps the communicator's contract", "[mpi]") {
  comm::Communicator& world = test::mpi_world();
  for (const auto& check : test::communicator_contract()) {
    test::Findings findings;
    check.run(world, findings);
    INFO(check.name << '\n' << findings.text());
    REQUIRE_ON_ALL(world, findings.text().empty());
  }
}

TEST_CASE("vectors beyond one MPI call go out in slices", "[mpi]") {
  comm::MpiCommunicator sliced(GENERATE(std::size_t{500}, 1024, 32768));
  for (const auto& check : test::communicator_contract()) {
    if (std::string(check.name) == "place") continue;
    test::Findings findings;
    check.run(sliced, findings);
    INFO(check.name << '\n' << findings.text());
    REQUIRE_ON_ALL(sliced, findings.text().empty());
  }
}

TEST_CASE("shared memory between processes keeps the contract", "[mpi]") {
  comm::Communicator& world = test::mpi_world();
  comm::SharedCommunicator shared(world, world.place());
  for (const auto& check : test::communicator_contract()) {
    test::Findings findings;
    check.run(shared, findings);
    INFO(check.name << '\n' << findings.text());
    REQUIRE_ON_ALL(shared, findings.text().empty());
  }
}

TEST_CASE("shared memory below MPI keeps the contract", "[mpi]") {
  comm::MpiCommunicator wire;
  for (const test::Nodes& nodes : test::layouts(wire.size())) {
    const comm::Place place = test::place_in(nodes, wire.rank());
    comm::TwoLevelCommunicator two(wire, place);
    for (const auto& check : test::communicator_contract()) {
      test::Findings findings;
      check.run(two, findings);
      INFO(check.name << '\n' << findings.text());
      REQUIRE_ON_ALL(two, findings.text().empty());
    }
  }
}

TEST_CASE("MPI says where its ranks are", "[mpi]") {
  const comm::Communicator& world = test::mpi_world();
  CHECK(std::string(world.backend()) == "mpi");
  CHECK(world.place().local_ranks <= world.size());
  CHECK(world.place().cores >= bound_cores());
  CHECK(comm::mpi_version().find("MPI") != std::string::npos);
}

TEST_CASE("a wrong root is an error, not a hang", "[mpi]") {
  comm::Communicator& world = test::mpi_world();
  float value = 0;
  bool refused = world.size() == 1;
  try {
    world.broadcast(std::span(&value, 1), world.size());
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  REQUIRE_ON_ALL(world, refused);
}

TEST_CASE("MPI starts once in a process", "[mpi]") {
  CHECK_THROWS_AS(comm::MpiSession(), ConfigError);
}
