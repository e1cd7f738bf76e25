#include "lockstep/data/tfrecord.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/picture.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

std::uint32_t crc32c(std::span<const std::uint8_t> bytes) noexcept {
  constexpr std::size_t max_bytes = std::size_t{1} << 30;  // of one call, whose size is an int
  std::uint32_t crc = ~0U;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), max_bytes));
    // Takes a pointer to non-const bytes, and reads them only.
    crc = crc32_iscsi(const_cast<std::uint8_t*>(piece.data()), static_cast<int>(piece.size()), crc);
    bytes = bytes.subspan(piece.size());
  }
  return ~crc;
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

/// Parses one map entry, a key and a Feature (the last occurrence of each), for found(key,
/// Feature).
template <class Found>
bool find_entry(ByteView entry, const Found& found) {
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
  found(key, value);
  return reader.ok();
}

/// Calls found(name, Feature) for each feature of an example; the last of equal names counts.
template <class Found>
bool find_features(ByteView payload, const Found& found) {
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
  std::memcpy(numbers.data() + used, bytes.data(), (numbers.size() - used) * sizeof(float));
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

std::string parse_ints(ByteView list, std::vector<std::int64_t>& numbers) {
  numbers.clear();
  WireReader reader(list);
  while (reader.next()) {
    if (reader.field() != 1) continue;
    if (reader.wire() == Wire::varint) {
      numbers.push_back(static_cast<std::int64_t>(reader.number()));
    } else if (reader.wire() == Wire::bytes) {
      WireReader packed(reader.bytes());
      while (packed.ok() && !packed.at_end()) {
        numbers.push_back(static_cast<std::int64_t>(packed.varint()));
      }
      if (!packed.ok()) return malformed;
    } else {
      return malformed;
    }
  }
  return reader.ok() ? "" : malformed;
}

/// Calls `take` with each value of a BytesList.
template <class Take>
std::string parse_strings(ByteView list, Take take) {
  WireReader reader(list);
  while (reader.next()) {
    if (reader.is(1, Wire::bytes)) take(reader.bytes());
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
  const std::string problem = parse_strings(list.bytes, [&](ByteView bytes) {
    example.bytes = bytes;
    ++values;
  });
  if (!problem.empty()) return problem;
  if (values != 1)
    return "feature 'image' holds " + std::to_string(values) + " byte strings, not one";
  return example.bytes.empty() ? "feature 'image' holds no byte" : "";
}

std::string parse_label(ByteView feature, TfExample& example) {
  List list;
  if (!find_list(feature, list)) return malformed;
  if (list.kind != int64_list) return "feature 'label' holds no int64";
  const std::string problem = parse_ints(list.bytes, example.labels);
  if (!problem.empty()) return problem;
  const std::size_t values = example.labels.size();
  if (values == 1) example.label = example.labels.front();
  return values == 1 ? "" : "feature 'label' holds " + std::to_string(values) + " numbers, not one";
}

constexpr std::array type_names = {"float32", "int64", "bytes"};  // by FeatureType

FeatureType type_of(const FeatureValues& values) {
  return static_cast<FeatureType>(values.index());
}

std::size_t count_of(const FeatureValues& values) {
  return std::visit([](const auto& list) { return list.size(); }, values);
}

std::size_t places_of(const FeatureSpec& spec) {
  std::size_t places = 1;
  for (const std::size_t length : spec.shape) places *= length;
  return places;
}

/// The feature's default value, one for each place.
FeatureValues default_of(const FeatureSpec& spec) {
  FeatureValues values = *spec.default_value;
  const auto repeat = [&](auto& list) {
    if (list.size() != 1) return;
    const auto first = list.front();
    list.resize(places_of(spec), first);
  };
  std::visit(repeat, values);
  return values;
}

/// Parses a Feature's list, which is of type `type`, into `values`.
std::string parse_list(const List& list, FeatureType type, FeatureValues& values) {
  switch (type) {
    case FeatureType::float32: return parse_floats(list.bytes, values.emplace<0>());
    case FeatureType::int64: return parse_ints(list.bytes, values.emplace<1>());
    case FeatureType::bytes: break;
  }
  auto& texts = values.emplace<2>();
  return parse_strings(list.bytes,
                       [&](ByteView bytes) { texts.emplace_back(bytes.begin(), bytes.end()); });
}

/// One feature of a specification; `feature` is null if the example lacks it.
std::string parse_feature(const std::string& name, const FeatureSpec& spec, const ByteView* feature,
                          FeatureValues& values) {
  List list;
  if (feature != nullptr && !find_list(*feature, list)) return malformed;
  if (list.kind == 0) {  // a Feature without a list counts as missing
    if (spec.any_length) return parse_list({}, spec.type, values);
    if (!spec.default_value) return "the example has no feature " + in_quotes(name);
    values = default_of(spec);
    return "";
  }
  constexpr std::array types = {FeatureType::bytes, FeatureType::float32, FeatureType::int64};
  const FeatureType stored = types[list.kind - 1];
  const std::string holds = "feature " + in_quotes(name) + " holds ";
  const auto name_of_type = [](FeatureType type) {
    return std::string(type_names[static_cast<std::size_t>(type)]);
  };
  if (stored != spec.type) return holds + name_of_type(stored) + ", not " + name_of_type(spec.type);
  std::string problem = parse_list(list, stored, values);
  if (!problem.empty() || spec.any_length || count_of(values) == places_of(spec)) return problem;
  return holds + counted(count_of(values), "value") + ", not " + std::to_string(places_of(spec)) +
         (spec.shape.size() > 1 ? " (" + shape_text(spec.shape) + ")" : "");
}

}  // namespace

std::string parse_example(std::span<const std::uint8_t> payload, TfExample& example) {
  std::optional<ByteView> image;
  std::optional<ByteView> label;
  const auto found = [&](std::string_view name, ByteView feature) {
    if (name == "image") image = feature;
    if (name == "label") label = feature;
  };
  if (!find_features(payload, found)) return malformed;
  if (!image) return "the example has no feature 'image'";
  if (!label) return "the example has no feature 'label'";
  std::string problem = parse_image(*image, example);
  return problem.empty() ? parse_label(*label, example) : problem;
}

void require_features(const FeatureSpecs& specs) {
  if (specs.empty()) throw ConfigError("a specification of no features", "give at least one");
  for (const auto& [name, spec] : specs) {
    if (spec.any_length && (spec.default_value || !spec.shape.empty())) {
      throw ConfigError(
          "feature " + in_quotes(name) + " of any length has a shape or a default value",
          "leave them out: an example without it has a list of no values");
    }
    if (!spec.default_value) continue;
    const std::size_t count = count_of(*spec.default_value);
    if (type_of(*spec.default_value) == spec.type && (count == 1 || count == places_of(spec))) {
      continue;
    }
    throw ConfigError("feature " + in_quotes(name) + ": " + counted(count, "default value") +
                          " of type " + type_names[spec.default_value->index()] + " for type " +
                          type_names[static_cast<std::size_t>(spec.type)] + " and " +
                          counted(places_of(spec), "place"),
                      "give one value of the feature's type, or one for each place");
  }
}

std::string parse_features(std::span<const std::uint8_t> payload, const FeatureSpecs& specs,
                           std::map<std::string, FeatureValues>& values) {
  std::map<std::string_view, ByteView> features;
  const auto found = [&](std::string_view name, ByteView feature) { features[name] = feature; };
  if (!find_features(payload, found)) return malformed;
  for (const auto& [name, spec] : specs) {
    const auto feature = features.find(name);
    const ByteView* const view = feature == features.end() ? nullptr : &feature->second;
    std::string problem = parse_feature(name, spec, view, values[name]);
    if (!problem.empty()) return problem;
  }
  return "";
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

}  // namespace

bool is_record_header(std::span<const std::uint8_t, header_bytes> bytes) noexcept {
  return matches(bytes.first<8>(), bytes.subspan<8>());
}

namespace {

[[noreturn]] void fail_at(const Content& content, std::uint64_t offset, std::uint64_t record,
                          const std::string& problem, const std::string& remedy) {
  throw DataError(content.place(offset) + ": record " + std::to_string(record) + ": " + problem,
                  remedy);
}

/// The payload of the framed record `record` at `offset`, after verifying its checksum.
std::span<const std::uint8_t> payload_in(const Content& content, std::uint64_t offset,
                                         std::uint64_t number,
                                         std::span<const std::uint8_t> record) {
  const auto payload = record.subspan(header_bytes, record.size() - header_bytes - footer_bytes);
  if (matches(payload, record.last(footer_bytes))) return payload;
  fail_at(content, offset + header_bytes, number, "the checksum of its payload differs",
          fetch_again);
}

}  // namespace

TfRecordReader::TfRecordReader(Content& content) : content_(content) {}

/// The `size` bytes at `offset`, within the file; offsets must not decrease.
std::span<const std::uint8_t> TfRecordReader::bytes_at(std::uint64_t offset, std::uint64_t size) {
  if (offset + size > buffer_begin_ + buffer_.size()) {
    const std::uint64_t wanted =
        std::max(size, std::min(tfrecord_chunk_bytes, content_.size() - offset));
    buffer_.resize(static_cast<std::size_t>(wanted));
    content_.read_at(offset, buffer_);
    buffer_begin_ = offset;
  }
  return std::span(buffer_).subspan(static_cast<std::size_t>(offset - buffer_begin_),
                                    static_cast<std::size_t>(size));
}

std::optional<TfRecordReader::Record> TfRecordReader::next() {
  const std::uint64_t size = content_.size();
  if (offset_ >= size) return std::nullopt;
  const auto fail = [&](const std::string& problem) {
    fail_at(content_, offset_, number_, problem, fetch_again);
  };
  const std::uint64_t left = size - offset_;
  if (left < header_bytes) fail("the file ends within its header");
  const auto header = bytes_at(offset_, header_bytes);
  if (!matches(header.first(8), header.subspan(8))) {
    fail("the checksum of its length differs; no TFRecord, or a damaged one");
  }
  const auto length = little_endian<std::uint64_t>(header.first(8));
  if (left < header_bytes + footer_bytes || length > left - header_bytes - footer_bytes) {
    fail("its " + std::to_string(length) + " bytes go beyond the file's end at byte " +
         std::to_string(size));
  }
  const std::uint64_t whole = header_bytes + length + footer_bytes;
  const Record record{number_, offset_,
                      payload_in(content_, offset_, number_, bytes_at(offset_, whole))};
  offset_ += whole;
  ++number_;
  return record;
}

TfFeatureReader::TfFeatureReader(const std::filesystem::path& path, FeatureSpecs specs)
    : specs_(std::move(specs)), content_(path), records_(content_) {
  require_features(specs_);
  content_.finish();
}

const std::map<std::string, FeatureValues>* TfFeatureReader::next() {
  const auto record = records_.next();
  if (!record) return nullptr;
  const std::string problem = parse_features(record->payload, specs_, values_);
  if (!problem.empty()) {
    fail_at(content_, record->offset, record->number, problem,
            "give the specification the names, types and shapes that the examples have");
  }
  return &values_;
}

TfRecordSource::TfRecordSource(const std::filesystem::path& path, const ReadOptions& options)
    : StoredSource("tfrecord", path, options) {
  content_.finish();
  scan();
}

void TfRecordSource::fail(std::uint64_t offset, std::uint64_t record, const std::string& problem,
                          const std::string& remedy) const {
  fail_at(content_, offset, record, problem, remedy.empty() ? write_again : remedy);
}

void TfRecordSource::scan() {
  if (content_.size() == 0) {
    throw DataError(content_.place(0) + ": holds 0 records", "give it at least one");
  }
  TfRecordReader reader(content_);
  offsets_.push_back(0);
  while (!limit_ || records() < *limit_) {
    const auto record = reader.next();
    if (!record) return;
    scan_record(record->offset, record->payload);
    offsets_.push_back(reader.offset());
  }
}

void TfRecordSource::scan_record(std::uint64_t offset, std::span<const std::uint8_t> payload) {
  const std::uint64_t record = records();
  const std::string problem = parse_example(payload, example_);
  if (!problem.empty()) fail(offset, record, problem);
  if (record == 0) {
    if (begins_png(example_.bytes) || begins_jpeg(example_.bytes)) {
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
  labels_.push_back(
      checked_label(example_.label, classes_, record, [&] { return content_.place(offset); }));
}

const TfExample& TfRecordSource::example_in(std::span<const std::uint8_t> bytes,
                                            std::uint64_t first, std::size_t k) {
  const std::uint64_t offset = offsets_[first + k];
  const auto size = static_cast<std::size_t>(offsets_[first + k + 1] - offset);
  const auto record = bytes.subspan(static_cast<std::size_t>(offset - offsets_[first]), size);
  const std::string problem =
      parse_example(payload_in(content_, offset, first + k, record), example_);
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
