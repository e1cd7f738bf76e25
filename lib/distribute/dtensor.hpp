// Tensors distributed over a mesh: each rank holds one piece. Creation (pack, copy_to_mesh),
// redistribution (relayout) and operations (matmul, elementwise, reductions).
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/layout.hpp"
#include "lockstep/distribute/mesh.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/distribute/values.hpp"

namespace lockstep::sharding {

struct Maker;
struct DTensorTest;

/// Throws ConfigError for a layout of another mesh.
void require_same_mesh(const Mesh& mesh, const Layout& layout);

/// Checks the arguments of pack on all ranks and returns the global shape. Collective.
Shape agree_on_pieces(Mesh& mesh, const std::string& type, const Shape& piece,
                      const Layout& layout);

/// Checks the arguments of copy_to_mesh on all ranks. `bits`: the hash of the values. Collective.
void agree_on_whole(Mesh& mesh, const std::string& type, const Shape& shape, const Layout& layout,
                    const std::string& bits);

/// Throws comm::AgreedError (70) unless ranks that hold the same piece pass the same `bits`.
/// Collective.
void require_same_replicas(Mesh& mesh, const Layout& layout, const std::string& bits);

/// The hash of a tensor's shape and bits, as hexadecimal text. Local.
template <Number T>
std::string bits_of(const Tensor<T>& tensor) {
  const auto values = tensor.values();
  return exchange::bits_of(exchange::pack(tensor.shape(), values.data(), values.size_bytes()));
}

/// A copy of the indices `range` of `axis`.
template <class T>
Tensor<T> cut_axis(const Tensor<T>& tensor, std::size_t axis, Range range) {
  const auto [outer, length, inner] = exchange::view_axis(tensor.shape(), axis);
  const std::size_t columns = range.size() * inner;
  Shape shape = tensor.shape();
  shape[axis] = range.size();
  std::vector<T> values(outer * columns);
  exchange::as_rows(std::span(values), outer, columns) =
      exchange::as_rows(tensor.values(), outer, length * inner)
          .middleCols(static_cast<Eigen::Index>(range.begin * inner),
                      static_cast<Eigen::Index>(columns));
  return {std::move(shape), std::move(values)};
}

/// A buffer of equal blocks, one per coordinate of a mesh dimension. Each block begins with a
/// tensor, which may be shorter than the block.
template <Number T>
class Blocks {
 public:
  Blocks(int count, std::size_t length)
      : length_(length), values_(static_cast<std::size_t>(count) * length) {}

  void put(int block, const Tensor<T>& tensor) {
    std::copy(tensor.values().begin(), tensor.values().end(), at(block));
  }
  Tensor<T> take(int block, const Shape& shape) {
    const auto first = at(block);
    return {shape, std::vector<T>(first, first + static_cast<std::ptrdiff_t>(elements_of(shape)))};
  }
  std::span<T> values() noexcept { return values_; }

 private:
  typename std::vector<T>::iterator at(int block) {
    return values_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block) * length_);
  }

  std::size_t length_;
  std::vector<T> values_;
};

/// How an axis of `length` is cut into `parts` pieces along a mesh dimension.
struct Along {
  std::size_t axis;
  std::size_t length;
  int parts;

  Range owned(int coordinate) const noexcept {
    return data::piece_of(length, 1, static_cast<std::uint64_t>(coordinate),
                          static_cast<std::uint64_t>(parts));
  }
  /// `shape` with the axis as long as that coordinate's piece.
  Shape piece(Shape shape, int coordinate) const {
    shape[axis] = owned(coordinate).size();
    return shape;
  }
};

template <Number T>
Tensor<T> all_gather(Mesh& mesh, const std::string& name, const Along& old,
                     const Tensor<T>& piece) {
  Blocks<T> blocks(old.parts, elements_of(old.piece(piece.shape(), 0)));
  blocks.put(mesh.coordinate(name), piece);
  mesh.all_gather(name, blocks.values());
  std::vector<Tensor<T>> parts;
  parts.reserve(static_cast<std::size_t>(old.parts));
  for (int c = 0; c < old.parts; ++c) parts.push_back(blocks.take(c, old.piece(piece.shape(), c)));
  return exchange::concatenate(parts, old.axis);
}

template <Number T>
Tensor<T> all_to_all(Mesh& mesh, const std::string& name, const Along& old, const Along& now,
                     const Tensor<T>& piece) {
  const std::size_t block = elements_of(now.piece(old.piece(piece.shape(), 0), 0));
  Blocks<T> send(old.parts, block);
  Blocks<T> receive(old.parts, block);
  for (int c = 0; c < now.parts; ++c) send.put(c, cut_axis(piece, now.axis, now.owned(c)));
  mesh.all_to_all(name, std::span<const T>(send.values()), receive.values());
  const Shape mine = now.piece(piece.shape(), mesh.coordinate(name));
  std::vector<Tensor<T>> parts;
  parts.reserve(static_cast<std::size_t>(old.parts));
  for (int c = 0; c < old.parts; ++c) parts.push_back(receive.take(c, old.piece(mine, c)));
  return exchange::concatenate(parts, old.axis);
}

template <Number T>
Tensor<T> reduce_scatter(Mesh& mesh, const std::string& name, const Along& now,
                         const Tensor<T>& piece) {
  const std::size_t block = elements_of(now.piece(piece.shape(), 0));
  Blocks<T> addends(now.parts, block);
  Blocks<T> sum(1, block);
  for (int c = 0; c < now.parts; ++c) addends.put(c, cut_axis(piece, now.axis, now.owned(c)));
  mesh.reduce_scatter(name, std::span<const T>(addends.values()), sum.values());
  return sum.take(0, now.piece(piece.shape(), mesh.coordinate(name)));
}

/// This rank's piece of a tensor of shape `global` after `move`. Collective, except for slices.
template <Number T>
Tensor<T> moved(Mesh& mesh, const Move& move, const Shape& global, const Tensor<T>& piece) {
  const std::string& name = move.dimension;
  const int parts = mesh.size(name);
  const auto along = [&](std::size_t axis) { return Along{axis, global[axis], parts}; };
  switch (move.kind) {
    case MoveKind::slice:
      return cut_axis(piece, move.to, along(move.to).owned(mesh.coordinate(name)));
    case MoveKind::reduce_scatter: return reduce_scatter(mesh, name, along(move.to), piece);
    case MoveKind::all_to_all:
      return all_to_all(mesh, name, along(move.from), along(move.to), piece);
    case MoveKind::all_gather: return all_gather(mesh, name, along(move.from), piece);
    case MoveKind::all_reduce: break;
  }
  Tensor<T> sum = piece;
  mesh.all_reduce(name, sum.values());
  return sum;
}

/// The matrix product of [m, k] and [k, n]. Each element is one sum over k in order, so its bits do
/// not depend on the other rows and columns. float32 uses the strict products on one thread (with
/// fused multiply-adds); integers wrap around. Local.
Tensor<float> product(const Tensor<float>& a, const Tensor<float>& b);

template <Number T>
Tensor<T> product(const Tensor<T>& a, const Tensor<T>& b) {
  using Sum = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;
  const auto left = exchange::as_rows(a.values(), a.shape()[0], a.shape()[1]);
  const auto right = exchange::as_rows(b.values(), b.shape()[0], b.shape()[1]);
  std::vector<T> values(a.shape()[0] * b.shape()[1]);
  auto result = exchange::as_rows(std::span(values), a.shape()[0], b.shape()[1]);
  Eigen::Array<Sum, 1, Eigen::Dynamic> sums(right.cols());
  for (Eigen::Index row = 0; row < left.rows(); ++row) {
    sums.setZero();
    for (Eigen::Index k = 0; k < left.cols(); ++k) {
      sums += static_cast<Sum>(left(row, k)) * right.row(k).template cast<Sum>();
    }
    result.row(row) = sums.template cast<T>();
  }
  return {{a.shape()[0], b.shape()[1]}, std::move(values)};
}

/// The stride of each axis of `result` in an operand that is broadcast to it: axes are aligned at
/// the last one; the stride of an axis that is repeated is 0.
std::vector<std::size_t> broadcast_strides(const Shape& operand, const Shape& result);

/// `function(x, y)` for each element of `shape`, to which both tensors are broadcast. Local.
template <class T, class Function>
auto zip(const Tensor<T>& a, const Tensor<T>& b, const Shape& shape, Function function) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const T&, const T&>>;
  using Operand = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>, 0, Eigen::InnerStride<>>;
  const Shape rows(shape.begin(), shape.empty() ? shape.end() : shape.end() - 1);
  const auto length = static_cast<Eigen::Index>(shape.empty() ? 1 : shape.back());
  const auto left = broadcast_strides(a.shape(), shape);
  const auto right = broadcast_strides(b.shape(), shape);
  std::vector<Result> values(elements_of(shape));
  const auto run = [&](const T* first, std::size_t stride) {
    return Operand(first, length, Eigen::InnerStride<>(static_cast<Eigen::Index>(stride)));
  };
  for (std::size_t row = 0; length > 0 && row < elements_of(rows); ++row) {
    std::size_t x = 0;
    std::size_t y = 0;
    std::size_t rest = row;
    for (std::size_t axis = rows.size(); axis-- > 0; rest /= rows[axis]) {
      x += rest % rows[axis] * left[axis];
      y += rest % rows[axis] * right[axis];
    }
    exchange::as_rows(std::span(values), values.size(), 1)
        .middleRows(static_cast<Eigen::Index>(row) * length, length) =
        run(a.values().data() + x, left.empty() ? 1 : left.back())
            .binaryExpr(run(b.values().data() + y, right.empty() ? 1 : right.back()), function);
  }
  return Tensor<Result>(shape, std::move(values));
}

}  // namespace lockstep::sharding

namespace lockstep {
/// A tensor with a global shape. Each rank of a mesh holds the piece that the layout assigns to it.
///
///   Mesh mesh(comm, {{"batch", 2}, {"model", 3}});
///   auto x = copy_to_mesh(mesh, Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}),
///                         Layout(mesh, {"batch", "model"}));
///   auto whole = x.relayout(Layout::replicated(mesh, 2));
///
/// Created by pack, copy_to_mesh and the operations below. Immutable: copies share the piece.
/// Functions marked collective are called by all ranks of the mesh in the same order, with equal
/// layouts.
/// Errors   a wrong shape or layout throws the same comm::AgreedError (2) on all ranks.
/// Threads  that of the mesh, which must outlive the tensor.
template <Number T>
class DTensor {
 public:
  using Value = T;

  /// The global shape.
  const Shape& shape() const noexcept { return shape_; }
  const Layout& layout() const noexcept { return layout_; }
  Mesh& mesh() const noexcept { return *mesh_; }

  /// This rank's piece: the inverse of pack. Local.
  const Tensor<T>& unpack() const noexcept { return *piece_; }

  /// The same tensor with another layout.
  ///
  ///   change along a dimension        collective       elements a rank receives (size p)
  ///   replicated -> cut               nothing          0
  ///   partial -> cut                  reduce-scatter   p - 1 pieces as long as the new one
  ///   cut on an axis -> on another    all-to-all       p - 1 parts of a piece, a p-th each
  ///   partial -> replicated           all-reduce       2 (p - 1) p-ths of the piece
  ///   cut -> replicated               all-gather       p - 1 pieces as long as the old one
  ///
  /// One move per mesh dimension in which the layouts differ, in this order unless an axis is still
  /// cut by another dimension (see sharding::moves_between). Equal layouts require no
  /// communication.
  /// Ranks    collective.
  DTensor relayout(const Layout& layout) const {
    std::vector<sharding::Move> moves;
    try {
      moves = sharding::moves_between(layout_, layout);
    } catch (const ConfigError& error) {
      throw comm::AgreedError(error.code(), error.what());
    }
    DTensor result = *this;
    for (const auto& move : moves) {
      result.piece_ =
          std::make_shared<const Tensor<T>>(sharding::moved(*mesh_, move, shape_, result.unpack()));
      result.layout_ = sharding::after(result.layout_, move);
    }
    return result;
  }

  /// The whole tensor, on every rank. Collective.
  Tensor<T> to_global() const {
    return relayout(Layout::replicated(*mesh_, shape_.size())).unpack();
  }

  /// Compares the bits of replicated pieces.
  /// Errors   throws comm::AgreedError (70) on every rank if they differ, naming the ranks.
  /// Ranks    collective.
  void verify() const {
    sharding::require_same_replicas(*mesh_, layout_, sharding::bits_of(*piece_));
  }

 private:
  friend struct sharding::Maker;
  friend struct sharding::DTensorTest;

  DTensor(Mesh& mesh, Layout layout, Shape shape, Tensor<T> piece)
      : mesh_(&mesh),
        layout_(std::move(layout)),
        shape_(std::move(shape)),
        piece_(std::make_shared<const Tensor<T>>(std::move(piece))) {}

  Mesh* mesh_;
  Layout layout_;
  Shape shape_;
  std::shared_ptr<const Tensor<T>> piece_;
};

namespace sharding {

/// Access to the private constructor of DTensor, for the functions below.
struct Maker {
  template <Number T>
  static DTensor<T> make(Mesh& mesh, Layout layout, Shape shape, Tensor<T> piece) {
    return {mesh, std::move(layout), std::move(shape), std::move(piece)};
  }
};

}  // namespace sharding

/// A tensor from its pieces: each rank passes its own piece; no values are sent.
///
/// Replicas pass the same piece (DTensor::verify compares them). With a layout that is partial over
/// a dimension each rank passes an addend, such as a gradient that is summed over "batch" later.
/// Errors   throws the same comm::AgreedError (2) on all ranks, naming the rank that differs:
///          different layouts, types or meshes; pieces that do not form one tensor (see
///          global_shape).
/// Ranks    collective. Shapes are compared, values are not.
template <Number T>
DTensor<T> pack(Mesh& mesh, Tensor<T> piece, const Layout& layout) {
  const Shape shape = sharding::agree_on_pieces(mesh, type_name<T>(), piece.shape(), layout);
  return sharding::Maker::make(mesh, layout, shape, std::move(piece));
}

/// A tensor from the whole, which every rank passes; each rank keeps its piece only.
///
/// Errors   throws the same comm::AgreedError on all ranks, naming the rank that differs: (2) for
///          different layouts, types or shapes, and for a layout with another number of axes or
///          with partial sums; (70) for values whose bits differ.
/// Ranks    collective. Hashes are compared.
template <Number T>
DTensor<T> copy_to_mesh(Mesh& mesh, const Tensor<T>& tensor, const Layout& layout) {
  sharding::agree_on_whole(mesh, type_name<T>(), tensor.shape(), layout, sharding::bits_of(tensor));
  Tensor<T> piece = tensor;
  for (std::size_t axis = 0; axis < layout.rank(); ++axis) {
    if (layout.spec(axis) == Layout::unsharded) continue;
    piece = sharding::cut_axis(piece, axis, layout.owned(tensor.shape()[axis], axis, mesh.rank()));
  }
  return sharding::Maker::make(mesh, layout, tensor.shape(), std::move(piece));
}

// Operations. Each rank computes on its pieces; the layouts determine the communication.
//
// All are collective and take the result's layout as last argument. By default the result has the
// layout of the operation's table, with all sums complete. Operands with partial sums are summed
// first; reductions complete them last.
//
// Bits     Cutting an axis that the result keeps changes no bit. Along an axis that is summed, each
//          rank adds its own indices in order, and the ranks' sums are added by coordinate: floats
//          may differ in their last bits between different cuts of that axis. Integers are exact
//          and wrap around.
// Errors   all throw the same comm::AgreedError (2) on all ranks: incompatible shapes, tensors on
//          different meshes, a layout that is not possible for the result.

namespace sharding {

/// The result from its pieces, in the requested layout or with all sums complete.
template <Number T>
DTensor<T> finished(Mesh& mesh, const Layout& layout, Shape shape, Tensor<T> piece,
                    const std::optional<Layout>& to) {
  return Maker::make(mesh, layout, std::move(shape), std::move(piece))
      .relayout(to.value_or(layout.summed()));
}

/// Each element divided by `count`, in the elements' type.
template <Number T>
DTensor<T> divided(const DTensor<T>& sum, std::size_t count) {
  const auto divisor = static_cast<T>(count);
  return Maker::make(sum.mesh(), sum.layout(), sum.shape(),
                     sum.unpack().map([&](T value) { return static_cast<T>(value / divisor); }));
}

/// Throws comm::AgreedError (2) unless T, the number of values and the layout allow a mean.
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
template <Number T>
DTensor<T> matmul(const DTensor<T>& a, const DTensor<T>& b,
                  const std::optional<Layout>& to = std::nullopt) {
  const auto plan = sharding::matmul_plan(a.layout(), a.shape(), b.layout(), b.shape());
  const auto left = a.relayout(plan.a);
  const auto right = b.relayout(plan.b);
  return sharding::finished(a.mesh(), plan.result, plan.shape,
                            sharding::product(left.unpack(), right.unpack()), to);
}

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
/// If both have the same number of elements, `a` counts as the larger.
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

/// The element-wise sum, or product; see elementwise. Integers wrap around.
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

/// `function` of each element, in the same layout. Local, unless partial sums are completed first.
template <Number T, class Function>
auto map(const DTensor<T>& tensor, Function function) {
  const auto summed = tensor.relayout(tensor.layout().summed());
  return sharding::Maker::make(summed.mesh(), summed.layout(), summed.shape(),
                               summed.unpack().map(function));
}

/// The sum along `axis`, which is removed. Each rank sums in double and rounds once.
///
///   axis       result
///   unsharded  the layout without the axis; nothing is sent
///   cut by s   the same, summed over s: an all-reduce, or a reduce-scatter if `to` cuts over s
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

/// The sum of all elements, shape (), on every rank.
template <Number T>
DTensor<T> reduce_sum(const DTensor<T>& tensor) {
  const auto values = tensor.unpack().values();
  const Tensor<T> flat(Shape{values.size()}, {values.begin(), values.end()});
  return sharding::finished(tensor.mesh(), sharding::fully_reduced_layout(tensor.layout()), Shape{},
                            exchange::narrowed<T>(exchange::sum_along(flat, 0), 1), std::nullopt);
}

/// The sum divided by the number of addends.
/// Errors   also throws comm::AgreedError (2) for integers, no addends, and a partial `to`.
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
