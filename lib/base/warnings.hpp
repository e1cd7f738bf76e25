// Warnings of libraries, which never print: the program decides what becomes of them.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

/// Called with the text of a warning, in the thread that found it, one call at a time.
using WarningHandler = std::function<void(const std::string& text)>;

/// Sets the handler of this process, null for none, and returns the one before; texts reported
/// before are reported again. run_replicas sets one that prints to stderr where none is set.
WarningHandler set_warning_handler(WarningHandler handler);

/// Calls the handler, once for equal texts. Of a job's ranks, one calls it. Local; any thread.
void report_warning(const std::string& text);

}  // namespace lockstep
