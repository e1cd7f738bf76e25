// Operations on tensors over a mesh: products, element-wise operations with broadcasting,
// reductions, softmax and its loss, and changes of shape. A Tape records them (dtensor.hpp).
//
// Each rank computes on its pieces; the layouts determine the communication. All operations are
// collective. Most take the result's layout as last argument; by default the result has the layout
// of the operation's table, with all sums complete. Operands with partial sums are summed first;
// reductions complete them last.
//
// Bits     Cutting an axis that the result keeps changes no bit. Along an axis that is summed, each
//          rank adds its own indices in order, and the ranks' sums are added by coordinate: floats
//          may differ in their last bits between different cuts of that axis. Integers are exact
//          and wrap around. Gradients are products and sums of this kind: see Tape.
// Errors   all throw the same comm::AgreedError (2) on all ranks: incompatible shapes, tensors on
//          different meshes, a layout that is not possible for the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/distribute/dtensor.hpp"
#include "lockstep/distribute/mesh.hpp"

namespace lockstep::sharding {

/// The matrix product of [m, k] and [k, n]. Each element is one sum over k in order, so its bits do
/// not depend on the other rows and columns. float32 uses the strict products on one thread (with
/// fused multiply-adds); integers wrap around. Local.
template <MeshNumber T>
Tensor<T> product(const Tensor<T>& a, const Tensor<T>& b);

/// The stride of each axis of `result` in an operand that is broadcast to it: axes are aligned at
/// the last one; the stride of an axis that is repeated is 0.
std::vector<std::size_t> broadcast_strides(const Shape& operand, const Shape& result);

/// `function(x, y)` for each element of `shape`, to which both tensors are broadcast. Local.
template <class T, class Function>
auto zip(const Tensor<T>& a, const Tensor<T>& b, const Shape& shape, Function function) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const T&, const T&>>;
  const Shape rows(shape.begin(), shape.empty() ? shape.end() : shape.end() - 1);
  const std::size_t length = shape.empty() ? 1 : shape.back();
  const auto left = broadcast_strides(a.shape(), shape);
  const auto right = broadcast_strides(b.shape(), shape);
  const std::size_t step_x = left.empty() ? 1 : left.back();
  const std::size_t step_y = right.empty() ? 1 : right.back();
  std::vector<Result> values(elements_of(shape));
  for (std::size_t row = 0; length > 0 && row < elements_of(rows); ++row) {
    std::size_t x = 0;
    std::size_t y = 0;
    std::size_t rest = row;
    for (std::size_t axis = rows.size(); axis-- > 0; rest /= rows[axis]) {
      x += rest % rows[axis] * left[axis];
      y += rest % rows[axis] * right[axis];
    }
    for (std::size_t i = 0; i < length; ++i) {
      values[row * length + i] = function(a.values()[x + i * step_x], b.values()[y + i * step_y]);
    }
  }
  return Tensor<Result>(shape, std::move(values));
}

/// The operands of an element-wise operation in the layouts in which each rank combines its pieces.
template <MeshNumber T>
struct Operands {
  DTensor<T> a;
  DTensor<T> b;
  Layout layout;  ///< of the result
  Shape shape;    ///< of the result, globally
};

/// Collective. `operation`: its name in errors.
template <MeshNumber T>
Operands<T> operands_of(const char* operation, const DTensor<T>& a, const DTensor<T>& b);

template <MeshNumber T, class Function>
auto zip(const Operands<T>& operands, Function function) {
  auto& mesh = operands.a.mesh();
  const Shape local = operands.layout.local_shape(operands.shape, mesh.rank());
  return Maker::make(mesh, operands.layout, operands.shape,
                     zip(operands.a.unpack(), operands.b.unpack(), local, function));
}

/// `function` of each element, in the same layout; not on tapes. Local.
template <MeshNumber T, class Function>
auto mapped(const DTensor<T>& tensor, Function function) {
  return Maker::make(tensor.mesh(), tensor.layout(), tensor.shape(), tensor.unpack().map(function));
}

}  // namespace lockstep::sharding

namespace lockstep {

/// The matrix product of a [m, k] and b [k, n].
///
///   a          b          sent before                result
///   [x, -]     [-, y]     nothing                    [x, y]
///   [x, s]     [s, y]     nothing                    [x, y], summed over s
///   [x, s]     [-, y]     b sliced (local)           [x, y], summed over s
///   [x, -]     [s, y]     a sliced (local)           [x, y], summed over s
///   [x, s]     [t, y]     b gathered over t, sliced  [x, y], summed over s
///   [x, s]     [-, s]     a gathered over s          [x, s]
///   [x, -]     [x, y]     b gathered over x          [x, y]
///   [x, -]     [-, x]     b gathered over x          [x, -]
///
/// Rows stay cut as in a and columns as in b; if that is the same dimension, only the rows are cut.
/// The sum over s is an all-reduce, or a reduce-scatter if `to` cuts an axis over s; it is omitted
/// if `to` is partial over s. Each element is one sum over k in order (sharding::product).
template <MeshNumber T>
DTensor<T> matmul(const DTensor<T>& a, const DTensor<T>& b,
                  const std::optional<Layout>& to = std::nullopt);

/// `function(x, y)` for each pair of elements. Shapes broadcast as in NumPy: axes are aligned at
/// the last one, and a missing axis or one of length 1 is repeated. A bias [n] is added to each row
/// of [m, n].
///
///   larger     smaller    sent before                result
///   [x, y]     [x, y]     nothing                    [x, y]
///   [x, y]     [y]        nothing                    [x, y]    the bias as layout.without_axis(0)
///   [x, y]     [-, -]     the smaller sliced (local) [x, y]
///   [x, -]     [-, y]     both sliced (local)        [x, y]
///   [x, -]     [y, -]     y gathered, then sliced    [x, -]
///   [x, -]     [-, x]     x moved by all-to-all      [x, -]
///
/// If both have the same number of elements, `a` counts as the larger. Has no derivative; a result
/// of another type is a constant for tapes.
template <MeshNumber T, class Function>
auto elementwise(const DTensor<T>& a, const DTensor<T>& b, Function function,
                 const std::optional<Layout>& to = std::nullopt) {
  const auto operands = sharding::operands_of("elementwise", a, b);
  auto result = sharding::zip(operands, function);
  if constexpr (std::is_same_v<typename decltype(result)::Value, T>) {
    result =
        sharding::on_tape("elementwise", std::move(result), sharding::input(operands.a, nullptr),
                          sharding::input(operands.b, nullptr));
  }
  return result.relayout(to.value_or(operands.layout));
}

/// The element-wise sum, difference, product or quotient; layouts and shapes as in elementwise.
/// Integers wrap around. Also written a + b, a - b, a * b and a / b.
template <MeshNumber T>
DTensor<T> add(const DTensor<T>& a, const DTensor<T>& b,
               const std::optional<Layout>& to = std::nullopt);
template <MeshNumber T>
DTensor<T> subtract(const DTensor<T>& a, const DTensor<T>& b,
                    const std::optional<Layout>& to = std::nullopt);
template <MeshNumber T>
DTensor<T> multiply(const DTensor<T>& a, const DTensor<T>& b,
                    const std::optional<Layout>& to = std::nullopt);
template <Differentiable T>
DTensor<T> divide(const DTensor<T>& a, const DTensor<T>& b,
                  const std::optional<Layout>& to = std::nullopt);

template <MeshNumber T>
DTensor<T> operator+(const DTensor<T>& a, const DTensor<T>& b) {
  return add(a, b);
}
template <MeshNumber T>
DTensor<T> operator-(const DTensor<T>& a, const DTensor<T>& b) {
  return subtract(a, b);
}
template <MeshNumber T>
DTensor<T> operator*(const DTensor<T>& a, const DTensor<T>& b) {
  return multiply(a, b);
}
template <Differentiable T>
DTensor<T> operator/(const DTensor<T>& a, const DTensor<T>& b) {
  return divide(a, b);
}

/// `function` of each element, in the same layout. Local, unless partial sums are completed first.
/// Has no derivative; a result of another type is a constant for tapes.
template <MeshNumber T, class Function>
auto elementwise(const DTensor<T>& tensor, Function function) {
  const auto summed = tensor.relayout(tensor.layout().summed());
  auto result = sharding::mapped(summed, function);
  if constexpr (std::is_same_v<typename decltype(result)::Value, T>) {
    result = sharding::on_tape("elementwise", std::move(result), sharding::input(summed, nullptr));
  }
  return result;
}

/// The same with a derivative: `derivative(x)` is that of function(x).
///
///   const auto y = elementwise(x, [](float v) { return v * v; }, [](float v) { return 2 * v; });
template <Differentiable T, class Function, class Derivative>
DTensor<T> elementwise(const DTensor<T>& tensor, Function function, Derivative derivative) {
  const auto summed = tensor.relayout(tensor.layout().summed());
  return sharding::on_tape("elementwise", sharding::mapped(summed, function),
                           sharding::input(summed, [=](const auto& gradient) {
                             return multiply(gradient, elementwise(summed, derivative));
                           }));
}

/// Each element times, divided by, or plus a number; and -a, and a number minus each element. The
/// layout stays.
template <Differentiable T>
DTensor<T> operator*(const DTensor<T>& a, std::type_identity_t<T> factor);
template <Differentiable T>
DTensor<T> operator*(std::type_identity_t<T> factor, const DTensor<T>& a) {
  return a * factor;
}
template <Differentiable T>
DTensor<T> operator/(const DTensor<T>& a, std::type_identity_t<T> divisor);
template <Differentiable T>
DTensor<T> operator+(const DTensor<T>& a, std::type_identity_t<T> addend);
template <Differentiable T>
DTensor<T> operator-(const DTensor<T>& a, std::type_identity_t<T> subtrahend) {
  return a + -subtrahend;
}
template <Differentiable T>
DTensor<T> operator+(std::type_identity_t<T> addend, const DTensor<T>& a) {
  return a + addend;
}
template <Differentiable T>
DTensor<T> operator-(const DTensor<T>& a) {
  return a * T{-1};
}
template <Differentiable T>
DTensor<T> operator-(std::type_identity_t<T> minuend, const DTensor<T>& a) {
  return -a + minuend;
}

/// max(x, 0); its derivative at 0 is 0. Local, unless partial sums are completed first.
template <Differentiable T>
DTensor<T> relu(const DTensor<T>& tensor);

/// One axis, or several: 0, {0, 2}, or a vector of them; -1 is the last one.
struct Axes {
  Axes(std::ptrdiff_t axis) : list{axis} {}
  Axes(std::initializer_list<std::ptrdiff_t> axes) : list(axes) {}
  Axes(std::vector<std::ptrdiff_t> axes) : list(std::move(axes)) {}

  std::vector<std::ptrdiff_t> list;
};

/// The sum along `axes`, which are removed, the last one first. Each rank sums in double and rounds
/// once for each axis. Along none, {}: the tensor.
///
///   axis       result
///   unsharded  the layout without the axis; nothing is sent
///   cut by s   the same, summed over s: an all-reduce, or a reduce-scatter if `to` cuts over s
///
/// Errors   also throws comm::AgreedError (2) for an axis that is named twice.
template <MeshNumber T>
DTensor<T> reduce_sum(const DTensor<T>& tensor, const Axes& axes,
                      const std::optional<Layout>& to = std::nullopt);

/// The sum of all elements, shape (), on every rank.
template <MeshNumber T>
DTensor<T> reduce_sum(const DTensor<T>& tensor);

/// The sum divided by the number of addends.
/// Errors   also throws comm::AgreedError (2) for integers, no addends, and a partial `to`.
template <MeshNumber T>
DTensor<T> reduce_mean(const DTensor<T>& tensor, const Axes& axes,
                       const std::optional<Layout>& to = std::nullopt);
template <MeshNumber T>
DTensor<T> reduce_mean(const DTensor<T>& tensor);

/// The softmax, or its logarithm, along the last axis, which is gathered if it is cut; the other
/// axes stay cut. Each row is computed by one rank, with the same bits for any mesh.
/// Errors   also throws comm::AgreedError (2) for a tensor without axes or with a last axis of 0.
template <Differentiable T>
DTensor<T> softmax(const DTensor<T>& logits);
template <Differentiable T>
DTensor<T> log_softmax(const DTensor<T>& logits);

/// -log softmax(logits)[label] of each row: logits [m, c] and labels [m] in [0, c) give losses [m],
/// in nats, cut as the rows of the logits. The last axis is gathered if it is cut, and labels take
/// the layout of the rows. The same bits for any mesh.
/// Errors   also throws comm::AgreedError on all ranks: (2) for other shapes; (65) for a label
///          outside [0, c), which costs one all_agree.
template <Differentiable T>
DTensor<T> softmax_cross_entropy(const DTensor<T>& logits, const DTensor<std::int32_t>& labels);

/// The index of the greatest element along the last axis, the first of equals. The axis is gathered
/// if it is cut, and removed. Has no derivative: a constant for tapes.
/// Errors   as softmax.
template <Differentiable T>
DTensor<std::int32_t> argmax(const DTensor<T>& tensor);

/// The matrix with its axes exchanged: [x, y] becomes [y, x]. Local, unless partial sums are
/// completed first.
/// Errors   also throws comm::AgreedError (2) unless there are two axes.
template <MeshNumber T>
DTensor<T> transpose(const DTensor<T>& matrix);

/// The same elements in row-major order with another shape.
///
/// The first axes of equal lengths in both shapes stay cut, and so do the last ones; axes between
/// them are gathered. [batch, -, -] of (8, 28, 28) becomes [batch, -] of (8, 784) and nothing is
/// sent.
/// Errors   also throws comm::AgreedError (2) for another number of elements.
template <MeshNumber T>
DTensor<T> reshape(const DTensor<T>& tensor, const Shape& shape,
                   const std::optional<Layout>& to = std::nullopt);

/// The indices `range` of `axis`; -1 is the last one. If the axis is cut, it is gathered before; by
/// default the result is cut as the tensor was.
/// Errors   also throws comm::AgreedError (2) for an axis or a range outside the tensor.
template <MeshNumber T>
DTensor<T> slice_along(const DTensor<T>& tensor, std::ptrdiff_t axis, Range range,
                       const std::optional<Layout>& to = std::nullopt);

}  // namespace lockstep
