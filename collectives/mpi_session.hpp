// The lifetime of MPI in this process, and the one way to end a job from one rank.
#pragma once

#include <string>

namespace lockstep::comm {

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
