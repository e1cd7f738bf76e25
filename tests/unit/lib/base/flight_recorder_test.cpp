#include "lockstep/base/flight_recorder.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using Catch::Contains;

namespace {

constexpr double now = 1000;

/// A rank that began a collective of its step `age` seconds ago, and is in it unless it ended.
Flight flight(std::uint32_t rank, std::uint64_t step, std::uint64_t number, bool open,
              const char* name = "all_gather", double age = 30) {
  Flight made = {{.rank = rank, .ranks = 3, .process = 100 + static_cast<int>(rank)}, {}};
  std::copy_n("alpha", 6, made.host.begin());
  made.step = step;
  made.phase = Phase::step;
  made.since = now - age;
  FlightOperation operation = {.step = step, .number = number, .phase = Phase::step, .bytes = 4096};
  std::copy_n(name, std::string(name).size(), operation.name.begin());
  operation.begin = now - age;
  operation.end = open ? 0 : now - age + 1;
  made.operations.push_back(operation);
  return made;
}

Diagnosis diagnose_running(const std::vector<Flight>& flights) {
  return diagnose(flights, std::vector(flights.size(), ProcessState::running), now);
}

}  // namespace

TEST_CASE("a recorder's file tells what the rank does", "[flight]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / flight_name(3);
  CHECK(path.filename() == "rank-00003");
  FlightRecorder recorder(3, 8);
  recorder.enter(Phase::step, 7);
  recorder.begin("all_reduce", 40);
  recorder.end();
  recorder.write_to(path);  // with what was recorded in memory
  recorder.begin("all_gather", 80);
  const Flight read = read_flight(path);
  CHECK(read.rank == 3);
  CHECK(read.ranks == 8);
  CHECK(read.step == 7);
  CHECK(read.phase == Phase::step);
  CHECK(state_of(read) == ProcessState::running);
  REQUIRE(read.operations.size() == 2);
  CHECK(read.operations[0].end >= read.operations[0].begin);
  CHECK(std::string(read.operations[1].name.data()) == "all_gather");
  CHECK(read.operations[1].number == 2);
  CHECK(read.operations[1].bytes == 80);
  CHECK(read.operations[1].end == 0);
  CHECK(last_record(read) == read.operations[1].begin);
  recorder.end();
  for (int i = 0; i < 1000; ++i) {
    recorder.begin("shift", 1);
    recorder.end();
  }
  CHECK(read_flight(path).operations.size() == 256);
  CHECK(read_flight(path).operations.back().number == 1002);
  CHECK(recorder.idle_seconds() < 60);
}

TEST_CASE("a file that no recorder wrote is refused", "[flight]") {
  const test::TemporaryFolder folder;
  CHECK_THROWS_AS(read_flight(folder.path() / "no"), DataError);
  std::ofstream(folder.path() / "short") << "x";
  CHECK_THROWS_WITH(read_flight(folder.path() / "short"), Contains("not a flight recorder file"));
  std::ofstream(folder.path() / "other") << std::string(100'000, 'x');
  CHECK_THROWS_WITH(read_flight(folder.path() / "other"), Contains("not a flight recorder file"));
}

TEST_CASE("the rank that others wait for is named", "[flight]") {
  const std::vector<Flight> waiting = {flight(0, 9, 2, true), flight(1, 9, 2, true),
                                       flight(2, 9, 2, true)};
  auto flights = waiting;
  SECTION("it computes: it has ended the collective before") {
    flights[1] = flight(1, 9, 1, false);
    const auto found = diagnose_running(flights);
    CHECK(found.odd == std::vector<std::uint32_t>{1});
    CHECK_THAT(found.findings.at(0), Contains("rank 1 on alpha (process 101) is behind: computing "
                                              "of step 9, for 30.0 s"));
    CHECK(found.findings.at(1) == "ranks 0, 2 wait for rank 1");
  }
  SECTION("it reads") {
    flights[2].phase = Phase::data;
    flights[2].operations.clear();
    CHECK(diagnose_running(flights).odd == std::vector<std::uint32_t>{2});
  }
  SECTION("it is a step behind") {
    flights[0] = flight(0, 8, 3, false);
    CHECK(diagnose_running(flights).odd == std::vector<std::uint32_t>{0});
  }
  SECTION("it is stopped, or has ended, wherever it is") {
    auto states = std::vector(3, ProcessState::running);
    states[1] = ProcessState::stopped;
    states[2] = ProcessState::gone;
    const auto found = diagnose(flights, states, now);
    CHECK(found.odd == std::vector<std::uint32_t>{1, 2});
    CHECK_THAT(found.findings.at(0), Contains("rank 1 on alpha (process 101) is stopped"));
    CHECK_THAT(found.findings.at(1), Contains("rank 2 on alpha (process 102) has ended"));
    CHECK(found.findings.at(2) == "rank 0 waits for ranks 1-2");
  }
  SECTION("it calls another collective") {
    flights[2] = flight(2, 9, 2, true, "broadcast");
    const auto found = diagnose_running(flights);
    CHECK(found.odd == std::vector<std::uint32_t>{2});
    CHECK_THAT(found.findings.at(0), Contains("another collective than rank 0: computing of step "
                                              "9, in broadcast number 2 of 4.1 kB"));
  }
  SECTION("none: messages do not arrive") {
    const auto found = diagnose_running(flights);
    CHECK(found.odd.empty());
    CHECK(found.all_wait);
    CHECK_THAT(found.findings.at(0), Contains("the network between the hosts ("));
  }
  SECTION("none: or a rank that this host does not see is stopped") {
    const auto states = std::vector(3, ProcessState::unknown);
    const auto found = diagnose(flights, states, now);
    CHECK(found.odd.empty());
    CHECK_THAT(found.findings.at(0), Contains("or a rank of another host is stopped"));
  }
}
