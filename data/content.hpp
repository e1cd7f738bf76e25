// What a data file says, read by position, whether it is plain or gzip-compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/file.hpp"

namespace lockstep::data {

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

  /// Bytes that read_at has delivered so far.
  std::uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
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
  std::uint64_t bytes_read_ = 0;
};

}  // namespace lockstep::data
