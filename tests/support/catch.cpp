#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/run_tests.hpp"

namespace lockstep::test {

int run_tests(int argc, char** argv, bool colours) {
  Catch::Session session;
  if (!colours) session.configData().useColour = Catch::UseColour::No;
  return session.run(argc, argv);
}

}  // namespace lockstep::test
