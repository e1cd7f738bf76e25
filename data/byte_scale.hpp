// From stored bytes to features.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::data {

/// `divide_by`, or `otherwise` where there is none. Throws ConfigError unless it is positive and
/// finite.
float checked_divisor(std::optional<float> divide_by, float otherwise);

/// float(v) / divisor for every byte v, divided once, in float32.
class ByteScale {
 public:
  /// None means 255. Throws ConfigError unless the divisor is positive and finite.
  explicit ByteScale(std::optional<float> divide_by);

  float divisor() const noexcept { return divisor_; }

  /// Writes one feature a byte; `features` is at least as long as `bytes`.
  void apply(std::span<const std::uint8_t> bytes, std::span<float> features) const noexcept;

 private:
  float divisor_;
  std::array<float, 256> table_{};
};

/// Divides each value, in float32.
void divide(std::span<float> values, float divisor) noexcept;

}  // namespace lockstep::data
