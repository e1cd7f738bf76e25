// tf.train.Example, from its bytes.
#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>

#include "data/tfrecord.hpp"
#include "data/wire.hpp"

namespace lockstep::data {
namespace {

using Bytes = std::span<const std::uint8_t>;
constexpr const char* malformed = "not a tf.train.Example: malformed protocol buffer";

// message Example { Features features = 1; }
// message Features { map<string, Feature> feature = 1; }
// message Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2;
//                           Int64List int64_list = 3; } }
// and each list { repeated ... value = 1; }
constexpr std::uint64_t bytes_list = 1;
constexpr std::uint64_t float_list = 2;
constexpr std::uint64_t int64_list = 3;

/// The two features that are read, as they stand in the payload.
struct Found {
  std::optional<Bytes> image;
  std::optional<Bytes> label;
};

/// One entry of the map: a key and a Feature, of which the last counts.
bool find_entry(Bytes entry, Found& found) {
  std::string_view key;
  Bytes value;
  WireReader reader(entry);
  while (reader.next()) {
    const Bytes bytes = reader.bytes();
    if (reader.is(1, Wire::bytes)) {
      key = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    if (reader.is(2, Wire::bytes)) value = bytes;
  }
  if (key == "image") found.image = value;
  if (key == "label") found.label = value;
  return reader.ok();
}

bool find_features(Bytes payload, Found& found) {
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

/// The list that a Feature holds: which of the three, and its bytes. 0: none.
struct List {
  std::uint64_t kind = 0;
  Bytes bytes;
};

bool find_list(Bytes feature, List& list) {
  WireReader reader(feature);
  while (reader.next()) {
    if (reader.wire() == Wire::bytes && reader.field() <= int64_list) {
      list = {reader.field(), reader.bytes()};
    }
  }
  return reader.ok();
}

void append_floats(Bytes bytes, std::vector<float>& numbers) {
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

std::string parse_floats(Bytes list, std::vector<float>& numbers) {
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

std::string parse_image(Bytes feature, Example& example) {
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

std::string parse_label(Bytes feature, Example& example) {
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

std::string parse_example(std::span<const std::uint8_t> payload, Example& example) {
  Found found;
  if (!find_features(payload, found)) return malformed;
  if (!found.image) return "the example has no feature 'image'";
  if (!found.label) return "the example has no feature 'label'";
  std::string problem = parse_image(*found.image, example);
  return problem.empty() ? parse_label(*found.label, example) : problem;
}

}  // namespace lockstep::data
