// The command line of `lockstep plan`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/train/config.hpp"

namespace lockstep::apps {

/// What one `lockstep plan` was asked for.
struct PlanArguments {
  train::RunConfig config;
  std::optional<std::uint64_t> range;               ///< records 0 to N - 1
  std::optional<std::vector<std::uint64_t>> files;  ///< records of imagined files
  std::optional<std::uint64_t> record_bytes;        ///< of one record
  std::uint64_t epoch = 0;                          ///< from 0
  bool ranks_given = false;
  bool json = false;
  bool ids = false;
  bool help = false;
};

/// Takes the words after `lockstep plan`, and reads the run file that they name.
///
/// Errors   throws ConfigError: unknown flag (with the nearest valid name), bad value or run file,
///          records from more than one place, more than a million ranks.
PlanArguments parse_plan_arguments(const std::vector<std::string>& words);

/// Text of `lockstep plan --help`.
std::string plan_help();

}  // namespace lockstep::apps
