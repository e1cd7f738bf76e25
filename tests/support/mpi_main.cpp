// The main of tests under mpirun: rank 0 speaks; another rank speaks only where it failed.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>

#include "lockstep/collectives/mpi.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/run_tests.hpp"

namespace {

std::ostringstream output;
std::streambuf* const terminal = std::cout.rdbuf();
lockstep::comm::Communicator* world = nullptr;

void print_output() {
  std::istringstream lines(output.str());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += "rank " + std::to_string(world->rank()) + ": " + line + '\n';
  }
  std::ostream(terminal) << text << std::flush;
  output.str("");
}

// An assertion that failed here alone leaves the others in their next collective: end the job.
// The pause lets other ranks that failed as well print what they know.
struct AbortOnFailure : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;

  // Peers of a rank that failed end by SIGTERM: they failed no test.
  bool assertionEnded(const Catch::AssertionStats& stats) override {
    const auto& result = stats.assertionResult;
    if (result.getResultType() == Catch::ResultWas::FatalErrorCondition &&
        result.getMessage().rfind("SIGTERM", 0) == 0) {
      std::_Exit(1);
    }
    return true;
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (stats.totals.assertions.allOk()) return;
    print_output();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    lockstep::comm::abort_job(1);
  }
};

CATCH_REGISTER_LISTENER(AbortOnFailure)

}  // namespace

namespace lockstep::test {
comm::Communicator& mpi_world() { return *world; }
}  // namespace lockstep::test

int main(int argc, char** argv) {
  lockstep::comm::MpiSession session;
  lockstep::comm::MpiCommunicator comm;
  world = &comm;
  std::cout.rdbuf(output.rdbuf());
  const bool colours = false;  // mpirun's pipe looks like a terminal
  const int failed = lockstep::test::run_tests(argc, argv, colours);
  std::cout.rdbuf(terminal);
  if (comm.rank() == 0 || failed != 0) print_output();
  if (failed != 0) lockstep::comm::abort_job(1);
  return 0;
}
