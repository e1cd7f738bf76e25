// Tensors distributed over a mesh: each rank holds one piece. Creation (pack_to_mesh, copy_to_mesh)
// and redistribution (relayout). Variables, and initial values of which each rank makes its own
// piece only. Operations: operations.hpp; gradients: tape.hpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/distribute/layout.hpp"
#include "lockstep/distribute/mesh.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/nn/initialisers.hpp"

namespace lockstep {
namespace sharding {

struct Maker;
struct DTensorTest;

template <class T, class... Others>
concept OneOf = (std::same_as<T, Others> || ...);

/// A copy of the indices `range` of `axis`. Local.
template <class T>
Tensor<T> cut_axis(const Tensor<T>& tensor, std::size_t axis, Range range);

}  // namespace sharding

/// The element types of tensors over a mesh: float, double and the integers of fixed width.
template <class T>
concept MeshNumber =
    sharding::OneOf<T, float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t,
                    std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;

/// The element types that have gradients.
template <class T>
concept Differentiable = sharding::OneOf<T, float, double>;

/// A tensor with a global shape. Each rank of a mesh holds the piece that the layout assigns to it.
///
///   Mesh mesh(comm, {{"batch", 2}, {"model", 3}});
///   auto x = copy_to_mesh(mesh, Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}),
///                         Layout(mesh, {"batch", "model"}));
///   auto whole = x.relayout(Layout::replicated(mesh, 2));
///
/// Created by pack_to_mesh, copy_to_mesh, operations and initial values (below). Immutable:
/// copies share the piece. Functions marked collective are called by all ranks of the mesh in the
/// same order, with equal layouts.
/// Errors   a wrong shape or layout throws the same comm::AgreedError (2) on all ranks.
/// Threads  that of the mesh, which must outlive the tensor.
template <MeshNumber T>
class DTensor {
 public:
  using Value = T;

  /// The global shape.
  const Shape& shape() const noexcept { return shape_; }
  const Layout& layout() const noexcept { return layout_; }
  Mesh& mesh() const noexcept { return *mesh_; }

  /// This rank's piece: the inverse of pack_to_mesh. Local.
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
  /// communication. Recorded by tapes.
  /// Ranks    collective.
  DTensor relayout(const Layout& layout) const;

  /// The whole tensor, on every rank. Collective.
  Tensor<T> to_global() const;

  /// Compares the bits of replicated pieces.
  /// Errors   throws comm::AgreedError (70) on every rank if they differ, naming the ranks.
  /// Ranks    collective.
  void verify() const;

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

/// Access to the private constructor of DTensor, for operations.
struct Maker {
  template <MeshNumber T>
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
template <MeshNumber T>
DTensor<T> pack_to_mesh(Mesh& mesh, Tensor<T> piece, const Layout& layout);

/// A tensor from the whole, which every rank passes; each rank keeps its piece only.
///
/// Errors   throws the same comm::AgreedError on all ranks, naming the rank that differs: (2) for
///          different layouts, types or shapes, and for a layout with another number of axes or
///          with partial sums; (70) for values whose bits differ.
/// Ranks    collective. Hashes are compared.
template <MeshNumber T>
DTensor<T> copy_to_mesh(Mesh& mesh, const Tensor<T>& tensor, const Layout& layout);

/// A named tensor over a mesh whose value can be replaced: a weight.
///
///   DVariable w("w", glorot_uniform(mesh, {784, 700}, {22, 23}, layout));
///   w.assign_sub(0.1F * tape.gradient(loss, w));
///
/// Is a DTensor, so all operations take it. A copy of that tensor keeps the value of the moment.
/// Can be moved, not copied.
template <Differentiable T>
class DVariable : public DTensor<T> {
 public:
  /// Starts with `value`, in its layout with all sums complete. A constant for tapes: they do not
  /// record how `value` was computed. Collective if `value` has partial sums.
  DVariable(std::string name, const DTensor<T>& value);

  DVariable(DVariable&&) noexcept = default;
  DVariable& operator=(DVariable&&) noexcept = default;
  DVariable(const DVariable&) = delete;
  DVariable& operator=(const DVariable&) = delete;

  const std::string& name() const noexcept { return name_; }

  /// Replaces the value, adds to it, or subtracts from it. The variable keeps its shape and layout;
  /// the argument may have another layout, and with assign_add and assign_sub a shape that is
  /// broadcast. Not recorded by tapes; gradients by the old value can no longer be asked for.
  ///
  /// Errors   throws the same comm::AgreedError (2) on all ranks for a shape that does not fit; the
  ///          variable is then unchanged.
  /// Ranks    collective; nothing is sent if the argument has the variable's layout.
  void assign(const DTensor<T>& value);
  void assign_add(const DTensor<T>& value);
  void assign_sub(const DTensor<T>& value);

 private:
  /// Takes the result of an operation that no tape has recorded, so its piece is not shared.
  void set(const DTensor<T>& result);

  std::string name_;
};

// Initial values. Each rank makes its own piece; the values depend on shape and seed only, not on
// the mesh or the layout.
//
// Errors   throw the same comm::AgreedError (2) on all ranks, naming the rank that differs:
//          different shapes, layouts, seeds or values; a layout with another number of axes, of
//          another mesh or with partial sums.
// Ranks    collective. The arguments are compared, no values are sent.

/// Every element `value`; by default 0.
///
///   zeros<float>(mesh, {10}, Layout::replicated(mesh, 1))
template <Differentiable T>
DTensor<T> filled(Mesh& mesh, const Shape& shape, T value, const Layout& layout);
template <Differentiable T>
DTensor<T> zeros(Mesh& mesh, const Shape& shape, const Layout& layout) {
  return filled(mesh, shape, T{0}, layout);
}

/// Floats in [low, high), the bits of tf.random.stateless_uniform of the whole shape.
template <Differentiable T = float>
DTensor<T> stateless_uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, float low,
                             float high, const Layout& layout);

/// A weight matrix [inputs, outputs] uniform in +-sqrt(6) / sqrt(inputs + outputs); see
/// nn::glorot_uniform. Throws as above for a shape of other than two axes.
template <Differentiable T = float>
DTensor<T> glorot_uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, const Layout& layout);

}  // namespace lockstep
