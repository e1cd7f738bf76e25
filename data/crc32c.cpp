#include "data/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep::data {
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

}  // namespace lockstep::data
