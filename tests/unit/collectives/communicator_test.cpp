#include "lockstep/collectives/communicator.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/base/process.hpp"
#include "tests/support/communicator_contract.hpp"

using namespace lockstep;

TEST_CASE("the world of one keeps the communicator's contract", "[collectives]") {
  comm::SelfCommunicator self;
  for (const auto& check : test::communicator_contract()) {
    test::Findings findings;
    check.run(self, findings);
    INFO(check.name);
    CHECK(findings.text().empty());
  }
  CHECK(std::string(self.backend()) == "self");
  CHECK(self.place().host == host_name());
}

TEST_CASE("a rank's cores are its share of those that its node's ranks may use", "[collectives]") {
  const auto of = [](int ranks, int cores) {
    comm::Place place;
    place.local_ranks = ranks;
    place.cores = cores;
    return comm::own_cores(place);
  };
  constexpr int many = 1'000'000;
  CHECK(of(1, 1) == 1);  // of more, if this process is bound to more
  CHECK(of(1, many) == bound_cores());
  CHECK(of(4, 2) == 1);
  CHECK(of(many, many) == 1);
  CHECK(of(1, 0) == bound_cores());
  CHECK(comm::SelfCommunicator().place().cores == bound_cores());
}

TEST_CASE("a collective of one rank is progress", "[collectives][flight]") {
  comm::SelfCommunicator self;
  FlightRecorder recorder(0, 1);
  self.record_in(&recorder);
  std::vector<float> storage(4);
  const std::span<float> values = storage;
  const auto is_progress = [&](auto collective) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto begin = std::chrono::steady_clock::now();
    collective();
    const double idle = recorder.idle_seconds();
    return idle < std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  CHECK(is_progress([&] { self.all_reduce(values); }));
  CHECK(is_progress([&] { self.broadcast(values); }));
  CHECK(is_progress([&] { self.all_gather(values); }));
  const double before = recorder.idle_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(recorder.idle_seconds() > before);
}
