// The parts of `lockstep plan` beside the data plan: a network's layers, and steps on more ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

/// The arguments of --predict.
struct ScalingArguments {
  std::string file;                ///< of `bench step --json`
  std::uint64_t max_ranks = 4096;  ///< that are predicted
  std::uint64_t ranks_a_host = 0;
  double latency = 0;                  ///< seconds between hosts
  double bandwidth = 0;                ///< bytes per second between hosts
  std::optional<std::uint64_t> batch;  ///< nullopt: as measured
  bool json = false;
};

/// The flags of the command line that belong to --predict, which is one of them.
const std::vector<Flag>& scaling_flags();

/// Throws ConfigError for settings and flags that --predict does not heed.
ScalingArguments scaling_arguments(const Arguments& given);

/// Prints the table, or a line of JSON. Throws DataError: see train::read_measured_step().
void print_scaling(const ScalingArguments& arguments);

}  // namespace lockstep::apps
