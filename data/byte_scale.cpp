#include "data/byte_scale.hpp"

#include <cmath>
#include <cstddef>
#include <string>

#include "lib/base/errors.hpp"

namespace lockstep::data {

float checked_divisor(std::optional<float> divide_by, float otherwise) {
  const float divisor = divide_by.value_or(otherwise);
  if (std::isfinite(divisor) && divisor > 0.0F) return divisor;
  throw ConfigError("divide-by is " + std::to_string(divisor),
                    "give --divide-by a positive, finite number, or auto");
}

ByteScale::ByteScale(std::optional<float> divide_by)
    : divisor_(checked_divisor(divide_by, 255.0F)) {
  for (std::size_t v = 0; v < table_.size(); ++v) table_[v] = static_cast<float>(v) / divisor_;
}

void ByteScale::apply(std::span<const std::uint8_t> bytes,
                      std::span<float> features) const noexcept {
  const std::uint8_t* const in = bytes.data();
  float* const out = features.data();
  const std::size_t size = bytes.size();
  for (std::size_t i = 0; i < size; ++i) out[i] = table_[in[i]];
}

}  // namespace lockstep::data
