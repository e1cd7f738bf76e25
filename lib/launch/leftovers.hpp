// Files of MPI jobs that were killed: Open MPI's segments and session folders.
//
// Open MPI 4 and 5 keep a segment for each rank in /dev/shm, vader_segment.HOST.UID.JOB.RANK or
// sm_segment..., and Open MPI 4 a folder TMPDIR/ompi.HOST.UID/pid.PID for each mpirun of this
// process id (jf.JOB where another process started the ranks). mpirun removes both when it ends,
// but not if it is killed by SIGKILL, as `timeout -k`, batch systems and the kernel do when memory
// is short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::launching {

/// Where Open MPI keeps the files of this user's jobs on this host.
struct MpiFolders {
  std::filesystem::path segments = "/dev/shm";
  std::filesystem::path sessions;  ///< TMPDIR/ompi.HOST.UID
};

/// The folders of this host, by the environment. Local.
MpiFolders mpi_folders();

/// A segment or a session folder of this user that no process is known to use.
struct Leftover {
  std::filesystem::path path;
  std::uint64_t bytes = 0;  ///< of memory, or of disk
  std::uint64_t hours = 0;  ///< since it was last changed
  /// No process uses it, and no running job will: it is safe to remove.
  bool is_dead = false;
};

/// What is left in `folders`, sorted by path. Files that are in use, or younger than ten seconds,
/// are not listed.
///
/// A segment is dead if the kernel grants a read lease, so that no process has mapped it; a folder
/// pid.PID if this holds for its files and the process PID does not exist. Without leases in the
/// file system, and for folders jf.JOB, is_dead is false.
/// Errors   none: what cannot be read is not listed.
/// Ranks    local; the same for every process of a host.
std::vector<Leftover> mpi_leftovers(const MpiFolders& folders = mpi_folders());

/// A message about those of `leftovers` that are not dead (the five largest), with the command that
/// removes them. Empty without any. Pure.
std::string text_of(std::span<const Leftover> leftovers);

/// Removes what is dead, and returns the number of segments and folders. Local; safe beside other
/// jobs and other processes that call it.
std::size_t remove_mpi_leftovers(const MpiFolders& folders = mpi_folders()) noexcept;

}  // namespace lockstep::launching
