#include "lib/base/philox.hpp"

#include <bit>

namespace lockstep {

float unit_float(std::uint32_t word) noexcept {
  constexpr std::uint32_t one = 127U << 23;  // the bits of 1.0F: exponent alone
  return std::bit_cast<float>(one | (word & 0x7FFFFFU)) - 1.0F;
}

}  // namespace lockstep
