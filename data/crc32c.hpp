// CRC-32C (Castagnoli), as TFRecord files have it.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

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
