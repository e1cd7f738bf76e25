// Protocol buffers, as far as tf.train.Example needs them.
// Source   https://protobuf.dev/programming-guides/encoding
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::data {

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

}  // namespace lockstep::data
