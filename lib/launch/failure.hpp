// How a program ends when something went wrong.
#pragma once

#include <exception>
#include <string>

namespace lockstep::launch {

/// The documented exit code of `error`; internal (1) for what no user caused. Local.
int exit_code(const std::exception& error) noexcept;

/// What to tell a person about `error`. Local.
std::string what_of(const std::exception& error);

/// Prints "PROGRAM: error: ..." to stderr, whole lines at once; in colour on a terminal. Local.
void print_error(const std::string& text);

/// The same with "warning". Local.
void print_warning(const std::string& text);

}  // namespace lockstep::launch
