// Ranks as the processes of an MPI job.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "collectives/communicator.hpp"

namespace lockstep::comm {
/// All ranks of the job, over a duplicate of MPI_COMM_WORLD that nobody else uses.
///
/// Owns the duplicate. Lives inside an MpiSession and is used by the thread that made that.
///
/// place()  nodes are groups of ranks that can share memory (MPI_COMM_TYPE_SHARED), so two
///          containers on one machine count as two; host is MPI_Get_processor_name.
/// Sums     the same bits on all ranks of a run, but not for other numbers of ranks, and not
///          between versions of MPI: who needs that, sums in an order of their own.
/// Errors   CommError with the MPI call and MPI's text. A dead peer is not reported: MPI waits
///          for ever, or the launcher ends the job.
class MpiCommunicator final : public Communicator {
 public:
  /// More elements than this go out in several MPI calls, whose counts are int.
  static constexpr std::size_t longest_call = std::size_t{1} << 30;

  /// Collective over all ranks of the job. Only tests lower `elements_per_call`, equally on all.
  explicit MpiCommunicator(std::size_t elements_per_call = longest_call);
  ~MpiCommunicator() override;

  const char* backend() const noexcept override { return "mpi"; }
  const Place& place() const noexcept override { return place_; }

 private:
  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  struct State;  // the MPI_Comm: this header needs no mpi.h
  MpiCommunicator(std::unique_ptr<State> state, std::size_t elements_per_call);

  std::unique_ptr<State> state_;
  std::size_t elements_per_call_;
  Place place_;
  std::pmr::vector<std::byte> packed_;
};

// The lifetime of MPI in this process, and the one way to end a job from one rank.

/// MPI from construction to destruction; everything that communicates over MPI lives within it.
///
/// The entry point makes one, before anything else touches MPI. It initialises MPI for
/// MPI_THREAD_FUNNELED: only the thread that made it may call MPI (abort_job apart).
///
/// Environment  sets defaults that the user has not set: no signal handlers of Open MPI's own,
///              and a quick start on machines without a fast fabric (see the source).
/// Errors       CommError where MPI cannot start or lacks the thread level; std::logic_error where
///              MPI is running or has ended already: a process starts it once.
/// Ranks        both ends are collective. While an exception unwinds, the destructor does not
///              finalize, for the peers may never come: the launcher then ends the job.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  int exceptions_;
};

/// Ends the whole job with exit code `code`; peers may be waiting in a collective. Local.
///
/// Flush your own output first. Any thread may call it. Where MPI does not run, it ends this
/// process alone.
[[noreturn]] void abort_job(int code) noexcept;

/// Whether every rank of the job calls this within so many seconds: asked before a rank leaves with
/// what it believes to be an error of all. Where it is false, peers wait in a collective for ranks
/// that will not come, and abort_job() is the only end.
///
/// Errors   throws CommError.
/// Ranks    collective; called at most once.
bool all_ranks_leave(double seconds);

/// Name and version of the MPI library, as "Open MPI v4.1.4"; needs no session. Local.
std::string mpi_version();

}  // namespace lockstep::comm
