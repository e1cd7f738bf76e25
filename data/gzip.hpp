// Gzip-compressed files, read from front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "data/file.hpp"

namespace lockstep::data {

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
