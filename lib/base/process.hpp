// What the operating system knows about this process and its machine.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Seconds since the kernel started this process; resolution 10 ms.
double process_age_seconds();

/// The greatest resident memory of this process so far.
std::uint64_t peak_rss_bytes();

/// Memory that this process may use: that of the machine, or of its control group if less.
std::uint64_t memory_limit_bytes();

/// Cores that this process may run on: what the launcher bound, or all of them.
int bound_cores();

/// Cores of the machine that are online.
int machine_cores();

/// Cores of one of `local_ranks` ranks on this machine, without those of its neighbours; at
/// least 1. Ranks that are threads share what this process may use.
int own_cores(int local_ranks, bool are_threads);

/// Hash of the running executable's bytes: equal iff the same build.
std::uint64_t executable_hash();

}  // namespace lockstep
