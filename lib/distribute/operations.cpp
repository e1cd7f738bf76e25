#include "lockstep/distribute/operations.hpp"

#include <algorithm>
#include <string>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/distribute/tensor_math.hpp"
#include "lockstep/distribute/values.hpp"
#include "lockstep/numerics/matrix.hpp"
#include "lockstep/numerics/products.hpp"
#include "lockstep/numerics/strict.hpp"

namespace lockstep {
namespace sharding {
namespace {

// The strict products.
Tensor<float> float_product(const Tensor<float>& a, const Tensor<float>& b) {
  const std::size_t rows = a.shape()[0];
  const std::size_t inner = a.shape()[1];
  const std::size_t columns = b.shape()[1];
  std::vector<float> values(rows * columns);
  if (!values.empty() && inner > 0) {
    const Panels panels{inner, columns};
    AlignedBuffer<float> weights(panels.size());
    to_panels({b.values().data(), inner, columns}, panels, weights.span());
    const AlignedBuffer<float> bias(round_to_unit(columns));
    strict_products(Simd::automatic)
        .forward({a.values().data(), rows, inner}, {panels, weights.span()}, bias.span(),
                 Activation::identity, {values.data(), rows, columns}, panels.columns(),
                 Output::overwrite, Zeros::dense, {});  // infinite factors are allowed
  }
  return {{rows, columns}, std::move(values)};
}

template <MeshNumber T>
Tensor<T> plain_product(const Tensor<T>& a, const Tensor<T>& b) {
  using Sum = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;
  const Matrix<const T> left = {a.values().data(), a.shape()[0], a.shape()[1]};
  const Matrix<const T> right = {b.values().data(), b.shape()[0], b.shape()[1]};
  std::vector<T> values;
  values.reserve(left.rows * right.cols);
  std::vector<Sum> sums(right.cols);
  for (std::size_t row = 0; row < left.rows; ++row) {
    std::fill(sums.begin(), sums.end(), Sum{0});
    for (std::size_t k = 0; k < left.cols; ++k) {
      const auto factor = static_cast<Sum>(left(row, k));  // NOLINT: integers wrap around
      for (std::size_t j = 0; j < sums.size(); ++j) {
        sums[j] += factor * static_cast<Sum>(right(k, j));
      }
    }
    for (const Sum sum : sums) values.push_back(static_cast<T>(sum));
  }
  return {{a.shape()[0], b.shape()[1]}, std::move(values)};
}

// A layout with these specs and the partial sums of `like`.
Layout with_specs(const Layout& like, std::vector<std::string> specs) {
  Layout layout(like.mesh(), std::move(specs));
  for (const auto& [name, size] : like.mesh().dimensions()) {
    if (like.is_partial_over(name)) layout = layout.partial_over(name);
  }
  return layout;
}

// With all sums complete.
template <MeshNumber T>
DTensor<T> summed(const DTensor<T>& tensor) {
  return tensor.relayout(tensor.layout().summed());
}

// In the requested layout, or with all sums complete.
template <MeshNumber T>
DTensor<T> completed(const DTensor<T>& tensor, const std::optional<Layout>& to) {
  return tensor.relayout(to.value_or(tensor.layout().summed()));
}

// The same values with an axis of length 1 before `axis`. Local.
template <class T>
Tensor<T> with_unit_axis(const Tensor<T>& tensor, std::size_t axis) {
  Shape shape = tensor.shape();
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis), 1);
  return {std::move(shape), {tensor.values().begin(), tensor.values().end()}};
}

template <MeshNumber T>
DTensor<T> with_unit_axis(const DTensor<T>& tensor, std::size_t axis) {
  auto specs = tensor.layout().sharding_specs();
  specs.insert(specs.begin() + static_cast<std::ptrdiff_t>(axis), Layout::unsharded);
  Shape shape = tensor.shape();
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis), 1);
  return Maker::make(tensor.mesh(), with_specs(tensor.layout(), std::move(specs)), std::move(shape),
                     with_unit_axis(tensor.unpack(), axis));
}

// `piece` repeated along its axes of length 1: this rank's piece of a tensor like `like`, complete.
template <MeshNumber T>
DTensor<T> repeated(const DTensor<T>& like, const Tensor<T>& piece) {
  const Tensor<T> zero(T{0});
  return Maker::make(
      like.mesh(), like.layout().summed(), like.shape(),
      zip(piece, zero, like.unpack().shape(), [](const T& value, const T&) { return value; }));
}

// The product, with partial sums over a cut axis. Collective.
template <MeshNumber T>
DTensor<T> product_addends(const DTensor<T>& a, const DTensor<T>& b) {
  sharding::require_one_mesh("matmul", a.mesh(), b.mesh());
  const auto plan = matmul_plan(a.layout(), a.shape(), b.layout(), b.shape());
  const auto left = a.relayout(plan.a);
  const auto right = b.relayout(plan.b);
  return on_tape(
      "matmul",
      Maker::make(a.mesh(), plan.result, plan.shape, product(left.unpack(), right.unpack())),
      input(left,
            [right](const auto& gradient) { return product_addends(gradient, transpose(right)); }),
      input(right,
            [left](const auto& gradient) { return product_addends(transpose(left), gradient); }));
}

// The sum along an axis, each rank over the indices that it owns. Local.
template <MeshNumber T>
DTensor<T> sum_addends(const DTensor<T>& tensor, std::size_t axis) {
  Layout layout = reduced_layout(tensor.layout(), axis);
  Shape shape = tensor.shape();
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  const auto sums = sum_along(tensor.unpack(), axis);
  return on_tape(
      "reduce_sum",
      Maker::make(tensor.mesh(), std::move(layout), std::move(shape), narrowed<T>(sums, 1)),
      input(tensor, [tensor, axis](const auto& gradient) {
        return repeated(tensor, with_unit_axis(gradient.unpack(), axis));
      }));
}

// The sum of all elements that a rank owns. Local.
template <MeshNumber T>
DTensor<T> sum_addends(const DTensor<T>& tensor) {
  const auto values = tensor.unpack().values();
  const Tensor<T> flat(Shape{values.size()}, {values.begin(), values.end()});
  return on_tape("reduce_sum",
                 Maker::make(tensor.mesh(), fully_reduced_layout(tensor.layout()), Shape{},
                             narrowed<T>(sum_along(flat, 0), 1)),
                 input(tensor, [tensor](const auto& gradient) {
                   return repeated(tensor, gradient.unpack());
                 }));
}

// The axes of a tensor with `count` axes, counted from 0, in descending order, each once.
std::vector<std::size_t> descending(const Axes& wanted, std::size_t count) {
  std::vector<std::size_t> axes;
  axes.reserve(wanted.list.size());
  for (const auto axis : wanted.list) axes.push_back(axis_from_0(axis, count));
  std::sort(axes.rbegin(), axes.rend());
  const auto twice = std::adjacent_find(axes.begin(), axes.end());
  if (twice == axes.end()) return axes;
  collective::refuse("axis " + std::to_string(*twice) + " is reduced twice", "name each axis once");
}

// A gradient in the layout and shape to which an operand was broadcast, summed over the axes along
// which the operand was repeated; cut axes are left open. Local.
template <MeshNumber T>
DTensor<T> unbroadcast(DTensor<T> gradient, const DTensor<T>& operand) {
  const Shape& shape = operand.shape();
  while (gradient.shape().size() > shape.size()) gradient = sum_addends(gradient, 0);
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == gradient.shape()[axis]) continue;
    gradient = with_unit_axis(sum_addends(gradient, axis), axis);
  }
  return gradient;
}

// An element-wise operation whose gradients by the operands, before broadcasting, are
// by_a(gradient, a, b) and by_b(gradient, a, b).
template <MeshNumber T, class Function, class ByA, class ByB>
DTensor<T> pairwise(const char* operation, const DTensor<T>& a, const DTensor<T>& b,
                    const std::optional<Layout>& to, Function function, ByA by_a, ByB by_b) {
  const auto operands = operands_of(operation, a, b);
  const auto& left = operands.a;
  const auto& right = operands.b;
  const auto result = on_tape(
      operation, zip(operands, function),
      input(left,
            [=](const auto& gradient) { return unbroadcast(by_a(gradient, left, right), left); }),
      input(right,
            [=](const auto& gradient) { return unbroadcast(by_b(gradient, left, right), right); }));
  return completed(result, to);
}

// Each element divided by `count`, in the elements' type. Local.
template <MeshNumber T>
DTensor<T> divided(const DTensor<T>& sum, std::size_t count) {
  const auto divisor = static_cast<T>(count);
  return on_tape("reduce_mean",
                 mapped(sum, [&](T value) { return static_cast<T>(value / divisor); }),
                 input(sum, [count](const auto& gradient) { return divided(gradient, count); }));
}

// Throws comm::AgreedError (2) unless T, the number of values and the layout allow a mean.
template <MeshNumber T>
void require_mean(const DTensor<T>& tensor, std::size_t count, const std::optional<Layout>& to) {
  collective::require_divisible<T>(ReduceOp::mean);
  if (count == 0) {
    collective::refuse("the mean of no values, of shape " + to_text(tensor.shape()),
                       "reduce an axis that has a length");
  }
  if (to && to->is_partial()) {
    collective::refuse("a mean with " + to_text(*to), "ask for a layout whose sums are taken");
  }
}

// The first axes, and of the others the last ones, whose lengths are equal in both shapes.
std::pair<std::size_t, std::size_t> common_axes(const Shape& from, const Shape& to) {
  const std::size_t most = std::min(from.size(), to.size());
  std::size_t first = 0;
  while (first < most && from[first] == to[first]) ++first;
  std::size_t last = 0;
  while (first + last < most && from[from.size() - 1 - last] == to[to.size() - 1 - last]) ++last;
  return {first, last};
}

// Outside `range` zeros: the gradient of a slice of an axis that is whole on each rank. Local.
template <MeshNumber T>
DTensor<T> padded(const DTensor<T>& gradient, const DTensor<T>& like, std::size_t axis,
                  Range range) {
  const auto zeros = [&](std::size_t length) {
    Shape shape = gradient.unpack().shape();
    shape[axis] = length;
    return Tensor<T>(shape, std::vector<T>(elements_of(shape)));
  };
  return Maker::make(
      like.mesh(), like.layout(), like.shape(),
      concatenate<T>({zeros(range.begin), gradient.unpack(), zeros(like.shape()[axis] - range.end)},
                     axis));
}

}  // namespace

template <MeshNumber T>
Tensor<T> product(const Tensor<T>& a, const Tensor<T>& b) {
  if constexpr (std::is_same_v<T, float>) return float_product(a, b);
  return plain_product(a, b);
}

std::vector<std::size_t> broadcast_strides(const Shape& operand, const Shape& result) {
  std::vector<std::size_t> strides(result.size());
  std::size_t stride = 1;
  for (std::size_t i = 1; i <= operand.size(); ++i) {
    const std::size_t length = operand[operand.size() - i];
    strides[result.size() - i] = length == 1 ? 0 : stride;
    stride *= length;
  }
  return strides;
}

template <MeshNumber T>
Operands<T> operands_of(const char* operation, const DTensor<T>& a, const DTensor<T>& b) {
  sharding::require_one_mesh(operation, a.mesh(), b.mesh());
  const auto plan = elementwise_plan(operation, a.layout(), a.shape(), b.layout(), b.shape());
  return {a.relayout(plan.a), b.relayout(plan.b), plan.result, plan.shape};
}

}  // namespace sharding

template <MeshNumber T>
DTensor<T> matmul(const DTensor<T>& a, const DTensor<T>& b, const std::optional<Layout>& to) {
  return sharding::completed(sharding::product_addends(a, b), to);
}

template <MeshNumber T>
DTensor<T> add(const DTensor<T>& a, const DTensor<T>& b, const std::optional<Layout>& to) {
  const auto by = [](const auto& g, const auto&, const auto&) { return g; };
  return sharding::pairwise("add", a, b, to, sharding::plus<T>, by, by);
}

template <MeshNumber T>
DTensor<T> subtract(const DTensor<T>& a, const DTensor<T>& b, const std::optional<Layout>& to) {
  return sharding::pairwise(
      "subtract", a, b, to, sharding::minus<T>, [](const auto& g, auto&, auto&) { return g; },
      [](const auto& g, auto&, auto&) { return -g; });
}

template <MeshNumber T>
DTensor<T> multiply(const DTensor<T>& a, const DTensor<T>& b, const std::optional<Layout>& to) {
  return sharding::pairwise(
      "multiply", a, b, to, sharding::times<T>,
      [](const auto& g, auto&, auto& y) { return multiply(g, y); },
      [](const auto& g, auto& x, auto&) { return multiply(g, x); });
}

template <Differentiable T>
DTensor<T> divide(const DTensor<T>& a, const DTensor<T>& b, const std::optional<Layout>& to) {
  return sharding::pairwise(
      "divide", a, b, to, [](T x, T y) { return x / y; },
      [](const auto& g, auto&, auto& y) { return divide(g, y); },
      [](const auto& g, auto& x, auto& y) { return -divide(multiply(g, divide(x, y)), y); });
}

template <Differentiable T>
DTensor<T> operator*(const DTensor<T>& a, std::type_identity_t<T> factor) {
  return elementwise(
      a, [=](T x) { return x * factor; }, [=](T) { return factor; });
}

template <Differentiable T>
DTensor<T> operator/(const DTensor<T>& a, std::type_identity_t<T> divisor) {
  return elementwise(
      a, [=](T x) { return x / divisor; }, [=](T) { return 1 / divisor; });
}

template <Differentiable T>
DTensor<T> operator+(const DTensor<T>& a, std::type_identity_t<T> addend) {
  return elementwise(
      a, [=](T x) { return x + addend; }, [](T) { return T{1}; });
}

template <Differentiable T>
DTensor<T> relu(const DTensor<T>& tensor) {
  const auto x = sharding::summed(tensor);
  auto result = sharding::mapped(x, [](T value) { return relu(value); });
  // Selected, not multiplied by 0: an infinite gradient of a negative input gives 0.
  return sharding::on_tape("relu", std::move(result), sharding::input(x, [x](const auto& gradient) {
                             return elementwise(gradient, x, [](T of_result, T value) {
                               return value > 0 ? of_result : T{0};
                             });
                           }));
}

template <MeshNumber T>
DTensor<T> reduce_sum(const DTensor<T>& tensor, const Axes& axes, const std::optional<Layout>& to) {
  DTensor<T> sum = tensor;
  for (const auto axis : sharding::descending(axes, tensor.shape().size())) {
    sum = sharding::sum_addends(sum, axis);
  }
  return sharding::completed(sum, to);
}

template <MeshNumber T>
DTensor<T> reduce_sum(const DTensor<T>& tensor) {
  return sharding::summed(sharding::sum_addends(tensor));
}

template <MeshNumber T>
DTensor<T> reduce_mean(const DTensor<T>& tensor, const Axes& axes,
                       const std::optional<Layout>& to) {
  std::size_t count = 1;
  for (const auto axis : axes.list) {
    const std::size_t from_0 = sharding::axis_from_0(axis, tensor.shape().size());
    count *= from_0 < tensor.shape().size() ? tensor.shape()[from_0] : 1;
  }
  sharding::require_mean(tensor, count, to);
  return sharding::divided(reduce_sum(tensor, axes, to), count);
}

template <MeshNumber T>
DTensor<T> reduce_mean(const DTensor<T>& tensor) {
  const std::size_t count = elements_of(tensor.shape());
  sharding::require_mean(tensor, count, std::nullopt);
  return sharding::divided(reduce_sum(tensor), count);
}

template <MeshNumber T>
DTensor<T> transpose(const DTensor<T>& matrix) {
  if (matrix.shape().size() != 2) {
    collective::refuse("transpose: shape " + to_text(matrix.shape()), "give a matrix [m, n]");
  }
  const auto whole = sharding::summed(matrix);
  const auto& piece = whole.unpack();
  const std::size_t rows = piece.shape()[0];
  const std::size_t columns = piece.shape()[1];
  const Matrix<const T> from = {piece.values().data(), rows, columns};
  std::vector<T> values;
  values.reserve(rows * columns);
  for (std::size_t j = 0; j < columns; ++j) {
    for (std::size_t i = 0; i < rows; ++i) values.push_back(from(i, j));
  }
  const auto& specs = whole.layout().sharding_specs();
  return sharding::on_tape(
      "transpose",
      sharding::Maker::make(whole.mesh(), Layout(whole.mesh(), {specs[1], specs[0]}),
                            Shape{whole.shape()[1], whole.shape()[0]},
                            Tensor<T>({columns, rows}, std::move(values))),
      sharding::input(whole, [](const auto& gradient) { return transpose(gradient); }));
}

template <MeshNumber T>
DTensor<T> reshape(const DTensor<T>& tensor, const Shape& shape, const std::optional<Layout>& to) {
  if (elements_of(shape) != elements_of(tensor.shape())) {
    collective::refuse("reshape: shape " + to_text(tensor.shape()) + " to " + to_text(shape),
                       "give a shape with as many elements");
  }
  const auto [first, last] = sharding::common_axes(tensor.shape(), shape);
  Layout before = tensor.layout().summed();
  for (std::size_t axis = first; axis < tensor.shape().size() - last; ++axis) {
    before = before.with_axis(axis, Layout::unsharded);
  }
  std::vector<std::string> specs(shape.size(), Layout::unsharded);
  const auto& kept = before.sharding_specs();
  std::copy_n(kept.begin(), first, specs.begin());
  std::copy_n(kept.rbegin(), last, specs.rbegin());
  const auto source = tensor.relayout(before);
  const Layout layout(before.mesh(), std::move(specs));
  const auto values = source.unpack().values();
  return sharding::completed(
      sharding::on_tape(
          "reshape",
          sharding::Maker::make(tensor.mesh(), layout, shape,
                                Tensor<T>(layout.local_shape(shape, tensor.mesh().rank()),
                                          {values.begin(), values.end()})),
          sharding::input(source, [old = tensor.shape()](
                                      const auto& gradient) { return reshape(gradient, old); })),
      to);
}

template <MeshNumber T>
DTensor<T> slice_along(const DTensor<T>& tensor, std::ptrdiff_t wanted, Range range,
                       const std::optional<Layout>& to) {
  const std::size_t axis = sharding::axis_from_0(wanted, tensor.shape().size());
  if (axis >= tensor.shape().size() || range.begin > range.end ||
      range.end > tensor.shape()[axis]) {
    collective::refuse("slice_along: indices [" + std::to_string(range.begin) + ", " +
                           std::to_string(range.end) + ") of axis " + std::to_string(wanted) +
                           " of shape " + to_text(tensor.shape()),
                       "give an axis and indices that the tensor has");
  }
  const Layout layout = tensor.layout().summed();
  const auto whole = tensor.relayout(layout.with_axis(axis, Layout::unsharded));
  Shape shape = tensor.shape();
  shape[axis] = range.size();
  const auto result =
      sharding::on_tape("slice_along",
                        sharding::Maker::make(whole.mesh(), whole.layout(), std::move(shape),
                                              sharding::cut_axis(whole.unpack(), axis, range)),
                        sharding::input(whole, [whole, axis, range](const auto& gradient) {
                          return sharding::padded(gradient, whole, axis, range);
                        }));
  return result.relayout(to.value_or(layout));
}

#define LOCKSTEP_TO const std::optional<Layout>&
#define LOCKSTEP_INSTANTIATE(T)                                                        \
  template Tensor<T> sharding::product(const Tensor<T>&, const Tensor<T>&);            \
  template sharding::Operands<T> sharding::operands_of(const char*, const DTensor<T>&, \
                                                       const DTensor<T>&);             \
  template DTensor<T> matmul(const DTensor<T>&, const DTensor<T>&, LOCKSTEP_TO);       \
  template DTensor<T> add(const DTensor<T>&, const DTensor<T>&, LOCKSTEP_TO);          \
  template DTensor<T> subtract(const DTensor<T>&, const DTensor<T>&, LOCKSTEP_TO);     \
  template DTensor<T> multiply(const DTensor<T>&, const DTensor<T>&, LOCKSTEP_TO);     \
  template DTensor<T> reduce_sum(const DTensor<T>&, const Axes&, LOCKSTEP_TO);         \
  template DTensor<T> reduce_sum(const DTensor<T>&);                                   \
  template DTensor<T> reduce_mean(const DTensor<T>&, const Axes&, LOCKSTEP_TO);        \
  template DTensor<T> reduce_mean(const DTensor<T>&);                                  \
  template DTensor<T> transpose(const DTensor<T>&);                                    \
  template DTensor<T> reshape(const DTensor<T>&, const Shape&, LOCKSTEP_TO);           \
  template DTensor<T> slice_along(const DTensor<T>&, std::ptrdiff_t, Range, LOCKSTEP_TO);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(std::int8_t)
LOCKSTEP_INSTANTIATE(std::int16_t)
LOCKSTEP_INSTANTIATE(std::int32_t)
LOCKSTEP_INSTANTIATE(std::int64_t)
LOCKSTEP_INSTANTIATE(std::uint8_t)
LOCKSTEP_INSTANTIATE(std::uint16_t)
LOCKSTEP_INSTANTIATE(std::uint32_t)
LOCKSTEP_INSTANTIATE(std::uint64_t)
#undef LOCKSTEP_INSTANTIATE

#define LOCKSTEP_INSTANTIATE(T)                                                  \
  template DTensor<T> divide(const DTensor<T>&, const DTensor<T>&, LOCKSTEP_TO); \
  template DTensor<T> operator*(const DTensor<T>&, T);                           \
  template DTensor<T> operator/(const DTensor<T>&, T);                           \
  template DTensor<T> operator+(const DTensor<T>&, T);                           \
  template DTensor<T> relu(const DTensor<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE
#undef LOCKSTEP_TO

}  // namespace lockstep
