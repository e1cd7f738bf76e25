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
// Images may also have 1 (0x00000802: features) or 3 (0x00000804: rows, columns, channels) besides
// n; all are flattened. Either file may be gzip-compressed, which its first two bytes say, not its
// name. Nothing follows the last record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/byte_scale.hpp"
#include "data/file.hpp"
#include "data/source.hpp"

namespace lockstep::data {

enum class IdxKind { images, labels };

/// What one IDX file says about itself.
struct IdxHeader {
  std::vector<std::uint64_t> dims;  ///< of one record; empty for labels
  std::uint64_t records = 0;
  std::uint64_t record_bytes = 1;  ///< the product of `dims`
  std::uint64_t header_bytes = 0;

  /// "28x28"; "1" for labels.
  std::string shape() const;
};

/// The records of one IDX file.
///
/// A plain file is read by position, only the records asked for. A compressed one is decompressed
/// once, whole, so that its checks are made, but no more than `keep` records stay in memory.
class IdxFile {
 public:
  /// Throws DataError that names the file and the offset: not IDX or another kind of it, no
  /// records or records without bytes, or a length that differs from what the header says.
  IdxFile(const std::filesystem::path& path, IdxKind kind, std::optional<std::uint64_t> keep);

  const std::filesystem::path& path() const noexcept { return file_.path(); }
  const IdxHeader& header() const noexcept { return header_; }

  /// Records that can be read: those of the header, at most `keep`.
  std::uint64_t kept() const noexcept { return kept_; }

  /// The bytes of `count` records from `first` on, all of them kept. Valid until the next call;
  /// `scratch` holds them where they come from the disk.
  std::span<const std::uint8_t> view(std::uint64_t first, std::uint64_t count,
                                     std::vector<std::uint8_t>& scratch) const;

 private:
  void check_plain_size() const;
  void inflate_all();

  RegularFile file_;
  IdxHeader header_;
  std::uint64_t kept_ = 0;
  std::unique_ptr<std::uint8_t[]> inflated_;  // the kept records; none for a plain file
};

/// A pair of IDX files. Local; not thread-safe.
class IdxSource final : public Source {
 public:
  /// Throws DataError as IdxFile does, and where the counts differ or a label in use is outside
  /// [0, classes); ConfigError for a limit or a number of classes below 1.
  IdxSource(const std::filesystem::path& images, const std::filesystem::path& labels,
            const ReadOptions& options);

  std::uint64_t records() const noexcept override { return labels_.size(); }
  std::size_t features() const noexcept override { return features_; }
  float divisor() const noexcept override { return scale_.divisor(); }
  std::string identity() const override;
  std::vector<std::size_t> dims() const override {
    return {images_.header().dims.begin(), images_.header().dims.end()};
  }
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;

  /// "28x28": how the features were arranged.
  std::string shape() const { return images_.header().shape(); }

  const std::filesystem::path& images_path() const noexcept { return images_.path(); }

 private:
  void load_labels(const IdxFile& file, int classes);

  IdxFile images_;
  std::string labels_name_;
  ByteScale scale_;
  std::size_t features_ = 0;
  std::vector<std::uint8_t> labels_;
  std::vector<std::uint8_t> scratch_;
};

}  // namespace lockstep::data
