// `lockstep bench data`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Reads the training set on all ranks as the plan of `lockstep train` says, without training, and
/// says how fast that was. Returns the exit code. Errors as run_on_ranks.
int bench_data_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
