// Under mpirun: the odd ranks agree that they cannot go on, while the even ones wait for all.
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/launch/launch.hpp"

using namespace lockstep;

int main(int argc, char** argv) {
  return run_replicas(argc, argv, [](comm::Communicator& comm) {
    const auto part = comm.split(comm.rank() % 2);
    comm::together(*part, [&] {
      if (comm.rank() == 3) throw DataError("record 7 is cut off");
    });
    comm.all_agree(true);
  });
}
