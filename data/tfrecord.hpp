// TFRecord files of tf.train.Example, in TensorFlow's format.
//
// A file is a sequence of records; all numbers are little-endian:
//
//   bytes   meaning
//   8       n, the length of the payload
//   4       masked CRC-32C of those 8 bytes
//   n       the payload: one tf.train.Example, a protocol buffer
//   4       masked CRC-32C of the payload
//
// The file may be gzip-compressed. A TfRecordSource reads the features `image` (one bytes value of
// raw pixels, or a list of floats) and `label` (one int64) of an example; parse_features() those of
// a specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
/// The parsed features of one tf.train.Example. Contains a view into the payload.
struct TfExample {
  Element element = Element::byte;
  std::span<const std::uint8_t> bytes;  ///< the image if element is byte
  std::vector<float> numbers;           ///< the image if element is number
  std::vector<std::int64_t> labels;     ///< all values of the label, of which there must be one
  std::int64_t label = 0;

  std::size_t features() const noexcept {
    return element == Element::byte ? bytes.size() : numbers.size();
  }
};

/// Parses `payload` into `example`, reusing its memory. Returns an error message, or an empty text.
std::string parse_example(std::span<const std::uint8_t> payload, TfExample& example);

// Features by a specification (source.hpp).

/// Throws ConfigError for no features; for default values of another type or number; for a shape or
/// a default value of a feature of any length.
void require_features(const FeatureSpecs& specs);

/// Parses the features of `payload` into `values`, one entry for each of `specs`. Returns an error
/// message, or an empty text: a missing feature of fixed shape without default value; a list of
/// another type or number of values; no tf.train.Example.
std::string parse_features(std::span<const std::uint8_t> payload, const FeatureSpecs& specs,
                           std::map<std::string, FeatureValues>& values);

/// The records of one TFRecord file in order, with verified checksums. Local; not thread-safe.
class TfRecordReader {
 public:
  /// `content` must outlive the reader, and be finished.
  explicit TfRecordReader(Content& content);

  struct Record {
    std::uint64_t number = 0;               ///< from 0
    std::uint64_t offset = 0;               ///< in the file
    std::span<const std::uint8_t> payload;  ///< valid until the next call
  };

  /// The next record; nullopt at the end of the file. Throws DataError, with the file, the byte
  /// offset and the record, for a length beyond the end of the file and for a wrong checksum.
  std::optional<Record> next();

  /// Where the next record begins.
  std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::span<const std::uint8_t> bytes_at(std::uint64_t offset, std::uint64_t size);

  Content& content_;
  std::uint64_t offset_ = 0;
  std::uint64_t number_ = 0;
  std::vector<std::uint8_t> buffer_;  // the bytes from buffer_begin_ on
  std::uint64_t buffer_begin_ = 0;
};

/// The values of the features of every example of one file, in order.
class TfFeatureReader {
 public:
  /// Throws what Content and require_features throw.
  TfFeatureReader(const std::filesystem::path& path, FeatureSpecs specs);

  /// The next example's values; null at the end. Throws DataError, with the file, the byte offset,
  /// the record and the feature: see TfRecordReader::next and parse_features.
  const std::map<std::string, FeatureValues>* next();

 private:
  FeatureSpecs specs_;
  Content content_;
  TfRecordReader records_;
  std::map<std::string, FeatureValues> values_;
};

/// The records of one TFRecord file.
///
/// The constructor reads the file up to the last record in use (ReadOptions::limit), checks both
/// checksums and every example, and stores the offset of each record (8 bytes each). read() then
/// reads only the requested records and checks their checksums again. Local; not thread-safe.
class TfRecordSource final : public StoredSource {
 public:
  /// Throws DataError, with the file, the byte offset and the record, for: a length beyond the end
  /// of the file, a wrong checksum, an invalid tf.train.Example, a missing `image` or `label`,
  /// images of different types or sizes, non-finite numbers, a label outside [0, classes).
  TfRecordSource(const std::filesystem::path& path, const ReadOptions& options);

 private:
  void scan();
  void scan_record(std::uint64_t offset, std::span<const std::uint8_t> payload);
  [[noreturn]] void fail(std::uint64_t offset, std::uint64_t record, const std::string& problem,
                         const std::string& remedy = "") const;
  std::uint64_t offset(std::uint64_t index) const noexcept override { return offsets_[index]; }
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;
  void decode_bytes(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                    std::span<std::uint8_t> x) override;

  /// Parses record `first` + `k` and verifies its checksum; `bytes` begins with record `first`.
  /// Valid until the next call.
  const TfExample& example_in(std::span<const std::uint8_t> bytes, std::uint64_t first,
                              std::size_t k);

  std::vector<std::uint64_t> offsets_;  // begin of each record, and end of the last
  TfExample example_;
};

// The subset of protocol buffers that tf.train.Example uses.
// Source   https://protobuf.dev/programming-guides/encoding

/// Wire types.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// Reads a message field by field. After malformed input, `ok` and `next` return false.
class WireReader {
 public:
  explicit WireReader(std::span<const std::uint8_t> message) noexcept : rest_(message) {}

  /// Reads the next field and its value; false at the end, or if it is malformed.
  bool next() noexcept {
    if (!ok_ || rest_.empty()) return false;
    const std::uint64_t tag = varint();
    field_ = tag >> 3;
    wire_ = static_cast<Wire>(tag & 7U);
    if (field_ == 0) ok_ = false;
    if (ok_) take_value();
    return ok_;
  }

  bool ok() const noexcept { return ok_; }
  std::uint64_t field() const noexcept { return field_; }
  Wire wire() const noexcept { return wire_; }

  /// The value of a varint field.
  std::uint64_t number() const noexcept { return number_; }

  /// The value of any other field: 4 or 8 bytes, or the bytes of a length-delimited field.
  std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }

  bool is(std::uint64_t field, Wire wire) const noexcept {
    return field_ == field && wire_ == wire;
  }

  /// Reads a varint without a tag, as in a packed list.
  std::uint64_t varint() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      if (rest_.empty()) break;
      const std::uint8_t byte = rest_[0];
      rest_ = rest_.subspan(1);
      if (shift == 63 && byte > 1) break;
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80U) return value;
    }
    ok_ = false;
    return 0;
  }

  bool at_end() const noexcept { return rest_.empty(); }

 private:
  void take(std::uint64_t size) noexcept {
    if (size > rest_.size()) {
      ok_ = false;
      return;
    }
    bytes_ = rest_.first(static_cast<std::size_t>(size));
    rest_ = rest_.subspan(static_cast<std::size_t>(size));
  }

  void take_value() noexcept {
    switch (wire_) {
      case Wire::varint: number_ = varint(); return;
      case Wire::fixed64: return take(8);
      case Wire::bytes: {
        const std::uint64_t size = varint();
        return ok_ ? take(size) : void();
      }
      case Wire::fixed32: return take(4);
    }
    ok_ = false;  // deprecated groups and undefined wire types
  }

  std::span<const std::uint8_t> rest_;
  std::span<const std::uint8_t> bytes_;
  std::uint64_t field_ = 0;
  std::uint64_t number_ = 0;
  Wire wire_ = Wire::varint;
  bool ok_ = true;
};

// CRC-32C (Castagnoli), the checksum of TFRecord files.

/// The checksum of `bytes`. The examples of RFC 3720, appendix B.4, are its test.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes) noexcept;

/// The masked checksum that TFRecord stores: rotated, plus a constant. A CRC of data that contains
/// plain CRCs would be weak.
constexpr std::uint32_t masked(std::uint32_t crc) noexcept {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

/// True if these bytes begin a record: its length, and the checksum of that. Local.
bool is_record_header(std::span<const std::uint8_t, 12> bytes) noexcept;

}  // namespace lockstep::data
