// What tests under mpirun stand on; mpi_main.cpp provides it.
#pragma once

#include "lockstep/collectives/communicator.hpp"

namespace lockstep::test {

/// All ranks of this test. Lives as long as the test run.
comm::Communicator& mpi_world();

}  // namespace lockstep::test
