// `lockstep convert`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Writes a data set again, in another format or other files. Returns the exit code. No MPI.
/// Errors   throws ConfigError, DataError and OutputError.
int convert_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
