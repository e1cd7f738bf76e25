// `lockstep plan --predict`: a measured step on more ranks, by a model of latency and bandwidth.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli.hpp"

namespace lockstep::apps {

/// What is predicted.
struct ScalingArguments {
  std::string file;                ///< of `bench step --json`
  std::uint64_t max_ranks = 4096;  ///< that are predicted
  std::uint64_t ranks_a_host = 8;
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
