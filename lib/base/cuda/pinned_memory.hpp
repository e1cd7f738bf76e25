// Memory of the host that devices copy by themselves, as containers take it.
#pragma once

#include <memory_resource>

namespace lockstep::cuda {

/// Pinned memory, page-aligned. Lives as long as the process. Any thread whose device is set.
/// Errors   allocate() throws ConfigError (2) where no more can be pinned.
std::pmr::memory_resource& pinned_memory() noexcept;

}  // namespace lockstep::cuda
