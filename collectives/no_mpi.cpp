// Replaces mpi.cpp in builds without MPI: MpiSession throws.
#include <cstdlib>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/collectives/peer_watch.hpp"

namespace lockstep::comm {
namespace {

[[noreturn]] void no_mpi() {
  throw ConfigError("this build has no MPI",
                    "start it without a launcher, with `ranks=N` for threads; or install MPI's "
                    "development files and configure with -DLOCKSTEP_MPI=ON");
}

}  // namespace

MpiSession::MpiSession() : exceptions_(0) { no_mpi(); }
MpiSession::~MpiSession() { static_cast<void>(exceptions_); }

void abort_job(int code) noexcept {
  remove_temporaries();
  std::_Exit(code);
}
bool end_launcher() noexcept { return false; }
bool is_child_of_daemon() { return false; }
void finalize_mpi() noexcept {}
bool launcher_recovers() { return false; }
bool all_ranks_leave(double /*seconds*/) { no_mpi(); }
const char* name_of(MpiCall /*call*/) noexcept { return "no MPI"; }
void call_mpi(MpiCall /*call*/, std::span<const float> /*send*/, std::span<float> /*receive*/,
              Op /*op*/) {
  no_mpi();
}
std::string mpi_version() { return "no MPI"; }

struct MpiCommunicator::State {};

MpiCommunicator::MpiCommunicator(std::size_t elements_per_call)
    : Communicator(0, 1), elements_per_call_(elements_per_call) {
  no_mpi();
}
MpiCommunicator::~MpiCommunicator() = default;
void MpiCommunicator::watch_peers(const std::function<void(const RankLeft&)>& /*on_left*/) {
  no_mpi();
}
void MpiCommunicator::finish() { no_mpi(); }
void MpiCommunicator::do_all_reduce(Elements /*values*/, Op /*op*/) { no_mpi(); }
void MpiCommunicator::do_broadcast(Elements /*values*/, int /*root*/) { no_mpi(); }
void MpiCommunicator::do_all_gather(Elements /*values*/) { no_mpi(); }
void MpiCommunicator::do_all_to_all(const std::byte* /*send*/, Elements /*receive*/) { no_mpi(); }
void MpiCommunicator::do_shift(const std::byte* /*send*/, Elements /*receive*/) { no_mpi(); }
std::unique_ptr<Communicator> MpiCommunicator::do_split(const Subgroup& /*part*/) { no_mpi(); }

}  // namespace lockstep::comm
