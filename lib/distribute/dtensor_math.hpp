// Operations on tensors that are spread over a mesh: each rank computes on its pieces, and what the
// layouts imply is moved, nothing else.
//
// All are collective, and take the layout of the result as last argument. Without it the result
// lies as the operation's table says, with all sums taken. Operands that hold sums not yet taken
// are summed first, but for reductions, which keep them to the end.
//
// Bits     No cut of an axis that is kept changes a bit. Over an axis that is added up, each rank
//          adds its own indices in order, and the ranks' sums are added by coordinate: so floats
//          may differ in their last bits from one cut of that axis to another. Whole numbers are
//          exact and wrap around.
// Errors   throw the same comm::AgreedError (2) on all ranks: shapes that do not fit, tensors on
//          different meshes, a layout that the result cannot take.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "lib/distribute/dtensor.hpp"
#include "lib/distribute/pieces_math.hpp"
#include "lib/distribute/rules.hpp"

namespace lockstep {
namespace sharding {

/// The result from its pieces, as it was asked for.
template <Number T>
DTensor<T> finished(Mesh& mesh, const Layout& layout, Shape shape, Tensor<T> piece,
                    const std::optional<Layout>& to) {
  return Maker::make(mesh, layout, std::move(shape), std::move(piece))
      .relayout(to.value_or(layout.summed()));
}

/// The divisor of a mean, in the elements' type.
template <Number T>
DTensor<T> divided(const DTensor<T>& sum, std::size_t count) {
  const auto divisor = static_cast<T>(count);
  return Maker::make(sum.mesh(), sum.layout(), sum.shape(),
                     sum.unpack().map([&](T value) { return static_cast<T>(value / divisor); }));
}

template <Number T>
void require_mean(const DTensor<T>& tensor, std::size_t count, const std::optional<Layout>& to) {
  exchange::require_divisible<T>(ReduceOp::mean);
  if (count == 0) {
    exchange::refuse("the mean of no values, of shape " + to_text(tensor.shape()),
                     "reduce an axis that has a length");
  }
  if (to && to->is_partial()) {
    exchange::refuse("a mean with " + to_text(*to), "ask for a layout whose sums are taken");
  }
}

}  // namespace sharding

/// [m, k] times [k, n].
///
///   a          b          moved first                result
///   [x, -]     [-, y]     nothing                    [x, y]
///   [x, s]     [s, y]     nothing                    [x, y], summed over s
///   [x, s]     [-, y]     b sliced (local)           [x, y], summed over s
///   [x, -]     [s, y]     a sliced (local)           [x, y], summed over s
///   [x, s]     [t, y]     b gathered over t, sliced  [x, y], summed over s
///   [x, s]     [-, s]     a gathered over s          [x, s]
///   [x, -]     [x, y]     b gathered over x          [x, y]
///   [x, -]     [-, x]     b gathered over x          [x, -]
///
/// Rows stay cut as in a, columns as in b; where that is one dimension the columns give way. The
/// sum over s is an all-reduce, or a reduce-scatter where `to` cuts an axis over s; it is left to
/// be taken where `to` is partial over s. Each value is one chain over k (sharding::product).
template <Number T>
DTensor<T> matmul(const DTensor<T>& a, const DTensor<T>& b,
                  const std::optional<Layout>& to = std::nullopt) {
  const auto plan = sharding::matmul_plan(a.layout(), a.shape(), b.layout(), b.shape());
  const auto left = a.relayout(plan.a);
  const auto right = b.relayout(plan.b);
  return sharding::finished(a.mesh(), plan.result, plan.shape,
                            sharding::product(left.unpack(), right.unpack()), to);
}

/// `function(x, y)` of every pair of values; an axis that one lacks or has with length 1 is
/// repeated for it, axes counted from the last: a bias [n] is added to each row of [m, n].
///
///   larger     smaller    moved first                result
///   [x, y]     [x, y]     nothing                    [x, y]
///   [x, y]     [y]        nothing                    [x, y]    the bias as layout.without_axis(0)
///   [x, y]     [-, -]     the smaller sliced (local) [x, y]
///   [x, -]     [-, y]     both sliced (local)        [x, y]
///   [x, -]     [y, -]     y gathered, then sliced    [x, -]
///   [x, -]     [-, x]     x moved by all-to-all      [x, -]
///
/// Of two that are equally large, `a` counts as the larger.
template <Number T, class Function>
auto elementwise(const DTensor<T>& a, const DTensor<T>& b, Function function,
                 const std::optional<Layout>& to = std::nullopt) {
  const auto plan = sharding::elementwise_plan(a.layout(), a.shape(), b.layout(), b.shape());
  const auto left = a.relayout(plan.a);
  const auto right = b.relayout(plan.b);
  const Shape local = plan.result.local_shape(plan.shape, a.mesh().rank());
  return sharding::finished(a.mesh(), plan.result, plan.shape,
                            sharding::zip(left.unpack(), right.unpack(), local, function), to);
}

/// Sums and products value by value; see elementwise. Whole numbers wrap around.
template <Number T>
DTensor<T> add(const DTensor<T>& a, const DTensor<T>& b,
               const std::optional<Layout>& to = std::nullopt) {
  return elementwise(a, b, sharding::plus<T>, to);
}
template <Number T>
DTensor<T> multiply(const DTensor<T>& a, const DTensor<T>& b,
                    const std::optional<Layout>& to = std::nullopt) {
  return elementwise(a, b, sharding::times<T>, to);
}

/// `function` of every value. Where sums are taken it is local, and the layout stays.
template <Number T, class Function>
auto map(const DTensor<T>& tensor, Function function) {
  const auto summed = tensor.relayout(tensor.layout().summed());
  return sharding::Maker::make(summed.mesh(), summed.layout(), summed.shape(),
                               summed.unpack().map(function));
}

/// The sum along `axis`, which goes. Ranks' own sums are taken in double and rounded.
///
///   axis       result
///   unsharded  the layout without the axis; nothing is moved
///   cut by s   the same, summed over s: an all-reduce, or a reduce-scatter where `to` cuts over s
template <Number T>
DTensor<T> reduce_sum(const DTensor<T>& tensor, std::size_t axis,
                      const std::optional<Layout>& to = std::nullopt) {
  const Layout layout = sharding::reduced_layout(tensor.layout(), axis);
  Shape shape = tensor.shape();
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  const auto sums = exchange::sum_along(tensor.unpack(), axis);
  return sharding::finished(tensor.mesh(), layout, std::move(shape), exchange::narrowed<T>(sums, 1),
                            to);
}

/// The sum of all values, shape (), on every rank: summed over every dimension that cuts an axis.
template <Number T>
DTensor<T> reduce_sum(const DTensor<T>& tensor) {
  const auto values = tensor.unpack().values();
  const Tensor<T> flat(Shape{values.size()}, {values.begin(), values.end()});
  return sharding::finished(tensor.mesh(), sharding::fully_reduced_layout(tensor.layout()), Shape{},
                            exchange::narrowed<T>(exchange::sum_along(flat, 0), 1), std::nullopt);
}

/// The same divided by the number of values. Also refused: whole numbers, and no values.
template <Number T>
DTensor<T> reduce_mean(const DTensor<T>& tensor, std::size_t axis,
                       const std::optional<Layout>& to = std::nullopt) {
  const std::size_t count = axis < tensor.shape().size() ? tensor.shape()[axis] : 1;
  sharding::require_mean(tensor, count, to);
  return sharding::divided(reduce_sum(tensor, axis, to), count);
}
template <Number T>
DTensor<T> reduce_mean(const DTensor<T>& tensor) {
  const std::size_t count = elements_of(tensor.shape());
  sharding::require_mean(tensor, count, std::nullopt);
  return sharding::divided(reduce_sum(tensor), count);
}

}  // namespace lockstep
