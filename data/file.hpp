// Files as records are read from and written to: by position, and all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep {
class Hash;
}

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

  /// Adds to `hash` the file's size and a sample of its bytes: see Content::add_sample.
  void add_sample(Hash& hash, std::uint64_t blocks) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Blocks of each of `files` files to hash for a sample: 64, or fewer where there are many files.
std::uint64_t sampled_blocks_of_each(std::size_t files) noexcept;

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

class GzipReader;

/// The bytes of one file, after decompression where its first two bytes are gzip's.
///
/// A plain file is read by position, only the bytes asked for. A compressed one is decompressed
/// once, from front to back, as far as it is asked for and then to its end by `finish`. The first
/// `most_in_memory` of the decompressed bytes stay in memory, all others go to an unnamed file in
/// TMPDIR (or /tmp), so that memory is bounded however large the file is; its room comes back
/// with the object's end. Local; not thread-safe.
class Content {
 public:
  static constexpr std::uint64_t most_in_memory = std::uint64_t{1} << 20;
  static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

  /// Throws DataError as RegularFile does.
  explicit Content(std::filesystem::path path);
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  const std::filesystem::path& path() const noexcept { return file_.path(); }
  bool compressed() const noexcept { return compressed_; }

  /// "PATH: byte 16", or "PATH: byte 16 (decompressed)".
  std::string place(std::uint64_t offset) const;

  /// The most bytes there can be: the file's size, or what gzip can make of it.
  std::uint64_t most_bytes() const noexcept;

  /// Brings a compressed file to its end, so that its checks are made and its size is known.
  ///
  /// Bytes from `keep` on are checked, but not kept: they cannot be read afterwards. Where there
  /// are more than `most` bytes, that is an error as soon as the first of them comes. A plain file
  /// is left alone. Throws DataError where the file is damaged; OutputError where TMPDIR is full.
  void finish(std::uint64_t most = all, std::uint64_t keep = all);

  /// Bytes in all; of a compressed file once it is finished.
  std::uint64_t size() const noexcept { return compressed_ ? inflated_ : file_.size(); }

  /// Fills `bytes` from `offset` on. Throws DataError where the content ends before or is damaged,
  /// and OutputError as finish.
  void read_at(std::uint64_t offset, std::span<std::uint8_t> bytes);

  /// Adds to `hash` the number `end` and a sample of the first `end` bytes: `blocks` blocks of 4
  /// KiB at equal distances, the first and the last among them, or all bytes where there are no
  /// more than that. The same for equal bytes, compressed or not, in a time that does not grow with
  /// the file.
  ///
  /// `end`     at most the bytes that can be read: call finish before.
  /// `blocks`  at least 2.
  /// Errors    throws as read_at.
  void add_sample(Hash& hash, std::uint64_t end, std::uint64_t blocks) const;

 private:
  void read_kept(std::uint64_t offset, std::span<std::uint8_t> bytes) const;
  void inflate_to(std::uint64_t end);
  void keep(std::span<const std::uint8_t> bytes);
  void open_spill();

  RegularFile file_;
  bool compressed_ = false;
  std::unique_ptr<GzipReader> reader_;  // until a compressed file is finished
  std::vector<std::uint8_t> memory_;    // its first bytes
  int spill_ = -1;                      // those behind them
  std::uint64_t inflated_ = 0;
  std::uint64_t kept_ = 0;
};

// Gzip-compressed files, read from front to back.

/// True where the file begins with gzip's two magic bytes, whatever its name.
bool is_gzip(const RegularFile& file);

/// The most that `compressed` bytes of deflate can become; saturates.
std::uint64_t most_inflated(std::uint64_t compressed) noexcept;

/// Decompresses one gzip file in order: one member, or several one after the other.
///
/// Every member's CRC and length are checked. Uses about 100 kB. `file` must outlive it.
class GzipReader {
 public:
  explicit GzipReader(const RegularFile& file);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Fills `bytes` with the next decompressed ones.
  ///
  /// Errors   throws DataError that names the file and the offset in the compressed bytes, where
  ///          they are damaged or end before that.
  void read(std::span<std::uint8_t> bytes);

  /// Puts the next decompressed bytes at the front of `bytes`, and returns how many came: at least
  /// one, or 0 at the end, with all checks made. Throws DataError as read.
  std::size_t read_some(std::span<std::uint8_t> bytes);

  /// Throws DataError unless the decompressed bytes end exactly here, and their checks hold.
  void expect_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data
