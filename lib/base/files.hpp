// File descriptors, atomic writes of files, line-oriented output, and folders: listed, created,
// locked, replaced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"

namespace lockstep {
/// Owns a file descriptor, which the destructor closes.
class Descriptor {
 public:
  Descriptor() = default;

  /// `number`: open, or negative.
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  /// Negative if none is open.
  int number() const noexcept { return number_; }
  bool is_open() const noexcept { return number_ >= 0; }

  void close() noexcept;

  /// The number, which this object no longer owns.
  int release() noexcept { return std::exchange(number_, -1); }

  /// Writes all of `bytes`, in several calls if necessary. False, with errno, after an error; part
  /// of them may have been written.
  bool write_all(std::span<const std::byte> bytes) const noexcept;

  /// Reads up to bytes.size() bytes at `offset`, in one call, and returns their number: 0 at the
  /// end of the file. Nullopt, with errno, after an error.
  std::optional<std::size_t> read_at(std::uint64_t offset,
                                     std::span<std::byte> bytes) const noexcept;

 private:
  int number_ = -1;
};

/// Writes a file sequentially under a hidden temporary name in the target folder.
///
/// publish() renames it to its final name; otherwise the destructor deletes it. Never follows a
/// link and never opens an existing file.
class NewFile {
 public:
  /// The file has the permissions of the one that it will replace, if there is one. Throws
  /// OutputError with the path, the system's reason and a remedy, as the other members do.
  explicit NewFile(std::filesystem::path path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Reserves disk space for `bytes` bytes, where the file system can, so that a full disk is
  /// found before anything is written.
  void reserve(std::uint64_t bytes);

  void write(std::span<const std::byte> bytes);

  /// Syncs the file to disk and closes it; only the rename remains.
  void finish();

  /// Renames the finished file to its final name, replacing an existing file.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  ///< empty once it is published
  Descriptor file_;
};

/// `path` with links followed, so that a NewFile of that name replaces or makes the file, and does
/// not replace a link to it. Throws OutputError if it exists and is not a regular file: others
/// cannot be replaced.
std::filesystem::path replaceable(const std::filesystem::path& path);

/// Writes `text` to `path` atomically, with NewFile.
/// Errors   throws OutputError; `path` is then unchanged.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Throws OutputError if stdout cannot be flushed, or something before was lost.
void flush_stdout();

/// The error of a write to stdout that failed with `code`, an errno; 0: it is not known.
OutputError stdout_error(int code);

/// Buffered output of lines, such as metrics.jsonl. The destructor closes it.
class LineFile {
 public:
  /// Opens `path`, which is created if it does not exist, and keeps the lines for which `keeps` is
  /// true, called in their order; none without it. What follows the last newline is dropped. The
  /// file is replaced if a line is dropped before one that is kept.
  /// Errors   throws OutputError; also if `path` is not a regular file.
  explicit LineFile(std::filesystem::path path,
                    const std::function<bool(std::string_view line)>& keeps = {});
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// Number of lines kept and written.
  std::uint64_t lines() const noexcept { return lines_; }

  /// Adds `line` and a newline; buffered. Throws OutputError.
  void write(std::string_view line);

  /// Writes buffered lines to the file. Throws OutputError, after which none of them is in it.
  void flush();

  /// flush(), and syncs the file to the disk.
  void sync();

  /// False if the path no longer names the open file: it was removed or replaced, or is hidden by
  /// another mount.
  bool is_in_place() const noexcept;

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t lines_ = 0;
  std::string buffer_;
};

/// The folder for temporary files: $TMPDIR, or /tmp.
std::filesystem::path temporary_folder();

/// The entries of a folder, sorted by path; those listed before a failure if `error` is set. Local.
std::vector<std::filesystem::directory_entry> list_folder(const std::filesystem::path& folder,
                                                          std::error_code& error);

/// "runs/A/" -> "runs/A". Local.
std::filesystem::path without_slash(std::filesystem::path path);

/// Throws OutputError for a path that is a file, or below one, or a link to nothing. Makes nothing.
void require_can_be_folder(const std::filesystem::path& path);

/// Creates the folder and its parents. Throws OutputError with the path and the reason.
void make_folder(const std::filesystem::path& path);

/// Creates the folder; false if it exists already. If two processes call it at the same time, one
/// gets true. Throws OutputError.
bool claim_folder(const std::filesystem::path& path);

/// A lock on a folder, held by this process until the object is destroyed or the process ends,
/// however it ends. The file `.lock` in the folder contains the host and process id of its holder.
///
/// Works between hosts where the file system supports flock(2), as NFS does.
class FolderLock {
 public:
  /// Errors   throws ConfigError with the holder's host and process id if another process holds it;
  ///          OutputError if the lock file cannot be created.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  Descriptor file_;
};

/// Throws ConfigError, as FolderLock does, if another process holds the lock of the folder. Changes
/// nothing in it.
void require_not_locked(const std::filesystem::path& folder);

enum class LockState { held, free, unknown };

/// Whether a FolderLock of any process, this one included, is on the folder. Unknown: the folder
/// has no lock file, or this process may not read it, or the file system has no locks. Changes
/// nothing. Local.
LockState lock_state(const std::filesystem::path& folder);

/// A folder that is filled under a hidden temporary name and then given its final name.
///
/// The destructor deletes it unless it was published.
class NewFolder {
 public:
  /// Creates the temporary folder beside `path`. Throws OutputError, as publish() does.
  explicit NewFolder(std::filesystem::path path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// The temporary folder.
  const std::filesystem::path& path() const noexcept { return temporary_; }

  /// Syncs the folder to the disk, renames it to its final name and syncs that. An existing folder
  /// of this name is replaced.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
};

/// Deletes a folder and what is in it: first renames it to a temporary name, so that no other
/// process sees half of it. Throws OutputError.
void remove_folder(const std::filesystem::path& path);

/// Deletes the temporary files and folders that killed processes left in `folder`. The caller must
/// hold a lock which ensures that no other process writes there. Errors are ignored.
void remove_temporaries_in(const std::filesystem::path& folder) noexcept;

}  // namespace lockstep
