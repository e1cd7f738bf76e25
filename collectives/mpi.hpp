// MpiCommunicator: ranks are the processes of an MPI job. MpiSession: MPI_Init and MPI_Finalize.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/collectives/communicator.hpp"

namespace lockstep::comm {
class PeerWatch;

/// All ranks of the job, on a duplicate of MPI_COMM_WORLD.
///
/// Requires an MpiSession that outlives it; used only by the thread that created the session.
///
/// place()  nodes are groups of ranks that can share memory (MPI_COMM_TYPE_SHARED), so two
///          containers on one machine count as two; host is MPI_Get_processor_name.
/// Sums     the same bits on all ranks of a run; they depend on the number of ranks and on the
///          version of MPI.
/// Errors   CommError with the MPI call and MPI's text. A failed peer is not reported: MPI waits
///          indefinitely, or the launcher terminates the job. See watch_peers() for one that has
///          finished.
class MpiCommunicator final : public Communicator {
 public:
  /// Larger messages are split into several MPI calls, whose counts are int.
  static constexpr std::size_t longest_call = std::size_t{1} << 30;

  /// Collective over all ranks of the job. Only tests lower `elements_per_call`, equally on all.
  explicit MpiCommunicator(std::size_t elements_per_call = longest_call);
  ~MpiCommunicator() override;

  /// From now on a PeerWatch calls `on_left`, from its thread, if a collective of this rank waits
  /// for a rank that has called finish(): a collective of this communicator, or of one that split()
  /// has made of it.
  ///
  /// Errors   throws AgreedError (2) if a rank cannot open a socket or start the thread.
  /// Ranks    collective over all ranks of the job; called at most once.
  void watch_peers(const std::function<void(const RankLeft&)>& on_left);

  /// Waits until all ranks have called it. After watch_peers() it notifies the others every
  /// second that this one calls no more collectives. Collective.
  ///
  /// Call it before MPI_Finalize: mpirun 4.1.4 can crash, or wait for ever, if a rank calls
  /// MPI_Abort while another is in MPI_Finalize.
  void finish();

  const char* backend() const noexcept override { return "mpi"; }
  const Place& place() const noexcept override { return place_; }

 private:
  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;
  void broadcast_slices(Elements values, int root);
  void exchange(const std::byte* send, int to, Elements receive, int from);

  struct State;  // the MPI_Comm: this header needs no mpi.h
  class InCollective;
  MpiCommunicator(std::unique_ptr<State> state, std::size_t elements_per_call);

  std::unique_ptr<State> state_;
  std::size_t elements_per_call_;
  Place place_;
  std::unique_ptr<PeerWatch> watch_;
};

/// Initialises MPI, and finalizes it in the destructor. Must outlive all objects that use MPI.
///
/// The entry point creates one before any other use of MPI. The thread level is
/// MPI_THREAD_FUNNELED: only the thread that created the session may call MPI (except abort_job).
///
/// Environment  sets variables that are not set: they disable Open MPI's signal handlers, and its
///              search for devices on machines without a fast fabric (see the source).
/// Errors       CommError if MPI cannot start or lacks the thread level; ConfigError if MPI is
///              already initialised or finalized: a process may start it only once.
/// Ranks        constructor and destructor are collective. During stack unwinding the destructor
///              does not finalize, because peers may not call it: the launcher then terminates the
///              job.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  int exceptions_;
};

/// Terminates the job with exit code `code`, even while peers wait in a collective. Local.
///
/// Removes the temporary files of this process, and does not flush output. Any thread may call it.
/// If MPI is not running, terminates this process.
///
/// With launcher_recovers() the launcher gets SIGTERM instead, because it ignores MPI_Abort and
/// exit codes: mpirun 4.1.4 then returns 1. With srun_recovers(), after finalize_mpi(), Slurm kills
/// the step.
[[noreturn]] void abort_job(int code) noexcept;

/// Ends the launcher, with code 1, if it is mpirun and the parent of this process; else returns
/// false. Local.
bool end_launcher() noexcept;

/// MPI_Finalize, before an end of the process that runs no destructors. Collective.
void finalize_mpi() noexcept;

/// True if a daemon of mpirun's started this process: then it is on another host than mpirun.
/// Local.
bool is_child_of_daemon();

/// True if mpirun lets the other ranks run when one ends: `--mca orte_enable_recovery 1`. Local.
/// See also srun_recovers().
bool launcher_recovers();

/// True if every rank of the job calls this within `seconds`. A rank calls it before it exits
/// because of an error that all ranks should have. If false, peers may be waiting in a collective:
/// call abort_job().
///
/// Errors   throws CommError.
/// Ranks    collective; called at most once.
bool all_ranks_leave(double seconds);

/// A collective of MPI's own, for measurements beside those of a Communicator.
enum class MpiCall { all_reduce, all_gather, broadcast, all_to_all, shift };

/// "MPI_Allreduce", "MPI_Allgather", "MPI_Bcast", "MPI_Alltoall", "MPI_Sendrecv". Local.
const char* name_of(MpiCall call) noexcept;

/// One call of MPI on MPI_COMM_WORLD, as a program without Lockstep would make it. Blocks are as in
/// Communicator; all_gather sends one block, and broadcast has root 0.
///
/// Shapes   `receive`: all blocks. `send`: what this rank sends, of the same length (all_gather: of
///          a block); empty: in place (MPI_IN_PLACE, MPI_Sendrecv_replace). broadcast is in place
///          always.
/// Errors   throws CommError; std::invalid_argument for more than MpiCommunicator::longest_call
///          elements.
/// Ranks    collective over all ranks of the job.
void call_mpi(MpiCall call, std::span<const float> send, std::span<float> receive, Op op = Op::sum);

/// Name and version of the MPI library, e.g. "Open MPI v4.1.4"; needs no session. Local.
std::string mpi_version();

}  // namespace lockstep::comm
