// The layers of a network with their sizes: `lockstep plan --network`.
#pragma once

#include "apps/settings.hpp"

namespace lockstep::apps {

/// Prints the layers of the network that `lockstep train` trains with these settings: output shape,
/// parameters, FLOPs of an example and memory of a rank, and their totals; with `json` as one line.
///
/// Errors   throws ConfigError and DataError as training does: data, network or plan that cannot
///          be.
/// Ranks    local.
void print_network(const RunConfig& config, bool json);

}  // namespace lockstep::apps
