// TFRecord of tf.train.Example, as TensorFlow writes them.
//
// A file is records one after the other, all numbers little-endian:
//
//   bytes   meaning
//   8       n, the length of the payload
//   4       masked CRC-32C of those 8 bytes
//   n       the payload: one tf.train.Example, a protocol buffer
//   4       masked CRC-32C of the payload
//
// Of an example's features `image` and `label` are read, others skipped. `image` is one bytes value
// of raw pixels, or a list of floats; `label` is one int64. The file may be gzip-compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/source.hpp"

namespace lockstep::data {
/// What is read of one tf.train.Example. Views into its bytes.
struct TfExample {
  Element element = Element::byte;
  std::span<const std::uint8_t> bytes;  ///< of byte images
  std::vector<float> numbers;           ///< of images of floats
  std::int64_t label = 0;

  std::size_t features() const noexcept {
    return element == Element::byte ? bytes.size() : numbers.size();
  }
};

/// Parses `payload` into `example`, whose memory is used again. Returns what is wrong with it, or
/// an empty text.
std::string parse_example(std::span<const std::uint8_t> payload, TfExample& example);

/// The records of one TFRecord file.
///
/// Opened by one pass over the file, which checks both checksums and every example, and remembers
/// where records begin (8 bytes each); afterwards only the records asked for are read, and their
/// checksums checked again. Local; not thread-safe.
class TfRecordSource final : public StoredSource {
 public:
  /// Throws DataError that names the file, the byte and the record: a length beyond the file's end,
  /// a checksum that differs, no tf.train.Example, no `image` or `label` in it, images of
  /// different kinds or sizes, numbers that are not finite, a label outside [0, classes).
  TfRecordSource(const std::filesystem::path& path, const ReadOptions& options);

 private:
  void scan();
  void scan_record(std::uint64_t offset, std::span<const std::uint8_t> payload);
  std::span<const std::uint8_t> payload_in(std::uint64_t offset,
                                           std::span<const std::uint8_t> record) const;
  [[noreturn]] void fail(std::uint64_t offset, std::uint64_t record, const std::string& problem,
                         const std::string& remedy = "") const;
  std::uint64_t offset(std::uint64_t index) const noexcept override { return offsets_[index]; }
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;
  void decode_bytes(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                    std::span<std::uint8_t> x) override;

  /// Record `first` + `k` of those from `first` on whose bytes are `bytes`, checked once more;
  /// valid until the next call.
  const TfExample& example_in(std::span<const std::uint8_t> bytes, std::uint64_t first,
                              std::size_t k);

  std::vector<std::uint64_t> offsets_;  // of every record, and the end of the last
  TfExample example_;
};

// Protocol buffers, as far as tf.train.Example needs them.
// Source   https://protobuf.dev/programming-guides/encoding

/// Numbers of wire types.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// Reads a message field by field. Once something is malformed, `ok` is false and `next` too.
class WireReader {
 public:
  explicit WireReader(std::span<const std::uint8_t> message) noexcept : rest_(message) {}

  /// Goes to the next field and takes its value; false at the end, or where it is malformed.
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

  /// The value of any other field: its 4 or 8 bytes, or as many as it says.
  std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }

  bool is(std::uint64_t field, Wire wire) const noexcept {
    return field_ == field && wire_ == wire;
  }

  /// Takes a number that stands by itself, as in a packed list.
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
    ok_ = false;  // groups, which no one writes any more, and what is not defined
  }

  std::span<const std::uint8_t> rest_;
  std::span<const std::uint8_t> bytes_;
  std::uint64_t field_ = 0;
  std::uint64_t number_ = 0;
  Wire wire_ = Wire::varint;
  bool ok_ = true;
};

// CRC-32C (Castagnoli), as TFRecord files have it.

/// The checksum of `bytes`, by the processor's instruction where it has one.
/// Source   RFC 3720, appendix B.4 (its examples are the test).
std::uint32_t crc32c(std::span<const std::uint8_t> bytes) noexcept;

/// The same by table: what processors without the instruction use.
std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes) noexcept;

/// TFRecord stores checksums turned and shifted, so that those of checksums are not weak.
constexpr std::uint32_t masked(std::uint32_t crc) noexcept {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace lockstep::data
