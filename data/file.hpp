// Files of data: positional reads, and decompression of gzip files and of files in ZIP archives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/files.hpp"

namespace lockstep {
class Hash;
}

namespace lockstep::data {
/// The remedy of errors in files that are cut off or damaged.
inline constexpr const char* fetch_again =
    "fetch the file again: this copy is incomplete or damaged";

/// Limit of the sizes that headers state: fits off_t together with a header.
inline constexpr std::uint64_t max_stored_bytes = std::uint64_t{1} << 62;

/// The big-endian number in four bytes.
std::uint32_t big_endian(std::span<const std::uint8_t, 4> bytes) noexcept;

/// "PATH: byte 16": a file location for error messages.
std::string place(const std::filesystem::path& path, std::uint64_t offset);

class MappedFile;

/// A regular file, open for reading; not thread-safe.
///
/// Rejects anything else (a folder, FIFO, socket or device) without blocking.
class RegularFile {
 public:
  /// Throws DataError with the path and the system's reason.
  explicit RegularFile(std::filesystem::path path);

  const std::filesystem::path& path() const noexcept { return path_; }

  /// Bytes in the file when it was opened.
  std::uint64_t size() const noexcept { return size_; }

  /// Fills `bytes` from `offset` on. Throws DataError if the file ends earlier or cannot be read.
  void read_at(std::uint64_t offset, std::span<std::uint8_t> bytes) const;

  /// Throws DataError if the file has become shorter since it was opened.
  void check_size() const;

  /// Maps the whole file: see MappedFile.
  std::unique_ptr<MappedFile> map() const;

  /// Adds to `hash` the file's size and a sample of its bytes: see Content::add_sample.
  void add_sample(Hash& hash, std::uint64_t blocks) const;

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

/// Blocks to hash per file for a sample of `files` files: 64, or fewer for many files.
std::uint64_t sampled_blocks_of_each(std::size_t files) noexcept;

class Decompressor;

/// The bytes of one file, decompressed if its first three bytes are gzip's, or if it is in a
/// ZIP archive, whose path is then followed by the file's name: "mnist.npz/x_train.npy".
///
/// From a plain file only the requested bytes are read. A compressed file is decompressed once,
/// sequentially: on request up to the requested bytes, and by finish() to its end. The first
/// `max_in_memory` decompressed bytes are kept in memory, the rest in an unnamed file in TMPDIR
/// (or /tmp), so memory is bounded for any file size. The destructor frees the unnamed file.
/// Local; not thread-safe.
class Content {
 public:
  static constexpr std::uint64_t max_in_memory = std::uint64_t{1} << 20;
  static constexpr std::uint64_t max_mapped = std::uint64_t{1} << 28;
  static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

  /// Throws what RegularFile throws; DataError if an archive is damaged, or has no such file.
  explicit Content(std::filesystem::path path);
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  bool compressed() const noexcept { return compressed_; }

  /// "PATH: byte 16", or "PATH: byte 16 (decompressed)".
  std::string place(std::uint64_t offset) const;

  /// An upper bound of size(): the file's size, or the most that it can decompress to.
  std::uint64_t max_bytes() const noexcept;

  /// Decompresses the file to its end, verifying its checksums and determining its size.
  ///
  /// Bytes from `keep` on are verified but not stored: they cannot be read afterwards. Fails at the
  /// first byte beyond `max`. Does nothing for a plain file. Throws DataError if the file is
  /// damaged or too long; OutputError if TMPDIR is full.
  void finish(std::uint64_t max = all, std::uint64_t keep = all);

  /// Decompresses up to `end` bytes, and no further than the content goes. Returns how many of the
  /// first `end` bytes can be read. Throws what finish() throws.
  std::uint64_t available(std::uint64_t end);

  /// Total bytes; for a compressed file valid after finish().
  std::uint64_t size() const noexcept { return compressed_ ? inflated_ : file_.size(); }

  /// Fills `bytes` from `offset` on. Throws DataError if the content ends earlier or is damaged;
  /// OutputError if TMPDIR is full.
  void read_at(std::uint64_t offset, std::span<std::uint8_t> bytes);

  /// Prepares for many small reads: of at most `max_mapped` bytes they come from mapped memory.
  ///
  /// Those of a plain file do not notice that it has been cut off within a page: call
  /// check_mapped() after them. Call finish() before.
  void map();

  /// Throws DataError if the mapped file has become shorter since it was opened.
  void check_mapped() const;

  /// A hint: read_at() will soon be called for these bytes.
  void prefetch(std::uint64_t offset, std::size_t bytes) const noexcept;

  /// Adds to `hash` the number `end` and a sample of the first `end` bytes: `blocks` blocks of 4
  /// KiB at equal distances, including the first and the last, or all bytes if there are no more.
  /// Equal bytes give equal samples, compressed or not. The time does not depend on the file size.
  ///
  /// `end`     at most the readable bytes: call finish() before.
  /// `blocks`  at least 2.
  /// Errors    throws what read_at throws.
  void add_sample(Hash& hash, std::uint64_t end, std::uint64_t blocks) const;

 private:
  void read_kept(std::uint64_t offset, std::span<std::uint8_t> bytes) const;
  void keep(std::span<const std::uint8_t> bytes);
  void open_spill();

  std::filesystem::path path_;
  RegularFile file_;  // or the archive that the file is in
  bool compressed_ = false;
  std::unique_ptr<Decompressor> reader_;  // of a compressed file until it is finished
  std::vector<std::uint8_t> memory_;      // its first decompressed bytes
  Descriptor spill_;                      // file with the bytes after memory_
  std::unique_ptr<MappedFile> mapped_;    // the plain file, or spill_
  std::uint64_t inflated_ = 0;
  std::uint64_t kept_ = 0;
};

/// The most bytes that `compressed` bytes of deflate can decompress to; saturates.
std::uint64_t max_inflated(std::uint64_t compressed) noexcept;

/// The archive in which `path` is; else `path`.
std::filesystem::path archive_of(const std::filesystem::path& path);

/// True for a regular file whose name ends in .npz.
bool is_npz_file(const std::filesystem::path& path);

/// The names of the files in a ZIP archive. Throws DataError if it is damaged. Local.
std::vector<std::string> names_in_archive(const std::filesystem::path& archive);

}  // namespace lockstep::data
