// The parts of `lockstep plan` beside the data plan: a network's layers, and steps on more ranks.
#pragma once

#include <vector>

#include "apps/cli.hpp"
#include "apps/settings.hpp"

namespace lockstep::apps {

// `plan --network`: the layers of a network with their sizes.

/// Prints the layers of the network that `lockstep train` trains with these settings: output shape,
/// parameters, FLOPs of an example and memory of rank 0, and their totals; with `json` as one line.
///
/// Errors   throws ConfigError and DataError as training does: data, network or plan that cannot
///          be.
/// Ranks    local.
void print_network(const RunConfig& config, bool json);

// `plan --predict`: a measured step on more ranks, by a model of latency and bandwidth.

/// The flags of the command line that belong to --predict, which is one of them.
const std::vector<Flag>& scaling_flags();

/// Prints a table, or with --json a line of JSON.
///
/// Errors   throws ConfigError for settings and flags that have no effect with --predict, and
///          DataError as train::read_measured_step() does.
void print_scaling(const Arguments& given);

}  // namespace lockstep::apps
