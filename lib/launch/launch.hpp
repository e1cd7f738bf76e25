// A program's main: the same body on every rank, however the program was started.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "collectives/communicator.hpp"
#include "collectives/launcher.hpp"
#include "collectives/mpi.hpp"

namespace lockstep {
// Ranks: processes that a launcher started, or threads of this process.

/// One rank's part of a program. What it throws as comm::AgreedError, all ranks throw.
using RankBody = std::function<void(comm::Communicator&)>;

namespace launch {

using MpiRankBody = std::function<void(comm::MpiCommunicator&)>;

/// Whether this process is one of the ranks that `launch` started, and so belongs to an MPI world.
///
/// It is not where nobody launched it, in the shell of a batch script, and as a Slurm step of one
/// task without PMIx, such as an interactive shell, where MPI would not even start. Local.
bool is_rank(const std::optional<comm::Launch>& launch);

/// Refuses the shell of a batch script, which is one process in the place of many. Local.
///
/// Errors   throws ConfigError that says how to start `program` there.
void require_no_batch_shell(const std::optional<comm::Launch>& launch, const std::string& program);

/// Runs `body` as one rank of the MPI world that `launch` promised (or of a world of one).
///
/// Returns the exit code. Errors are printed here: one that all ranks share once, by rank 0; any
/// other by the rank that met it, which then ends the whole job, for its peers may be waiting. So
/// does one that only some ranks share: others have not come to leave within seconds.
int run_over_mpi(const std::optional<comm::Launch>& launch, const MpiRankBody& body);

/// The same ranks, of which those of a node share memory, where `backend` asks for that; null for
/// MPI alone. "auto": where nodes hold several ranks that can; a warning says where they cannot.
///
/// Errors   throws comm::AgreedError (2) where "shared" cannot be honoured.
/// Ranks    collective.
std::unique_ptr<comm::Communicator> share_nodes(const std::string& backend,
                                                comm::MpiCommunicator& mpi);

/// Runs `body` on `ranks` threads. Throws the first failure, naming its rank where it is one's own;
/// ConfigError for more threads than anybody can mean.
void run_over_threads(std::uint64_t ranks, const RankBody& body);

}  // namespace launch

/// Runs `body` on every rank and returns what main() shall return.
///
///   int main(int argc, char** argv) { return lockstep::run_replicas(argc, argv, program); }
///
/// Under mpirun or srun the ranks are the processes that were started; those of one machine share
/// memory. Elsewhere they are `threads` threads of this process, each with a communicator of its
/// own; `body` is shared by them.
/// Errors   never throws. Prints "PROGRAM: error: ..." once: what all ranks share by rank 0, any
///          other error by the rank that met it, with its number; the whole job then ends. Returns
///          the exit code of the error (ExitCode), or output (74) where stdout cannot be written.
/// Ranks    called once, by main(), before anything else touches MPI.
int run_replicas(std::uint64_t threads, const RankBody& body) noexcept;

/// The same for programs that take `--ranks N`, threads, and no other words. One rank unless given.
///
/// Errors   other words, and `--ranks` under a launcher, which says how many there are, end with
///          code 2.
int run_replicas(int argc, char** argv, const RankBody& body) noexcept;

}  // namespace lockstep

namespace lockstep::launch {
// How a program ends when something went wrong.

/// The documented exit code of `error`; internal (1) for what no user caused. Local.
int exit_code(const std::exception& error) noexcept;

/// What to tell a person about `error`. Local.
std::string what_of(const std::exception& error);

/// Prints "PROGRAM: error: ..." to stderr, whole lines at once; in colour on a terminal. Local.
void print_error(const std::string& text);

/// The same with "warning". Local.
void print_warning(const std::string& text);

enum class Level { warning, error };

/// Makes both of the above call `printer` instead: the command writes options as its flags, and has
/// a logger of its own. Called by main(), before any rank runs.
void set_message_printer(void (*printer)(Level level, const std::string& text)) noexcept;

}  // namespace lockstep::launch
