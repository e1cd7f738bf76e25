// Sums and products in which whole numbers wrap around.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lib/distribute/tensor.hpp"

namespace lockstep::sharding {

template <Number T>
T plus(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <Number T>
T times(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) return a * b;
  return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

}  // namespace lockstep::sharding
