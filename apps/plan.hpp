// `lockstep plan`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Says which rank would read which record at which step, and proves it. No MPI.
///
/// Errors   throws ConfigError for flags and plans that cannot be honoured, DataError for data.
int plan_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
