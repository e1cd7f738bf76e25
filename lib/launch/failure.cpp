#include "lib/launch/failure.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>

#include "lib/base/errors.hpp"

namespace lockstep::launch {
namespace {

/// One call writes it all: lines of several ranks do not tear.
void print(const std::string& colour, const std::string& level, const std::string& text) {
  const bool coloured = ::isatty(STDERR_FILENO) == 1;
  const std::string word = coloured ? colour + level + "\033[m" : level;
  std::fputs((program_invocation_short_name + (": " + word) + ": " + text + "\n").c_str(), stderr);
}

}  // namespace

int exit_code(const std::exception& error) noexcept {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr) return static_cast<int>(known->code());
  const bool lost_output = std::ferror(stdout) != 0;  // fmt::print throws a system_error of its own
  return static_cast<int>(lost_output ? ExitCode::output : ExitCode::internal);
}

std::string what_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return error.what();
}

void print_error(const std::string& text) { print("\033[31m\033[1m", "error", text); }

void print_warning(const std::string& text) { print("\033[33m\033[1m", "warning", text); }

}  // namespace lockstep::launch
