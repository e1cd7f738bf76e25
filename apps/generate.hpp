// `lockstep generate`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Writes the built-in data set as files of any format into a folder. No MPI.
/// Errors   throws ConfigError and OutputError.
int generate_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
