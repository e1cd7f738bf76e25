// Memory, cores, age and executable of this process, from the operating system.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Seconds since the kernel started this process; resolution 10 ms.
double process_age_seconds();

/// The greatest resident memory of this process so far.
std::uint64_t peak_rss_bytes();

/// Bytes of memory that this process may use: of the machine, or of its control group if less.
std::uint64_t memory_limit_bytes();

/// Cores that this process may run on: what the launcher bound, or all of them.
int bound_cores();

/// Cores of the machine that are online.
int machine_cores();

/// Cores for one of `local_ranks` ranks on this machine; at least 1. Ranks that are threads divide
/// bound_cores() between them.
int own_cores(int local_ranks, bool are_threads);

/// Hash of the running executable's bytes, to compare builds.
std::uint64_t executable_hash();

}  // namespace lockstep
