// Tensors that are spread over a mesh: each rank holds its piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/distribute/layout.hpp"
#include "lib/distribute/mesh.hpp"
#include "lib/distribute/tensor.hpp"
#include "lib/distribute/values.hpp"

namespace lockstep::sharding {
// What each move of a relayout does to a rank's piece.

struct Maker;
struct DTensorTest;

/// Throws ConfigError for a layout of another mesh.
void require_same_mesh(const Mesh& mesh, const Layout& layout);

/// Checks what all ranks give to pack, and returns the global shape. Collective.
Shape agree_on_pieces(Mesh& mesh, const std::string& type, const Shape& piece,
                      const Layout& layout);

/// Checks what all ranks give to copy_to_mesh. `bits`: the hash of the values. Collective.
void agree_on_whole(Mesh& mesh, const std::string& type, const Shape& shape, const Layout& layout,
                    const std::string& bits);

/// Throws comm::AgreedError (70) unless ranks that hold one piece have the same `bits`. Collective.
void require_same_replicas(Mesh& mesh, const Layout& layout, const std::string& bits);

/// The hash of a tensor's shape and bits, in words. Local.
template <Number T>
std::string bits_of(const Tensor<T>& tensor) {
  const auto values = tensor.values();
  return exchange::bits_of(exchange::pack(tensor.shape(), values.data(), values.size_bytes()));
}

/// Indices [range.begin, range.end) of `axis`.
template <class T>
Tensor<T> cut_axis(const Tensor<T>& tensor, std::size_t axis, Range range) {
  const auto view = exchange::view_axis(tensor.shape(), axis);
  Shape shape = tensor.shape();
  shape[axis] = range.size();
  std::vector<T> values;
  values.reserve(elements_of(shape));
  for (std::size_t o = 0; o < view.outer; ++o) {
    const auto run = tensor.values().subspan((o * view.length + range.begin) * view.inner,
                                             range.size() * view.inner);
    values.insert(values.end(), run.begin(), run.end());
  }
  return {std::move(shape), std::move(values)};
}

/// The parts one behind the other along `axis`; alike on the others. At least one.
template <class T>
Tensor<T> join_axis(const std::vector<Tensor<T>>& parts, std::size_t axis) {
  Shape shape = parts.front().shape();
  shape[axis] = 0;
  for (const auto& part : parts) shape[axis] += part.shape()[axis];
  std::vector<T> values;
  values.reserve(elements_of(shape));
  const std::size_t outer = exchange::view_axis(shape, axis).outer;
  for (std::size_t o = 0; o < outer; ++o) {
    for (const auto& part : parts) {
      const std::size_t length = part.values().size() / outer;
      const auto run = part.values().subspan(o * length, length);
      values.insert(values.end(), run.begin(), run.end());
    }
  }
  return {std::move(shape), std::move(values)};
}

/// One block of equal length for each coordinate along a mesh dimension, each with a tensor at its
/// beginning that may be shorter.
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

/// Pieces along one mesh dimension: what coordinate c of `parts` owns of an axis.
struct Along {
  std::size_t axis;
  std::size_t length;
  int parts;

  Range owned(int coordinate) const noexcept {
    return data::piece_of(length, 1, static_cast<std::uint64_t>(coordinate),
                          static_cast<std::uint64_t>(parts));
  }
  /// `shape` with the axis as that coordinate has it.
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
  return join_axis(parts, old.axis);
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
  return join_axis(parts, old.axis);
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

/// This rank's piece of a tensor of shape `global` behind a move. Collective, but for slices.
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

}  // namespace lockstep::sharding

namespace lockstep {
/// A tensor of a global shape, of which each rank of a mesh holds the piece that its layout says.
///
///   Mesh mesh(comm, {{"batch", 2}, {"model", 3}});
///   auto x = copy_to_mesh(mesh, Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}),
///                         Layout(mesh, {"batch", "model"}));
///   auto whole = x.relayout(Layout::replicated(mesh, 2));
///
/// Made by pack, copy_to_mesh and the operations of dtensor_math.hpp alone, and never changed:
/// copies share the piece. What is marked collective is called by all ranks of the mesh in the same
/// order, with layouts alike.
/// Errors   those of shapes and layouts are the same comm::AgreedError (2) on all ranks.
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
  ///   along a mesh dimension          is moved by      elements that reach a rank, of p along it
  ///   replicated -> cut               nothing          0
  ///   partial -> cut                  reduce-scatter   p - 1 pieces as long as the new one
  ///   cut on an axis -> on another    all-to-all       p - 1 parts of a piece, a p-th each
  ///   partial -> replicated           all-reduce       2 (p - 1) p-ths of the piece
  ///   cut -> replicated               all-gather       p - 1 pieces as long as the old one
  ///
  /// Once for each dimension where the two differ, in this order as far as axes are free (see
  /// sharding::moves_between); where nothing differs, nothing is sent.
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

  /// Compares the bits of pieces that several ranks hold.
  /// Errors   throws comm::AgreedError (70) on every rank where they differ, naming the odd ranks.
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

/// Makes DTensors for the functions of this library.
struct Maker {
  template <Number T>
  static DTensor<T> make(Mesh& mesh, Layout layout, Shape shape, Tensor<T> piece) {
    return {mesh, std::move(layout), std::move(shape), std::move(piece)};
  }
};

}  // namespace sharding

/// A tensor from its pieces: each rank gives what it is to hold, and nothing is moved.
///
/// Replicas give the same piece (DTensor::verify compares them); with a layout that is partial over
/// a dimension each rank gives its addend, as a gradient that is to be summed over "batch".
/// Errors   throws the same comm::AgreedError (2) on all ranks, naming the odd one: layouts, types
///          or meshes that differ; pieces that do not make one tensor (see global_shape).
/// Ranks    collective. Shapes are compared, values are not.
template <Number T>
DTensor<T> pack(Mesh& mesh, Tensor<T> piece, const Layout& layout) {
  const Shape shape = sharding::agree_on_pieces(mesh, type_name<T>(), piece.shape(), layout);
  return sharding::Maker::make(mesh, layout, shape, std::move(piece));
}

/// A tensor that every rank has: each keeps its piece and only that.
///
/// Errors   throws the same comm::AgreedError (2) on all ranks, naming the odd one: layouts, types
///          or shapes that differ; a layout with another number of axes, or partial. (70): values
///          whose bits differ.
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

}  // namespace lockstep

namespace lockstep::sharding {
// What operations compute on the pieces of one rank.

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

namespace lockstep {
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
