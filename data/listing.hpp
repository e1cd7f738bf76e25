// The names of files that `--data` could mean.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace lockstep::data {

/// Whether `path` is a pattern: it holds `*`, `?` or `[`, and nothing has that very name.
bool is_pattern(const std::string& path);

/// The entries of a folder, or what a pattern matches, as the shell expands it. Opens no file.
///
/// Errors   throws DataError where the folder is missing, not a folder, unreadable or empty, or
///          the pattern matches nothing.
std::set<std::filesystem::path> list_files(const std::string& path);

/// How errors end where there is no data.
extern const char* const get_data;

}  // namespace lockstep::data
