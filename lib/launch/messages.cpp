#include "lockstep/launch/messages.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::launching {
namespace {

/// Writes the line in one call, so that lines of several ranks do not mix.
void print_to_stderr(Level level, const std::string& text) {
  const std::string name = level == Level::error ? "error" : "warning";
  const std::string colour = level == Level::error ? "\033[31m\033[1m" : "\033[33m\033[1m";
  const std::string word = has_colours() ? colour + name + "\033[m" : name;
  std::fputs((program_invocation_short_name + (": " + word) + ": " + text + "\n").c_str(), stderr);
}

void (*message_printer)(Level level, const std::string& text) = print_to_stderr;

/// What fmt::print throws if stdout cannot be written; null: another error.
const std::system_error* error_of_stdout(const std::exception& error) noexcept {
  return std::ferror(stdout) != 0 ? dynamic_cast<const std::system_error*>(&error) : nullptr;
}

}  // namespace

int exit_code(const std::exception& error) noexcept {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr) return static_cast<int>(known->code());
  return static_cast<int>(error_of_stdout(error) != nullptr ? ExitCode::output
                                                            : ExitCode::internal);
}

std::string what_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  const auto* of_stdout = error_of_stdout(error);
  return of_stdout != nullptr ? stdout_error(of_stdout->code().value()).what() : error.what();
}

void set_message_printer(void (*printer)(Level level, const std::string& text)) noexcept {
  message_printer = printer;
}

bool has_colours() {
  const char* const none = std::getenv("NO_COLOR");
  return ::isatty(STDERR_FILENO) == 1 && (none == nullptr || *none == '\0');
}

void print(const std::exception& error) {
  const bool stopped = exit_code(error) == static_cast<int>(ExitCode::stopped);
  stopped ? print_warning(what_of(error)) : print_error(what_of(error));
}

void print_error(const std::string& text) { message_printer(Level::error, presentable(text)); }

void print_warning(const std::string& text) { message_printer(Level::warning, presentable(text)); }

}  // namespace lockstep::launching
