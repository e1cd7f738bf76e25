// Atomic writes of files, line-oriented output, folders, and removal of temporary files.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {
/// Writes `pieces` one after the other to `path`, atomically.
///
/// Writes a temporary file in the same folder, syncs it to the disk, and renames it.
/// Errors   throws OutputError with the path and the system's reason; `path` is then unchanged.
void write_file(const std::filesystem::path& path,
                std::span<const std::span<const std::byte>> pieces);

/// The same for text.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Buffered output of lines, such as metrics.jsonl. Move-only; the destructor closes it.
class LineFile {
 public:
  /// Creates or truncates. Throws OutputError.
  explicit LineFile(std::filesystem::path path);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&&) = delete;

  /// Adds `line` and a newline; buffered. Throws OutputError.
  void write(std::string_view line);

  /// Writes buffered lines to the file. Throws OutputError.
  void flush();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
};

/// Creates the folder and its parents. Throws OutputError with the path and the reason.
void make_folder(const std::filesystem::path& path);

/// Creates the folder; false if it exists already. If two processes call it at the same time, one
/// gets true. Throws OutputError.
bool claim_folder(const std::filesystem::path& path);

/// Renames a folder atomically and syncs it to the disk. Throws OutputError.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);

/// Adds a file to the list of files to remove on a signal, or removes it from the list.
/// Thread-safe. The list holds 4096 files; further files are not added.
void add_temporary(const std::filesystem::path& path);
void forget_temporary(const std::filesystem::path& path) noexcept;

/// Makes SIGHUP, SIGINT and SIGTERM remove the listed files before they end the process. Ignored
/// signals stay ignored.
void remove_temporaries_on_signals() noexcept;

}  // namespace lockstep
