#include "lockstep/data/tfrecord.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/source.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep::data {

// CRC-32C.

namespace {

using Table = std::array<std::uint32_t, 256>;

constexpr Table make_table() noexcept {
  Table table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1U) != 0 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}

constexpr Table table = make_table();

#if defined(__x86_64__)
[[gnu::target("sse4.2")]] std::uint32_t by_instruction(
    std::span<const std::uint8_t> bytes) noexcept {
  std::uint64_t crc = 0xFFFFFFFFU;
  while (bytes.size() >= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    crc = _mm_crc32_u64(crc, word);
    bytes = bytes.subspan(sizeof word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (const std::uint8_t byte : bytes) rest = _mm_crc32_u8(rest, byte);
  return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes) noexcept {
  std::uint32_t crc = ~0U;
  for (const std::uint8_t byte : bytes) crc = crc >> 8 ^ table[(crc ^ byte) & 0xFFU];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::uint8_t> bytes) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return by_instruction(bytes);
#endif
  return crc32c_by_table(bytes);
}

// tf.train.Example.

namespace {

using ByteView = std::span<const std::uint8_t>;
constexpr const char* malformed = "not a tf.train.Example: malformed protocol buffer";

// message Example { Features features = 1; }
// message Features { map<string, Feature> feature = 1; }
// message Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2;
//                           Int64List int64_list = 3; } }
// and each list { repeated ... value = 1; }
constexpr std::uint64_t bytes_list = 1;
constexpr std::uint64_t float_list = 2;
constexpr std::uint64_t int64_list = 3;

/// Views of the two required features in the payload.
struct FoundFeatures {
  std::optional<ByteView> image;
  std::optional<ByteView> label;
};

/// Parses one map entry: a key and a Feature; the last occurrence of each is used.
bool find_entry(ByteView entry, FoundFeatures& found) {
  std::string_view key;
  ByteView value;
  WireReader reader(entry);
  while (reader.next()) {
    const ByteView bytes = reader.bytes();
    if (reader.is(1, Wire::bytes)) {
      key = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    if (reader.is(2, Wire::bytes)) value = bytes;
  }
  if (key == "image") found.image = value;
  if (key == "label") found.label = value;
  return reader.ok();
}

bool find_features(ByteView payload, FoundFeatures& found) {
  WireReader example(payload);
  while (example.next()) {
    if (!example.is(1, Wire::bytes)) continue;
    WireReader features(example.bytes());
    while (features.next()) {
      if (features.is(1, Wire::bytes) && !find_entry(features.bytes(), found)) return false;
    }
    if (!features.ok()) return false;
  }
  return example.ok();
}

/// The list in a Feature: its field number (0: none) and its bytes.
struct List {
  std::uint64_t kind = 0;
  ByteView bytes;
};

bool find_list(ByteView feature, List& list) {
  WireReader reader(feature);
  while (reader.next()) {
    if (reader.wire() == Wire::bytes && reader.field() <= int64_list) {
      list = {reader.field(), reader.bytes()};
    }
  }
  return reader.ok();
}

void append_floats(ByteView bytes, std::vector<float>& numbers) {
  const std::size_t used = numbers.size();
  numbers.resize(used + bytes.size() / sizeof(float));
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(numbers.data() + used, bytes.data(), (numbers.size() - used) * sizeof(float));
    return;
  }
  for (std::size_t i = used; i < numbers.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t k = 4; k-- > 0;) bits = bits << 8 | bytes[4 * (i - used) + k];
    numbers[i] = std::bit_cast<float>(bits);
  }
}

std::string parse_floats(ByteView list, std::vector<float>& numbers) {
  numbers.clear();
  WireReader reader(list);
  while (reader.next()) {
    if (reader.field() != 1) continue;
    const bool packed = reader.wire() == Wire::bytes;
    if (!packed && reader.wire() != Wire::fixed32) return malformed;
    if (reader.bytes().size() % sizeof(float) != 0) return malformed;
    if (!reader.bytes().empty()) append_floats(reader.bytes(), numbers);
  }
  return reader.ok() ? "" : malformed;
}

std::string parse_image(ByteView feature, TfExample& example) {
  List list;
  if (!find_list(feature, list)) return malformed;
  example.bytes = {};
  example.numbers.clear();
  if (list.kind == float_list) {
    example.element = Element::number;
    const std::string problem = parse_floats(list.bytes, example.numbers);
    if (!problem.empty()) return problem;
    return example.numbers.empty() ? "feature 'image' holds no float" : "";
  }
  if (list.kind != bytes_list) return "feature 'image' holds neither bytes nor floats";
  example.element = Element::byte;
  std::size_t values = 0;
  WireReader reader(list.bytes);
  while (reader.next()) {
    if (!reader.is(1, Wire::bytes)) continue;
    example.bytes = reader.bytes();
    ++values;
  }
  if (!reader.ok()) return malformed;
  if (values != 1)
    return "feature 'image' holds " + std::to_string(values) + " byte strings, not one";
  return example.bytes.empty() ? "feature 'image' holds no byte" : "";
}

std::string parse_label(ByteView feature, TfExample& example) {
  List list;
  if (!find_list(feature, list)) return malformed;
  if (list.kind != int64_list) return "feature 'label' holds no int64";
  std::size_t values = 0;
  const auto take = [&](std::uint64_t number) {
    example.label = static_cast<std::int64_t>(number);
    ++values;
  };
  WireReader reader(list.bytes);
  while (reader.next()) {
    if (reader.field() != 1) continue;
    if (reader.wire() == Wire::varint) {
      take(reader.number());
    } else if (reader.wire() == Wire::bytes) {
      WireReader packed(reader.bytes());
      while (packed.ok() && !packed.at_end()) take(packed.varint());
      if (!packed.ok()) return malformed;
    } else {
      return malformed;
    }
  }
  if (!reader.ok()) return malformed;
  return values == 1 ? "" : "feature 'label' holds " + std::to_string(values) + " numbers, not one";
}

}  // namespace

std::string parse_example(std::span<const std::uint8_t> payload, TfExample& example) {
  FoundFeatures found;
  if (!find_features(payload, found)) return malformed;
  if (!found.image) return "the example has no feature 'image'";
  if (!found.label) return "the example has no feature 'label'";
  std::string problem = parse_image(*found.image, example);
  return problem.empty() ? parse_label(*found.label, example) : problem;
}

// TFRecord files.

namespace {

constexpr std::uint64_t header_bytes = 12;
constexpr std::uint64_t footer_bytes = 4;
constexpr std::uint64_t tfrecord_chunk_bytes = std::uint64_t{1} << 20;
const char* const write_again =
    "write tf.train.Example with `image` (raw bytes or floats) and `label` (int64)";

template <class Number>
Number little_endian(std::span<const std::uint8_t> bytes) noexcept {
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) value = static_cast<Number>(value << 8 | bytes[i]);
  return value;
}

bool matches(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> stored) noexcept {
  return masked(crc32c(bytes)) == little_endian<std::uint32_t>(stored);
}

/// True for the magic bytes of PNG or JPEG: encoded images, which are not supported.
bool is_encoded(std::span<const std::uint8_t> bytes) {
  constexpr std::array<std::uint8_t, 8> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  constexpr std::array<std::uint8_t, 4> jpeg{0xFF, 0xD8, 0xFF, 0xE0};  // JFIF, as in TensorFlow
  const auto begins = [bytes](std::span<const std::uint8_t> magic) {
    return bytes.size() > magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
  };
  return begins(png) || begins(jpeg);
}

/// Reads a file sequentially in large chunks.
class Window {
 public:
  explicit Window(Content& content) : content_(content) {}

  /// The `size` bytes at `offset`, within the file; offsets must not decrease.
  std::span<const std::uint8_t> at(std::uint64_t offset, std::uint64_t size) {
    if (offset + size > end_) {
      const std::uint64_t wanted =
          std::max(size, std::min(tfrecord_chunk_bytes, content_.size() - offset));
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

/// Returns the payload after verifying its checksum.
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

const TfExample& TfRecordSource::example_in(std::span<const std::uint8_t> bytes,
                                            std::uint64_t first, std::size_t k) {
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
    const TfExample& example = example_in(bytes, first, k);
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
