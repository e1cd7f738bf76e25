#include "lockstep/base/process.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

#include "lockstep/base/hash.hpp"

namespace lockstep {
namespace {

/// The number in a file; `otherwise` if there is none ("max", or no file).
std::uint64_t number_in(const char* path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : otherwise;
}

}  // namespace

double process_age_seconds() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));  // the name may contain spaces
  std::string field;
  constexpr int start_time = 20;  // proc(5): field 22, counted from the state, field 3
  for (int i = 0; i < start_time; ++i) fields >> field;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double started = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started;
}

std::uint64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

std::uint64_t memory_limit_bytes() {
  const auto machine = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  return std::min({machine, number_in("/sys/fs/cgroup/memory.max", machine),
                   number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", machine)});
}

int bound_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return machine_cores();
  return std::max(1, CPU_COUNT(&set));
}

int machine_cores() { return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))); }

int own_cores(int local_ranks, bool are_threads) {
  const int shared = std::max(1, local_ranks);
  return std::max(
      1, are_threads ? bound_cores() / shared : std::min(bound_cores(), machine_cores() / shared));
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

}  // namespace lockstep
