// Errors and warnings of a program on stderr, and its exit codes.
#pragma once

#include <exception>
#include <string>

namespace lockstep::launching {

enum class Level { warning, error };

/// The exit code of `error`: that of a lockstep::Error; output (74) if stdout could not be written;
/// else internal (1). Local.
int exit_code(const std::exception& error) noexcept;

/// The message of `error`. Local.
std::string what_of(const std::exception& error);

/// Prints what_of(error): a requested stop (ExitCode::stopped) as a warning, else an error. Local.
void print(const std::exception& error);

/// True if messages on stderr are in colour: on a terminal, unless the environment has NO_COLOR
/// (no-color.org). Local.
bool has_colours();

/// Prints "PROGRAM: error: ..." to stderr, in one write; in colour if has_colours(). Local.
void print_error(const std::string& text);

/// The same with "warning". Local.
void print_warning(const std::string& text);

/// Makes print_error and print_warning call `printer` instead: the command renders options as flags
/// and has its own logger. Call it in main(), before any rank runs.
void set_message_printer(void (*printer)(Level level, const std::string& text)) noexcept;

}  // namespace lockstep::launching
