// `lockstep compare`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Says where two recorded runs part. No MPI. Returns 0 where they do not, and 1 where they do, as
/// cmp does.
/// Errors   throws ConfigError and DataError.
int compare_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
