// IDX, the format of MNIST: images in one file, their labels in another.
//
// All numbers are big-endian and unsigned:
//
//   offset   bytes   images                         labels
//   0        4       magic 0x00000803               magic 0x00000801
//   4        4       n, records                     n, records
//   8        4       rows
//   12       4       columns
//   then             n * rows * columns bytes       n bytes
//
// The magic's third byte is the type of an element (8: a byte), its last the number of dimensions.
// Besides n, images may also have 1 dimension (0x00000802: features) or 3 (0x00000804: rows,
// columns, channels); all are flattened. Either file may be gzip-compressed, detected by its first
// three bytes, not its name. No bytes may follow the last record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

enum class IdxKind { images, labels };

/// The header of an IDX file.
struct IdxHeader {
  std::vector<std::uint64_t> dims;  ///< shape of one record; empty for labels
  std::uint64_t records = 0;
  std::uint64_t record_bytes = 1;  ///< the product of `dims`
  std::uint64_t header_bytes = 0;
};

/// Reads the header and checks the file's length against it. Decompresses a compressed file to its
/// end; at least its first `keep` records can be read afterwards.
///
/// Errors   throws DataError, with the file and the offset, if the file is not IDX of this kind,
///          has no records or empty records, or its length does not match the header.
IdxHeader read_idx_header(Content& content, IdxKind kind, std::uint64_t keep);

/// A pair of IDX files; without ReadOptions::needs_labels only that of images is read. Local; not
/// thread-safe.
class IdxSource final : public StoredSource {
 public:
  /// Throws what read_idx_header throws; DataError if the counts differ or a label in use is
  /// outside [0, classes); ConfigError for a limit or a number of classes below 1.
  IdxSource(const std::filesystem::path& images, const std::filesystem::path& labels,
            const ReadOptions& options);

 private:
  void load_labels(const std::filesystem::path& path);
  std::uint64_t offset(std::uint64_t index) const noexcept override;
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;

  IdxHeader header_;
};

}  // namespace lockstep::data
