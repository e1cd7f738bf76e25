// The main of tests under mpirun: rank 0 speaks; another rank speaks only where it failed.
#define CATCH_CONFIG_RUNNER
#define CATCH_CONFIG_NOSTDOUT
#define CATCH_CONFIG_NO_POSIX_SIGNALS  // peers of a rank that failed end by SIGTERM: no news
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include "lockstep/collectives/mpi.hpp"
#include "tests/support/mpi_world.hpp"

namespace {

std::ostringstream output;
lockstep::comm::Communicator* world = nullptr;

void print_output() {
  std::istringstream lines(output.str());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += "rank " + std::to_string(world->rank()) + ": " + line + '\n';
  }
  std::cout << text << std::flush;
  output.str("");
}

// An assertion that failed here alone leaves the others in their next collective: end the job.
// The pause lets other ranks that failed as well print what they know.
struct AbortOnFailure : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (stats.totals.assertions.allOk()) return;
    print_output();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    lockstep::comm::abort_job(1);
  }
};

CATCH_REGISTER_LISTENER(AbortOnFailure)

}  // namespace

namespace Catch {
std::ostream& cout() { return output; }
std::ostream& cerr() { return std::cerr; }
std::ostream& clog() { return std::clog; }
}  // namespace Catch

namespace lockstep::test {
comm::Communicator& mpi_world() { return *world; }
}  // namespace lockstep::test

int main(int argc, char** argv) {
  lockstep::comm::MpiSession session;
  lockstep::comm::MpiCommunicator comm;
  world = &comm;
  Catch::Session tests;
  tests.configData().useColour = Catch::UseColour::No;  // mpirun's pipe looks like a terminal
  const int failed = tests.run(argc, argv);
  if (comm.rank() == 0 || failed != 0) print_output();
  if (failed != 0) lockstep::comm::abort_job(1);
  return 0;
}
