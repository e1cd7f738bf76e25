// What settings ask of a device.
#pragma once

#include <optional>

#include "lib/train/config.hpp"
#include "lib/train/device.hpp"

namespace lockstep::apps {

/// Where `config` says that replicas live: on a device so, or, where there is nothing, on this
/// processor. Without its rows, which the caller knows.
///
/// Errors   throws ConfigError for settings that cannot be honoured there. Local.
std::optional<train::DeviceOptions> device_options(const train::RunConfig& config,
                                                   std::uint64_t ranks);

/// Warns, on rank 0, of what a device's replicas cannot have here: an exchange of their own.
void warn_of_staging(const train::DeviceReplica& replica, const comm::Communicator& comm);

}  // namespace lockstep::apps
