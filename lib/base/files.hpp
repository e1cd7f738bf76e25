// Writing files so that a reader never sees half of one.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {
/// Writes `pieces` one after the other to `path`: all of it or nothing.
///
/// Goes to a temporary file in the same folder, reaches the disk, and is renamed.
/// Errors   throws OutputError with the path and the system's reason; `path` is then untouched.
void write_file(const std::filesystem::path& path,
                std::span<const std::span<const std::byte>> pieces);

/// The same for text.
void write_file(const std::filesystem::path& path, std::string_view text);

/// A file that grows by lines, such as metrics.jsonl. Move-only; closes in its destructor.
class LineFile {
 public:
  /// Creates or truncates. Throws OutputError.
  explicit LineFile(std::filesystem::path path);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&&) = delete;

  /// Adds `line` and a newline; buffered. Throws OutputError.
  void write(std::string_view line);

  /// Hands what is buffered to the system. Throws OutputError.
  void flush();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
};

/// Makes the folder and those above it. Throws OutputError with the path and the reason.
void make_folder(const std::filesystem::path& path);

/// Makes the folder itself and says true, or says false where it is there already: of two that ask
/// at the same time one gets it. Throws OutputError.
bool claim_folder(const std::filesystem::path& path);

/// Gives a finished folder its final name, in one step, and sees it to the disk. Throws
/// OutputError.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);

// Files that must not outlive an interrupted process.

/// Puts the file on the list of those to remove, or takes it off. Any thread. A list of thousands
/// is full; what does not fit is left to its owner alone.
void add_temporary(const std::filesystem::path& path);
void forget_temporary(const std::filesystem::path& path) noexcept;

/// From now on SIGHUP, SIGINT and SIGTERM remove what is on the list before they end the process.
/// A signal that is ignored stays ignored.
void remove_temporaries_on_signals() noexcept;

}  // namespace lockstep
