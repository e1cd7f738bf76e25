// Arithmetic of the values of tensors, and local operations along one axis: sums, concatenation and
// cuts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/distribute/tensor.hpp"

namespace lockstep::sharding {

/// Sum, difference and product; integers wrap around.
template <Number T>
T plus(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <Number T>
T minus(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) return a - b;
  return static_cast<T>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

template <Number T>
T times(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) return a * b;
  return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

/// A tensor's shape seen from one axis: [outer, length, inner], row-major.
struct AxisView {
  std::size_t outer = 1;
  std::size_t length = 0;
  std::size_t inner = 1;
};
/// Throws ConfigError if `axis` is not below the number of axes.
AxisView view_axis(const Shape& shape, std::size_t axis);

/// `axis` of `axes`, counted from 0: negative ones are counted from the end, -1 is the last. One
/// that does not exist is returned as it is, for the error of view_axis.
std::size_t axis_from_0(std::ptrdiff_t axis, std::size_t axes) noexcept;

/// The accumulation type: double for floating point, else std::uint64_t, which wraps.
template <Number T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;

/// The sums along `axis`, which is removed from the shape. Each sum is taken in the order of the
/// indices.
template <Number T>
Tensor<Wide<T>> sum_along(const Tensor<T>& tensor, std::size_t axis) {
  const auto [outer, length, inner] = view_axis(tensor.shape(), axis);
  std::vector<Wide<T>> sums(outer * inner);
  auto addend = tensor.values().begin();
  for (std::size_t o = 0; o < outer; ++o) {
    for (std::size_t l = 0; l < length; ++l) {
      for (std::size_t i = 0; i < inner; ++i) {
        sums[o * inner + i] += static_cast<Wide<T>>(*addend++);
      }
    }
  }
  Shape shape = tensor.shape();
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  return {std::move(shape), std::move(sums)};
}

/// The tensors concatenated along `axis`; at least one, of equal shapes on the other axes.
template <class T>
Tensor<T> concatenate(const std::vector<Tensor<T>>& parts, std::size_t axis) {
  Shape shape = parts.front().shape();
  shape[axis] = 0;
  for (const auto& part : parts) shape[axis] += part.shape()[axis];
  const auto [outer, length, inner] = view_axis(shape, axis);
  std::vector<T> values;
  values.reserve(elements_of(shape));
  for (std::size_t o = 0; o < outer; ++o) {
    for (const auto& part : parts) {
      const std::size_t count = part.shape()[axis] * inner;
      const auto from = part.values().subspan(o * count, count);
      values.insert(values.end(), from.begin(), from.end());
    }
  }
  return {std::move(shape), std::move(values)};
}

/// Converts sums to T, divided by `divisor` if T is floating point.
template <Number T>
Tensor<T> narrowed(const Tensor<Wide<T>>& sums, double divisor) {
  return sums.map([&](Wide<T> sum) {
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(sum / divisor);
    return static_cast<T>(sum);
  });
}

/// A copy of the indices `range` of `axis`.
template <class T>
Tensor<T> cut_axis(const Tensor<T>& tensor, std::size_t axis, Range range) {
  const auto [outer, length, inner] = view_axis(tensor.shape(), axis);
  const std::size_t columns = range.size() * inner;
  Shape shape = tensor.shape();
  shape[axis] = range.size();
  std::vector<T> values;
  values.reserve(outer * columns);
  for (std::size_t o = 0; o < outer; ++o) {
    const auto row = tensor.values().subspan((o * length + range.begin) * inner, columns);
    values.insert(values.end(), row.begin(), row.end());
  }
  return {std::move(shape), std::move(values)};
}

}  // namespace lockstep::sharding
