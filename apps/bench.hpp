// `lockstep bench`.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Measures one part of Lockstep by itself: the first word says which. Returns the exit code.
/// Errors   throws ConfigError for another word; else as run_on_ranks.
int bench_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps
