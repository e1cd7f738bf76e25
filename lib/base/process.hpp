// Memory, cores, age and executable of this process, as reported by the operating system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

/// Seconds since the kernel started this process; resolution 10 ms.
double process_age_seconds();

/// The peak resident memory of this process so far.
std::uint64_t peak_rss_bytes();

/// Bytes of memory available to this process: the machine's, or the least limit of its control
/// group and of those above it, as batch systems and containers set them.
///
/// Reads /proc/self/cgroup, /proc/self/mountinfo and, where they are mounted, `memory.max` of
/// control groups v2 and `memory.limit_in_bytes` of v1. What cannot be read limits nothing: in a
/// container, groups may have names that do not exist in it.
///
/// `root`    the folder that holds proc/ and sys/; tests give another.
std::uint64_t memory_limit_bytes(const std::filesystem::path& root = "/");

/// Cores that this process may run on: those bound by the launcher, or all.
int bound_cores();

/// Cores of the machine that are online.
int machine_cores();

/// Cores for one of `local_ranks` ranks on this machine; at least 1. Ranks that are threads share
/// bound_cores() equally.
int own_cores(int local_ranks, bool are_threads);

/// Hash of the running executable's bytes, to compare builds.
std::uint64_t executable_hash();

}  // namespace lockstep
