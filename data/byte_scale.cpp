#include "data/byte_scale.hpp"

#include <cmath>
#include <cstddef>
#include <string>

#include "lib/base/errors.hpp"

namespace lockstep::data {

ByteScale::ByteScale(std::optional<float> divide_by) : divisor_(divide_by.value_or(255.0F)) {
  if (!std::isfinite(divisor_) || divisor_ <= 0.0F) {
    throw ConfigError("divide-by is " + std::to_string(divisor_),
                      "give --divide-by a positive, finite number, or auto");
  }
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
