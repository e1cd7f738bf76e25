// Words of a command line, parsed by cxxopts, with errors in our terms.
#pragma once

#include <cxxopts.hpp>
#include <string>
#include <vector>

namespace lockstep::apps {

/// Parses what follows `command`, as "lockstep train".
///
/// Errors   throws ConfigError: what cxxopts refuses, and where to read on.
cxxopts::ParseResult parse_words(cxxopts::Options& options, const std::string& command,
                                 const std::vector<std::string>& words);

}  // namespace lockstep::apps
