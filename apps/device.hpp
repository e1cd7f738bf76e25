// What settings ask of a device.
#pragma once

#include <optional>

#include "apps/settings.hpp"
#include "lib/train/device.hpp"

namespace lockstep::apps {

/// What `config` asks of a device, but for the rows, which the caller knows; nothing where replicas
/// live on this processor.
///
/// Errors   throws ConfigError for settings that cannot be honoured there. Local.
std::optional<train::DeviceOptions> device_options(const RunConfig& config, std::uint64_t ranks);

/// Warns, on rank 0, of what a device's replicas cannot have here: an exchange of their own.
void warn_of_staging(const train::DeviceReplica& replica, const comm::Communicator& comm);

}  // namespace lockstep::apps
