#include "lib/launch/world.hpp"

#include <cstdio>

#include "collectives/agreement.hpp"
#include "collectives/mpi_session.hpp"
#include "collectives/shared_communicator.hpp"
#include "collectives/thread_group.hpp"
#include "collectives/two_level_communicator.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/launch/failure.hpp"

namespace lockstep::launch {
namespace {

constexpr std::uint64_t most_threads = 1024;

// A rank that fell back in its last step, or has much memory to give back, is that late at most.
constexpr double seconds_to_leave = 5;

[[noreturn]] void end_job(const std::string& text, int code) {
  print_error(text);
  std::fflush(stdout);
  comm::abort_job(code);
}

int run_rank(comm::MpiCommunicator& comm, const MpiRankBody& body) {
  try {
    body(comm);
    return static_cast<int>(ExitCode::success);
  } catch (const comm::AgreedError& error) {
    if (!comm::all_ranks_leave(seconds_to_leave)) end_job(error.what(), exit_code(error));
    if (comm.rank() == 0) print_error(error.what());
    return exit_code(error);
  } catch (const std::exception& error) {
    end_job(
        "rank " + std::to_string(comm.rank()) + " on " + comm.place().host + ": " + what_of(error),
        exit_code(error));
  }
}

}  // namespace

bool is_rank(const std::optional<comm::Launch>& launch) {
  if (!launch || launch->launcher == "sbatch") return false;
  const bool lone_step = launch->ranks == 1 && !launch->pmix;
  return !lone_step;
}

void require_no_batch_shell(const std::optional<comm::Launch>& launch, const std::string& program) {
  if (!launch || launch->launcher != "sbatch") return;
  throw ConfigError("this is one process in the shell of a Slurm job of " +
                        std::to_string(launch->ranks) + " tasks",
                    "start it with `srun --mpi=pmix -K " + program +
                        " ...`, or say --ranks N for N threads of this process alone");
}

int run_over_mpi(const std::optional<comm::Launch>& launch, const MpiRankBody& body) {
  try {
    if (launch) comm::require_pmix(*launch);
    const comm::MpiSession session;
    comm::MpiCommunicator comm;
    if (launch) comm::require_promised_world(*launch, comm.size(), comm::mpi_version());
    return run_rank(comm, body);
  } catch (const ConfigError& error) {  // every process of the launch has found the same
    const bool first =
        !launch || launch->rank == 0 || launch->ranks == 0;  // 0: who else there is, is unknown
    if (first) print_error(error.what());
    return exit_code(error);
  }
}

std::unique_ptr<comm::Communicator> share_nodes(const std::string& backend,
                                                comm::MpiCommunicator& mpi) {
  const comm::Place& place = mpi.place();
  const bool alone = mpi.size() > 1 && place.nodes == mpi.size();
  if (backend == "shared" && alone) {
    throw comm::AgreedError(ExitCode::usage,
                            "backend shared: no two ranks of this job are on one host",
                            "use --backend mpi, or leave it out");
  }
  const bool shares =
      backend == "shared" || ((backend == "auto" || backend == "nccl") && mpi.size() > place.nodes);
  if (!shares) return nullptr;
  try {
    if (place.nodes == 1) return std::make_unique<comm::SharedCommunicator>(mpi, place);
    return std::make_unique<comm::TwoLevelCommunicator>(mpi, place);
  } catch (const comm::AgreedError& error) {
    if (backend == "shared") throw;
    if (mpi.rank() == 0)
      print_warning(std::string("backend auto takes MPI alone: ") + error.what());
    return nullptr;
  }
}

void run_over_threads(std::uint64_t ranks, const RankBody& body) {
  if (ranks > most_threads) {
    throw ConfigError("ranks: " + std::to_string(ranks) + " threads are more than " +
                          std::to_string(most_threads),
                      "start that many ranks as processes, with mpirun");
  }
  comm::run_ranks(static_cast<int>(ranks), [&](comm::Communicator& comm) {
    try {
      body(comm);
    } catch (const comm::AgreedError&) {
      throw;
    } catch (const std::exception& error) {
      if (comm.size() == 1) throw;
      throw Error(static_cast<ExitCode>(exit_code(error)),
                  "rank " + std::to_string(comm.rank()) + ": " + what_of(error));
    }
  });
}

}  // namespace lockstep::launch
