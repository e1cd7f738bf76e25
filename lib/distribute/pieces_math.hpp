// What operations compute on the pieces of one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "lib/distribute/exchange.hpp"
#include "lib/distribute/tensor.hpp"

namespace lockstep::sharding {

/// [m, k] times [k, n], each value one chain over k in order: no other row or column changes its
/// bits. float32 by the strict products (one thread; multiply and add fused), others by plain
/// loops; whole numbers wrap around.
Tensor<float> product(const Tensor<float>& a, const Tensor<float>& b);

template <Number T>
Tensor<T> product(const Tensor<T>& a, const Tensor<T>& b) {
  using Sum = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;
  const std::size_t inner = a.shape()[1];
  const std::size_t columns = b.shape()[1];
  std::vector<T> values;
  std::vector<Sum> sums(columns);
  for (std::size_t row = 0; row < a.shape()[0]; ++row) {
    std::fill(sums.begin(), sums.end(), Sum{});
    for (std::size_t k = 0; k < inner; ++k) {
      const auto factor = static_cast<Sum>(a.values()[row * inner + k]);
      const auto other = b.values().subspan(k * columns, columns);
      for (std::size_t j = 0; j < columns; ++j) sums[j] += factor * static_cast<Sum>(other[j]);
    }
    for (const Sum sum : sums) values.push_back(static_cast<T>(sum));
  }
  return {{a.shape()[0], columns}, std::move(values)};
}

/// Walks through an operand in the order of a result that it is broadcast to.
class Walk {
 public:
  /// Axes are aligned at the last; one of length 1 is repeated.
  Walk(const Shape& operand, const Shape& result);

  std::size_t index() const noexcept { return index_; }
  void next() noexcept;

 private:
  struct Axis {
    std::size_t length;
    std::size_t stride;  // 0 where it is repeated
    std::size_t at = 0;
  };
  std::vector<Axis> axes_;
  std::size_t index_ = 0;
};

/// `function` of both, value by value; `shape` is what they are broadcast to.
template <class T, class Function>
auto zip(const Tensor<T>& a, const Tensor<T>& b, const Shape& shape, Function function) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const T&, const T&>>;
  std::vector<Result> values;
  const std::size_t count = elements_of(shape);
  values.reserve(count);
  Walk left(a.shape(), shape);
  Walk right(b.shape(), shape);
  for (std::size_t i = 0; i < count; ++i, left.next(), right.next()) {
    values.push_back(function(a.values()[left.index()], b.values()[right.index()]));
  }
  return Tensor<Result>(shape, std::move(values));
}

}  // namespace lockstep::sharding
