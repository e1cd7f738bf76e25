// Under mpirun: rank_leaves BACKEND CASE. Ranks that call fewer collectives than the others, or
// fail in a group of their own while the others wait for all.
#include <unistd.h>

#include <array>
#include <span>
#include <string_view>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/launch/launch.hpp"

using namespace lockstep;

namespace {

void sum(comm::Communicator& comm) {
  std::array<double, 3> values = {1, 2, 3};
  comm.all_reduce(std::span<double>(values));
}

void run(std::string_view what, comm::Communicator& comm) {
  const bool is_last = comm.rank() == comm.size() - 1;
  sum(comm);
  const auto part = comm.split(comm.rank() / 2);
  sum(*part);
  if (what == "if") {
    if (comm.rank() == 0) sum(comm);
    return;
  }
  if (what == "fails") {
    const auto group = comm.split(comm.rank() % 2);
    comm::together(*group, [&] {
      if (is_last) throw DataError("record 7 is cut off");
    });
    sum(comm);
  }
  if (what == "part" && !is_last) return sum(*part);
  if (what == "sleeps" && is_last) ::usleep(2'500'000);  // the others have finished
  if (what == "returns" && !is_last) sum(comm);
}

}  // namespace

int main(int, char** argv) {
  return launching::run_over_mpi(
      comm::detect_launcher(), [&](comm::MpiCommunicator& mpi, const auto& connected) {
        const auto shared = launching::share_nodes(argv[1], mpi);
        connected();
        run(argv[2], shared ? *shared : static_cast<comm::Communicator&>(mpi));
      });
}
