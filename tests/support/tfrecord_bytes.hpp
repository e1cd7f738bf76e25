// TFRecord files of tf.train.Example, byte by byte.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/data/tfrecord.hpp"

namespace lockstep::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

inline Bytes text(std::string_view value) { return {value.begin(), value.end()}; }

inline Bytes field(std::uint8_t number, const Bytes& value) {
  Bytes bytes{static_cast<std::uint8_t>(number << 3 | 2)};
  std::size_t size = value.size();
  for (; size >= 128; size >>= 7) bytes.push_back(static_cast<std::uint8_t>(size | 128));
  bytes.push_back(static_cast<std::uint8_t>(size));
  return bytes + value;
}

template <class Number>
Bytes little(Number number) {
  Bytes bytes;
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    bytes.push_back(static_cast<std::uint8_t>(number >> (8 * i)));
  return bytes;
}

inline Bytes floats(const std::vector<float>& values, bool packed = true) {
  Bytes bytes;
  for (const float value : values) {
    if (!packed) bytes.push_back(1 << 3 | 5);
    bytes = bytes + little(std::bit_cast<std::uint32_t>(value));
  }
  return field(2, packed ? field(1, bytes) : bytes);
}

inline Bytes entry(std::string_view key, const Bytes& feature) {
  return field(1, field(1, text(key)) + field(2, feature));
}
inline Bytes example(const Bytes& entries) { return field(1, entries); }

/// One framed record.
inline Bytes record(const Bytes& payload) {
  const Bytes length = little(std::uint64_t{payload.size()});
  return length + little(data::masked(data::crc32c(length))) + payload +
         little(data::masked(data::crc32c(payload)));
}

}  // namespace lockstep::test
