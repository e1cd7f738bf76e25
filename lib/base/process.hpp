// The process: its memory, cores, age and executable, as reported by the operating system; its
// threads; the end of other processes.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {

/// Name of this machine, from gethostname.
std::string host_name();

/// A process of this machine, from /proc/PID/stat.
struct ProcessStat {
  char state = 0;           ///< as in proc(5), 'Z' of a zombie; 0: there is no such process
  std::uint64_t start = 0;  ///< in clock ticks since boot
};
ProcessStat process_stat(int process);

/// The name of a process's program, of which the kernel keeps 15 characters; empty if there is no
/// such process.
std::string program_of(int process);

/// The words of a process's command line ("cmdline") or environment ("environ", NAME=VALUE); none
/// if they cannot be read.
std::vector<std::string> process_words(int process, const char* file);

/// The processes that a process started and that have not ended, as zombies have; nullopt if the
/// kernel does not tell.
std::optional<std::vector<int>> children_of(int process);

/// Seconds since 1970, by this host's clock.
double wall_clock();

/// Seconds since the kernel started this process; resolution 10 ms.
double process_age_seconds();

/// The peak resident memory of this process so far.
std::uint64_t peak_rss_bytes();

/// Bytes of memory available to this process: the machine's, or the least limit of its control
/// group and of those above it, as batch systems and containers set them.
///
/// Reads /proc/self/cgroup, /proc/self/mountinfo and, where they are mounted, `memory.max` of
/// control groups v2 and `memory.limit_in_bytes` of v1. Files that cannot be read are
/// ignored: in a container, groups may have names that do not exist in it.
///
/// `root`    the folder that holds proc/ and sys/; tests give another.
std::uint64_t memory_limit_bytes(const std::filesystem::path& root = "/");

/// Cores that this process may run on: those bound by the launcher, or all.
int bound_cores();

/// Cores of the machine that are online.
int machine_cores();

/// Number of cores on which at least one of these processes may run: machine_cores() where the
/// kernel does not tell.
int cores_of(std::span<const std::int32_t> processes);

/// Hash of the running executable's bytes, to compare builds.
std::uint64_t executable_hash();

/// Watches processes of this machine for their end, also as zombies.
///
/// Uses pidfds (Linux 5.3); where there are none, kill(pid, 0), which takes a zombie for a running
/// process. Not thread-safe.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// Watches process `id` from now on, under the next index (from 0). A process that does not exist
  /// counts as ended.
  void add(std::int32_t id);

  /// The lowest index of a process that has ended; nullopt if all run. One system call.
  std::optional<std::size_t> first_ended();

  /// True if the process of this index has ended.
  bool has_ended(std::size_t index);

 private:
  std::vector<pollfd> watched_;    // a negative descriptor: see ids_
  std::vector<std::int32_t> ids_;  // 0: does not exist
  bool by_id_ = false;             // a process is watched without a pidfd
};

/// Sends SIGTERM to a process, and SIGKILL if it has not ended after `patience`; that needs a pidfd
/// (Linux 5.3, and a free descriptor). Returns at once; another process waits, so the caller may
/// end. False if there is no such process. Local; any thread may call it.
bool end_process(std::int32_t id, std::chrono::milliseconds patience) noexcept;

/// Throws the Error (exit code 2) of start_thread().
[[noreturn]] void fail_to_start_thread(const std::string& purpose, const std::system_error& error);

/// Starts a thread that calls `work()`, or `work(std::stop_token)`; `work` must not throw.
///
/// `purpose` completes "a thread", for the error: "that reads batches".
/// Errors   throws Error with exit code 2 if the system permits no further thread.
template <class Work>
std::jthread start_thread(const std::string& purpose, Work work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    fail_to_start_thread(purpose, error);
  }
}

/// Sleeps in a thread; false, at once, if it is to end.
bool sleep_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds duration);

}  // namespace lockstep
