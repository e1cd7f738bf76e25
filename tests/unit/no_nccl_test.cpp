#include <catch2/catch.hpp>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/cuda/device.hpp"

using namespace lockstep;

TEST_CASE("a build without NCCL says so", "[device]") {
  CHECK_FALSE(comm::nccl_built_in());
  comm::SelfCommunicator host;
  const cuda::Stream stream;
  CHECK_THROWS_AS(make_nccl_communicator(host, stream, std::chrono::seconds(1)), ConfigError);
  CHECK_THROWS_WITH(make_nccl_communicator(host, stream, std::chrono::seconds(1)),
                    Catch::StartsWith("this build has no NCCL"));
}
