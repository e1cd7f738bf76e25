// `lockstep generate`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Writes the built-in data set as IDX files into a folder. Returns the exit code. No MPI.
/// Errors   throws ConfigError and OutputError.
int generate_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
