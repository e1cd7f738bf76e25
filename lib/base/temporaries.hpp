// Files that must not outlive an interrupted process.
#pragma once

#include <filesystem>

namespace lockstep {

/// Puts the file on the list of those to remove, or takes it off. Any thread. A list of thousands
/// is full; what does not fit is left to its owner alone.
void add_temporary(const std::filesystem::path& path);
void forget_temporary(const std::filesystem::path& path) noexcept;

/// From now on SIGHUP, SIGINT and SIGTERM remove what is on the list before they end the process.
/// A signal that is ignored stays ignored.
void remove_temporaries_on_signals() noexcept;

}  // namespace lockstep
