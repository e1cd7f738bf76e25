#include "lockstep/collectives/communicator.hpp"

#include <catch2/catch.hpp>

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
