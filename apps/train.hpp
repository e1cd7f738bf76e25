// `lockstep train`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Trains on all ranks of this job: under a launcher over MPI, else as threads of this process.
/// `words` follow `lockstep train`. Returns the exit code; prints errors itself, and ends the whole
/// job where other ranks might be waiting.
int train_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
