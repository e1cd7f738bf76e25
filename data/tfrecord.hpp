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

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/stored_source.hpp"

namespace lockstep::data {

/// What is read of one tf.train.Example. Views into its bytes.
struct Example {
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
std::string parse_example(std::span<const std::uint8_t> payload, Example& example);

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
  const Example& example_in(std::span<const std::uint8_t> bytes, std::uint64_t first,
                            std::size_t k);

  std::vector<std::uint64_t> offsets_;  // of every record, and the end of the last
  Example example_;
};

}  // namespace lockstep::data
