// How the command ends when something went wrong.
#pragma once

#include <exception>
#include <string>

namespace lockstep::apps {

/// The documented exit code of `error`; internal (1) for what no user caused.
int exit_code(const std::exception& error) noexcept;

/// What to tell a person about `error`.
std::string what_of(const std::exception& error);

/// Prints "lockstep: error: ..." to stderr.
void print_error(const std::string& text);

}  // namespace lockstep::apps
