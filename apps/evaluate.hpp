// `lockstep evaluate`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Loss and accuracy of a checkpoint on a test set, every example once, over all ranks of this job.
/// `words` follow `lockstep evaluate`. Returns the exit code; see run_on_ranks for errors.
int evaluate_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
