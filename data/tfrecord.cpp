#include "data/tfrecord.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "data/checks.hpp"
#include "data/crc32c.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint64_t header_bytes = 12;
constexpr std::uint64_t footer_bytes = 4;
constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
const char* const write_again =
    "write tf.train.Example with `image` (raw bytes or floats) and `label` (int64)";
const char* const fetch_again = "fetch the file again: this copy is incomplete or damaged";

template <class Number>
Number little_endian(std::span<const std::uint8_t> bytes) noexcept {
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) value = static_cast<Number>(value << 8 | bytes[i]);
  return value;
}

bool matches(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> stored) noexcept {
  return masked(crc32c(bytes)) == little_endian<std::uint32_t>(stored);
}

/// PNG's or JPEG's first bytes: images that would have to be decoded.
bool is_encoded(std::span<const std::uint8_t> bytes) {
  constexpr std::array<std::uint8_t, 8> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  constexpr std::array<std::uint8_t, 4> jpeg{0xFF, 0xD8, 0xFF, 0xE0};  // JFIF, as TensorFlow writes
  const auto begins = [bytes](std::span<const std::uint8_t> magic) {
    return bytes.size() > magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
  };
  return begins(png) || begins(jpeg);
}

/// A file from front to back, in large pieces.
class Window {
 public:
  explicit Window(Content& content) : content_(content) {}

  /// The `size` bytes at `offset`, all within the file; offsets never decrease.
  std::span<const std::uint8_t> at(std::uint64_t offset, std::uint64_t size) {
    if (offset + size > end_) {
      const std::uint64_t wanted = std::max(size, std::min(chunk_bytes, content_.size() - offset));
      buffer_.resize(static_cast<std::size_t>(wanted));
      content_.read_at(offset, buffer_);
      begin_ = offset;
      end_ = offset + wanted;
    }
    return std::span(buffer_).subspan(static_cast<std::size_t>(offset - begin_),
                                      static_cast<std::size_t>(size));
  }

 private:
  Content& content_;
  std::vector<std::uint8_t> buffer_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace

TfRecordSource::TfRecordSource(const std::filesystem::path& path, const ReadOptions& options)
    : StoredSource("tfrecord", path, options) {
  content_.finish();
  scan();
}

void TfRecordSource::fail(std::uint64_t offset, std::uint64_t record, const std::string& problem,
                          const std::string& remedy) const {
  throw DataError(content_.place(offset) + ": record " + std::to_string(record) + ": " + problem,
                  remedy.empty() ? write_again : remedy);
}

void TfRecordSource::scan() {
  const std::uint64_t size = content_.size();
  if (size == 0) throw DataError(content_.place(0) + ": holds 0 records", "give it at least one");
  Window window(content_);
  std::uint64_t offset = 0;
  offsets_.push_back(0);
  while (offset < size && (!limit_ || records() < *limit_)) {
    const std::uint64_t left = size - offset;
    if (left < header_bytes) {
      fail(offset, records(), "the file ends within its header", fetch_again);
    }
    const auto header = window.at(offset, header_bytes);
    if (!matches(header.first(8), header.subspan(8))) {
      fail(offset, records(), "the checksum of its length differs; no TFRecord, or a damaged one",
           fetch_again);
    }
    const auto length = little_endian<std::uint64_t>(header.first(8));
    if (left < header_bytes + footer_bytes || length > left - header_bytes - footer_bytes) {
      fail(offset, records(),
           "its " + std::to_string(length) + " bytes go beyond the file's end at byte " +
               std::to_string(size),
           fetch_again);
    }
    const std::uint64_t whole = header_bytes + length + footer_bytes;
    scan_record(offset, payload_in(offset, window.at(offset, whole)));
    offset += whole;
    offsets_.push_back(offset);
  }
}

/// Checks the payload's checksum.
std::span<const std::uint8_t> TfRecordSource::payload_in(
    std::uint64_t offset, std::span<const std::uint8_t> record) const {
  const auto payload = record.subspan(header_bytes, record.size() - header_bytes - footer_bytes);
  if (matches(payload, record.last(footer_bytes))) return payload;
  const auto index = std::lower_bound(offsets_.begin(), offsets_.end(), offset) - offsets_.begin();
  fail(offset + header_bytes, static_cast<std::uint64_t>(index),
       "the checksum of its payload differs", fetch_again);
}

void TfRecordSource::scan_record(std::uint64_t offset, std::span<const std::uint8_t> payload) {
  const std::uint64_t record = records();
  const std::string problem = parse_example(payload, example_);
  if (!problem.empty()) fail(offset, record, problem);
  if (record == 0) {
    if (is_encoded(example_.bytes)) {
      fail(offset, record, "feature 'image' is a PNG or JPEG file, not raw pixels",
           "decode images before they are written: tf.io.decode_image");
    }
    describe(example_.element, {example_.features()});
  }
  if (example_.element != element() || example_.features() != features()) {
    const auto kind = [](Element element) {
      return element == Element::byte ? " bytes" : " floats";
    };
    fail(offset, record,
         "feature 'image' has " + std::to_string(example_.features()) + kind(example_.element) +
             ", but that of record 0 has " + std::to_string(features()) + kind(element()),
         "give all records images of one kind and size");
  }
  for (const float number : example_.numbers) {
    if (!std::isfinite(number))
      fail(offset, record, "feature 'image' holds a number that is not finite");
  }
  const bool good = example_.label >= 0 && example_.label < classes_;
  labels_.push_back(good ? static_cast<std::int32_t>(example_.label)
                         : checked_label(example_.label, classes_, record, content_.place(offset)));
}

const Example& TfRecordSource::example_in(std::span<const std::uint8_t> bytes, std::uint64_t first,
                                          std::size_t k) {
  const std::uint64_t offset = offsets_[first + k];
  const auto size = static_cast<std::size_t>(offsets_[first + k + 1] - offset);
  const auto record = bytes.subspan(static_cast<std::size_t>(offset - offsets_[first]), size);
  const std::string problem = parse_example(payload_in(offset, record), example_);
  if (!problem.empty() || example_.element != element() || example_.features() != features()) {
    fail(offset, first + k, "it has changed since the file was opened", fetch_again);
  }
  return example_;
}

void TfRecordSource::decode(std::uint64_t first, std::size_t count,
                            std::span<const std::uint8_t> bytes, std::span<float> x) {
  for (std::size_t k = 0; k < count; ++k) {
    const Example& example = example_in(bytes, first, k);
    const auto row = x.subspan(k * features(), features());
    if (element() == Element::byte) {
      scale_bytes(example.bytes, row);
    } else {
      std::copy(example.numbers.begin(), example.numbers.end(), row.begin());
      divide(row);
    }
  }
}

void TfRecordSource::decode_bytes(std::uint64_t first, std::size_t count,
                                  std::span<const std::uint8_t> bytes, std::span<std::uint8_t> x) {
  for (std::size_t k = 0; k < count; ++k) {
    const auto image = example_in(bytes, first, k).bytes;
    std::copy(image.begin(), image.end(), x.subspan(k * features(), features()).begin());
  }
}

}  // namespace lockstep::data
