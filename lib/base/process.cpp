#include "lockstep/base/process.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// The number in a file; `otherwise` if there is none ("max", or no file).
std::uint64_t number_in_file(const fs::path& path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : otherwise;
}

/// True if the comma-separated `list` contains `word`.
bool lists(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// A mounted tree of control groups that limit memory.
struct GroupTree {
  bool v2 = false;
  fs::path point;        // where it is mounted
  fs::path group = "/";  // the group at that folder

  const char* limit() const { return v2 ? "memory.max" : "memory.limit_in_bytes"; }
};

/// The usual trees, and those of proc(5)'s mountinfo: "36 35 98:0 GROUP POINT OPTIONS [FIELD...] -
/// TYPE SOURCE OPTIONS".
std::vector<GroupTree> group_trees(const fs::path& proc) {
  std::vector<GroupTree> trees = {{true, "/sys/fs/cgroup"}, {false, "/sys/fs/cgroup/memory"}};
  std::ifstream file(proc / "self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream mount(line.substr(0, dash));
    std::istringstream kind(line.substr(dash + 3));
    std::string skipped, group, point, type, source, options;
    mount >> skipped >> skipped >> skipped >> group >> point;
    kind >> type >> source >> options;
    const bool v2 = type == "cgroup2";
    if (v2 || (type == "cgroup" && lists(options, "memory"))) trees.push_back({v2, point, group});
  }
  return trees;
}

/// This process's group in the tree of v2, or in v1's of memory, from cgroups(7)'s lines
/// "4:memory,cpu:/a/b" and, for v2, "0::/a/b"; "/" if none.
fs::path own_group(const fs::path& proc, bool v2) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string tree, controllers, group;
    std::getline(fields, tree, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, group);
    if (v2 ? tree == "0" && controllers.empty() : lists(controllers, "memory")) return group;
  }
  return "/";
}

/// `group` as seen from the group that is mounted; empty if that lies beside it, which
/// cgroup_namespaces(7) write as "/../b".
fs::path below(const fs::path& mounted, const fs::path& group) {
  if (group.string().starts_with("/..")) return {};
  const fs::path relative = group.lexically_relative(mounted);
  const bool inside = !relative.empty() && *relative.begin() != "..";
  return inside ? relative : group.relative_path();
}

/// A descriptor that becomes readable when the process ends; below 0: see errno.
int open_process(std::int32_t id) noexcept {
  return static_cast<int>(::syscall(SYS_pidfd_open, id, 0));
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

ProcessStat process_stat(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');  // the name may contain blanks
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat found;
  fields >> found.state;
  constexpr int between = 18;  // fields, from the state to the start, which is field 22
  std::string skipped;
  for (int i = 0; i < between; ++i) fields >> skipped;
  fields >> found.start;
  return found;
}

std::string program_of(int process) {
  std::string name;
  std::ifstream file("/proc/" + std::to_string(process) + "/comm");
  std::getline(file, name);
  return name;
}

std::vector<std::string> process_words(int process, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(process) + '/' + file);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(std::move(word));
  return words;
}

std::optional<std::vector<int>> children_of(int process) {
  std::error_code error;
  std::optional<std::vector<int>> children;
  const auto threads = list_folder("/proc/" + std::to_string(process) + "/task", error);
  for (const auto& thread : threads) {  // several of them may start processes
    std::ifstream list(thread.path() / "children");
    if (!list) continue;
    if (!children) children.emplace();
    for (int child = 0; list >> child;) {
      const char state = process_stat(child).state;
      if (state != 0 && state != 'Z') children->push_back(child);
    }
  }
  return children;
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double process_age_seconds() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double started = static_cast<double>(process_stat(::getpid()).start) /
                         static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started;
}

std::uint64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");  // getrusage() also has the process before exec
  for (std::string word; status >> word;) {
    std::uint64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

std::uint64_t memory_limit_bytes(const fs::path& root) {
  const fs::path proc = root / "proc";
  auto least = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
               static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  for (const GroupTree& tree : group_trees(proc)) {
    fs::path folder = root / tree.point.relative_path();
    least = std::min(least, number_in_file(folder / tree.limit(), least));
    for (const fs::path& name : below(tree.group, own_group(proc, tree.v2))) {
      folder /= name;
      least = std::min(least, number_in_file(folder / tree.limit(), least));
    }
  }
  return least;
}

int bound_cores() {
  constexpr std::array<std::int32_t, 1> calling = {0};
  return cores_of(calling);
}

int machine_cores() { return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))); }

int cores_of(std::span<const std::int32_t> processes) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const std::int32_t process : processes) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(process, sizeof set, &set) != 0) return machine_cores();
    CPU_OR(&all, &all, &set);
  }
  return std::max(1, CPU_COUNT(&all));
}

std::uint64_t executable_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Hash hash;
  std::array<char, 1 << 16> block{};
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    hash.add_bytes(std::as_bytes(std::span(block.data(), static_cast<std::size_t>(file.gcount()))));
  }
  return hash.value();
}

ProcessWatch::~ProcessWatch() {
  for (const pollfd& one : watched_) {
    if (one.fd >= 0) ::close(one.fd);
  }
}

bool end_process(std::int32_t id, std::chrono::milliseconds patience) noexcept {
  const int target = open_process(id);
  // Not fork(), which waits for locks of other threads. The copy calls what a signal handler may.
  const pid_t waiter = target < 0 ? -1 : ::_Fork();
  if (waiter == 0) {
    const auto kept = static_cast<unsigned>(target);  // others wait for the ends of pipes
    if (kept > 0) ::close_range(0, kept - 1, 0);
    ::close_range(kept + 1, ~0U, 0);
    pollfd end = {.fd = target, .events = POLLIN, .revents = 0};
    int ended = 0;
    do {
      ended = ::poll(&end, 1, static_cast<int>(patience.count()));
    } while (ended < 0 && errno == EINTR);
    if (ended == 0) ::kill(id, SIGKILL);
    ::_exit(0);
  }
  if (waiter > 0) ::setpgid(waiter, waiter);  // mpirun signals the groups of its ranks
  if (target >= 0) ::close(target);
  return ::kill(id, SIGTERM) == 0;
}

void ProcessWatch::add(std::int32_t id) {
  const int descriptor = open_process(id);
  const bool gone = descriptor < 0 && errno == ESRCH;
  by_id_ = by_id_ || descriptor < 0;
  watched_.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  ids_.push_back(gone ? 0 : id);
}

bool ProcessWatch::has_ended(std::size_t index) {
  pollfd one = watched_[index];
  if (one.fd >= 0) return ::poll(&one, 1, 0) == 1;
  return ids_[index] == 0 || (::kill(ids_[index], 0) != 0 && errno == ESRCH);
}

std::optional<std::size_t> ProcessWatch::first_ended() {
  if (::poll(watched_.data(), watched_.size(), 0) <= 0 && !by_id_) return std::nullopt;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (has_ended(i)) return i;
  }
  return std::nullopt;
}

void fail_to_start_thread(const std::string& purpose, const std::system_error& error) {
  throw Error(ExitCode::usage, "cannot start a thread " + purpose + ": " + error.code().message(),
              "raise the limits of processes and of memory (`ulimit -u`, `ulimit -v`, pids.max and "
              "memory.max of a container), or use fewer ranks or `threads`");
}

bool sleep_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds duration) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, duration, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace lockstep
