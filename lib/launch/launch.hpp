// run_replicas(): runs a function on every rank, over MPI or as threads, as a program's main(). An
// exception of any rank is printed, and ends the job with the documented exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/launch/messages.hpp"

namespace lockstep {
namespace comm {
struct Launch;
class MpiCommunicator;
}  // namespace comm

/// The program of one rank. All ranks must throw a comm::AgreedError together.
using RankBody = std::function<void(comm::Communicator&)>;

/// Runs `body` on every rank and returns the exit code for main().
///
///   int main(int argc, char** argv) { return lockstep::run_replicas(argc, argv, program); }
///
/// Under mpirun or srun the ranks are the started processes; those of one machine share memory.
/// Otherwise they are `threads` threads of this process, which call `body` at the same time, each
/// with its own communicator.
/// Prints warnings to stderr, unless the program has set a handler (base/errors.hpp).
/// Errors   never throws. Prints "PROGRAM: error: ..." once: rank 0 prints an error of all ranks;
///          any other error is printed with the number of its rank, and the whole job ends. Returns
///          the exit code of the error (ExitCode), or output (74) where stdout cannot be written.
/// Ranks    call it once, in main(), before any use of MPI.
int run_replicas(std::uint64_t threads, const RankBody& body) noexcept;

/// The same for programs whose only argument is `--ranks N` (threads, default 1).
///
/// Errors   exit code 2 for other arguments, and for `--ranks` under a launcher.
int run_replicas(int argc, char** argv, const RankBody& body) noexcept;

/// The same for programs with arguments of their own: `body(comm, arguments)` gets all words but
/// `--ranks N`, and refuses those that it does not know. Words after "--" are all passed on.
///
/// Errors   exit code 2 for a misspelt `--ranks` (one letter: `--rank`) that is not after "--".
using RankProgram =
    std::function<void(comm::Communicator&, const std::vector<std::string>& arguments)>;
int run_replicas(int argc, char** argv, const RankProgram& body) noexcept;

// The parts of run_replicas(), for the `lockstep` command: they take types whose headers are not
// installed. A program with arguments of its own uses the overload with a RankProgram.
namespace launching {

/// `connected` is to be called, once, when the ranks have connected otherwise than over MPI, or
/// will not.
using MpiRankBody =
    std::function<void(comm::MpiCommunicator&, const std::function<void()>& connected)>;

/// True if this process is a rank of an MPI world, according to `launch`. Local.
///
/// False without a launcher, in the shell of a batch script, and in a Slurm step of one task
/// without PMIx, such as an interactive shell, where MPI cannot start.
bool is_rank(const std::optional<comm::Launch>& launch);

/// Throws ConfigError, with the command that starts `program`, if this process is the shell of a
/// batch script. Local.
void require_no_batch_shell(const std::optional<comm::Launch>& launch, const std::string& program);

/// Runs `body` as one rank of the MPI world of `launch` (or of one rank), and returns the exit
/// code.
///
/// Prints errors. A comm::AgreedError that all ranks throw is printed by rank 0. After any other
/// error, and after an AgreedError that not all ranks throw within 5 seconds, the rank prints it
/// and ends the whole job, because its peers may be waiting in a collective. If `body` has not
/// called `connected` after `start_seconds`, ends the process with code 86: MPI may wait for ever
/// for a rank that has ended. Under mpirun's recovery it ends also 2 seconds after another rank of
/// its host. First calls `before_timeout`, in another thread, if it is not empty.
/// Before MPI starts, one rank of each host removes what dead processes left of MPI.
int run_over_mpi(const std::optional<comm::Launch>& launch, const MpiRankBody& body,
                 double start_seconds = 600, const std::function<void()>& before_timeout = {});

/// A communicator over the ranks of `mpi` that uses shared memory within nodes, as `backend` asks;
/// null to use `mpi` itself. "auto": where a node has several ranks that can share memory; prints a
/// warning where they cannot. With `survives`, nodes communicate over TCP, which reports lost
/// ranks.
///
/// Errors   throws comm::AgreedError (2) where "shared" or `survives` cannot be honoured.
/// Ranks    collective.
std::unique_ptr<comm::Communicator> share_nodes(const std::string& backend,
                                                comm::MpiCommunicator& mpi, bool survives = false);

/// Runs `body` on `ranks` threads. Throws the first error, with the number of its rank unless it is
/// a comm::AgreedError; ConfigError for more than 1,024 threads.
void run_over_threads(std::uint64_t ranks, const RankBody& body);

/// Runs `body` on the ranks of `comm`. Whenever ranks end, or the network was silent for seconds,
/// runs it again on those that are left, with a communicator of their own, until it returns on all
/// of them; then ends the process, without MPI_Finalize where that would wait for lost ranks.
/// `body` must not keep anything in the memory() of a communicator.
///
/// An AgreedError is printed by the lowest rank. After any other error of a rank all ranks end;
/// under mpirun, on a host other than the launcher's, those of its host alone. Launchers that
/// recover ignore the exit code: `on_end` gets that of the job, on the lowest rank or on the one
/// with such an error, before any rank ends.
/// Errors   throws comm::AgreedError (2) if the launcher or the communicator does not permit it.
/// Ranks    collective.
[[noreturn]] void survive(comm::Communicator& comm, const RankBody& body,
                          const std::function<void(int code)>& on_end);

}  // namespace launching

}  // namespace lockstep
