// Tensors that are spread over a mesh: each rank holds its piece.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/distribute/exchange.hpp"
#include "lib/distribute/mesh.hpp"
#include "lib/distribute/moves.hpp"
#include "lib/distribute/relayout.hpp"

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
