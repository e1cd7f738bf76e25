// The 64-bit hash that is compared between ranks, runs and files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// XXH3, 64 bits, of all bytes added so far; independent of their division into calls.
///
/// Numbers are added in the machine's own (little-endian) representation.
/// Source   https://github.com/Cyan4973/xxHash, XXH3_64bits.
class Hash {
 public:
  Hash();
  ~Hash();
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void add_bytes(std::span<const std::byte> bytes);
  void add(std::string_view text);  ///< length and bytes: "ab","c" differs from "a","bc"
  void add(std::uint64_t number);
  void add(std::span<const float> values) { add_bytes(std::as_bytes(values)); }

  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The hash of one range of bytes, or of the bytes of a text.
std::uint64_t hash_of(std::span<const std::byte> bytes);
std::uint64_t hash_of(std::string_view text);

/// 16 lower-case hexadecimal digits.
std::string to_hex(std::uint64_t value);

}  // namespace lockstep
