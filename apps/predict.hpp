// `lockstep predict`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Writes what a checkpoint takes every example of a test set for, over all ranks of this job.
/// `words` follow `lockstep predict`. Returns the exit code; see run_on_ranks for errors.
int predict_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
