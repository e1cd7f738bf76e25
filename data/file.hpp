// Files as records are read from and written to: by position, and all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep::data {

/// "PATH: byte 16": how errors name a place in a file.
std::string place(const std::filesystem::path& path, std::uint64_t offset);

/// A regular file that is open for reading. Closes in its destructor; not thread-safe.
///
/// Whatever is not a regular file (a folder, FIFO, socket or device) is refused at once, so that
/// opening never waits.
class RegularFile {
 public:
  /// Throws DataError with the path and the system's reason.
  explicit RegularFile(std::filesystem::path path);
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

  /// Bytes in the file when it was opened.
  std::uint64_t size() const noexcept { return size_; }

  /// Fills `bytes` from `offset` on. Throws DataError where the file ends before, or cannot be
  /// read.
  void read_at(std::uint64_t offset, std::span<std::uint8_t> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// A file that is being written, in order, under a hidden temporary name in its own folder.
///
/// It takes its name in `publish`; without that, nothing of it remains.
class NewFile {
 public:
  /// Throws OutputError with the path and the system's reason, as the other members do.
  explicit NewFile(std::filesystem::path path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::uint8_t> bytes);

  /// Brings everything to the disk, and closes: what remains is the name.
  void finish();

  /// Gives the finished file its name, replacing what had it.
  void publish();

 private:
  [[noreturn]] void fail(const char* what, int code) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

}  // namespace lockstep::data
