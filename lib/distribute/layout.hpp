// How a tensor lies on a mesh, and which part of it each rank owns: arithmetic.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/pieces.hpp"
#include "lib/distribute/mesh.hpp"
#include "lib/distribute/tensor.hpp"

namespace lockstep {
/// For each axis of a tensor the mesh dimension that cuts it, or unsharded.
///
///   Layout rows(mesh, {"batch", Layout::unsharded});  // rows cut over batch, whole columns
///
/// Over the mesh dimensions that cut none of its axes a tensor is replicated, unless the layout
/// says that it is a sum not yet taken: then each rank along that dimension holds an addend.
///
/// A value; local.
/// Uneven   Coordinate c of p owns [c q, (c + 1) q) of n with q = ceil(n / p), as far as there are
///          so many: trailing pieces are shorter or empty. It is the guide's rule `ceil`,
///          data::piece_of. Collectives pad pieces to q.
class Layout {
 public:
  static constexpr const char* unsharded = "unsharded";

  /// Throws ConfigError for a dimension that the mesh lacks, or that stands twice.
  Layout(MeshShape mesh, std::vector<std::string> sharding_specs);

  /// Every rank holds all of a tensor with so many axes.
  static Layout replicated(MeshShape mesh, std::size_t rank);

  /// One axis is cut: axis 0, or the last one. Throws ConfigError for rank 0 as well.
  static Layout batch_sharded(MeshShape mesh, const std::string& dimension, std::size_t rank);
  static Layout inner_sharded(MeshShape mesh, const std::string& dimension, std::size_t rank);

  /// Without an axis and what cut it: the bias's layout is that of the activations without axis 0.
  /// Throws ConfigError for an axis that there is not.
  Layout without_axis(std::size_t axis) const;

  /// With another spec for one axis. Throws ConfigError.
  Layout with_axis(std::size_t axis, const std::string& spec) const;

  /// Each rank along `dimension` holds an addend of the tensor. Throws ConfigError for a dimension
  /// that the mesh lacks, or that cuts an axis.
  Layout partial_over(const std::string& dimension) const;

  /// The same with the sum over `dimension`, or over all, taken.
  Layout summed_over(std::string_view dimension) const;
  Layout summed() const;

  const MeshShape& mesh() const noexcept { return mesh_; }
  std::size_t rank() const noexcept { return specs_.size(); }
  const std::vector<std::string>& sharding_specs() const noexcept { return specs_; }

  /// Throws ConfigError for an axis that there is not.
  const std::string& spec(std::size_t axis) const;

  /// The axis that a mesh dimension cuts.
  std::optional<std::size_t> axis_of(std::string_view dimension) const noexcept;
  bool is_partial_over(std::string_view dimension) const noexcept;
  bool is_partial() const noexcept { return !partial_.empty(); }
  bool is_fully_replicated() const noexcept;

  /// Pieces of an axis: 1 where it is unsharded.
  int num_shards(std::size_t axis) const;

  /// What the rank `rank` of the mesh owns of an axis of `length`.
  Range owned(std::size_t length, std::size_t axis, int rank) const;

  /// Of a tensor of shape `global`: the shape of a rank's piece, and its longest over all ranks.
  /// Throws ConfigError where the number of axes is another.
  Shape local_shape(const Shape& global, int rank) const;
  Shape largest_local_shape(const Shape& global) const;

  bool operator==(const Layout&) const = default;

 private:
  void require_rank(const Shape& global) const;

  MeshShape mesh_;
  std::vector<std::string> specs_;
  std::vector<std::string> partial_;  // in the order of the mesh
};

/// "sharding_specs:[batch, unsharded], mesh:[batch=2, model=3]"; sums not yet taken stand between
/// as "partial:[model]".
std::string to_text(const Layout& layout);

/// The shape of the tensor whose pieces, by rank of the mesh, have these shapes.
///
/// Errors   throws ConfigError that names the odd ranks: another number of axes than the layout;
///          lengths that differ on an axis that is unsharded, or between replicas; pieces other
///          than Layout::owned.
Shape global_shape(const Layout& layout, const std::vector<Shape>& pieces);

}  // namespace lockstep

namespace lockstep::sharding {
// The moves that take a tensor from one layout to another.

/// In the order in which they are made where several can be: what shrinks pieces comes first.
enum class MoveKind {
  slice,           ///< replicated -> cut: local
  reduce_scatter,  ///< partial -> cut
  all_to_all,      ///< cut on one axis -> cut on another
  all_reduce,      ///< partial -> replicated
  all_gather,      ///< cut -> replicated
};

/// One change along one mesh dimension.
struct Move {
  MoveKind kind;
  std::string dimension;
  std::size_t from = 0;  ///< the axis that it cut before: all_to_all, all_gather
  std::size_t to = 0;    ///< the axis that it cuts after: slice, reduce_scatter, all_to_all

  bool operator==(const Move&) const = default;
};

/// One move for each mesh dimension whose part differs, none for the others.
///
/// An axis is never cut by two dimensions at a time. So where dimensions exchange axes in a circle,
/// the shortest of them is gathered first and sliced at last: one move more.
/// Errors   throws ConfigError: layouts of different meshes or numbers of axes; a sum that `to`
///          leaves to be taken and `from` does not.
std::vector<Move> moves_between(const Layout& from, const Layout& to);

/// The layout behind a move.
Layout after(const Layout& layout, const Move& move);

// How operations on tensors of a mesh lay out their operands and results: arithmetic.

/// What an operation on two tensors does: both are moved, each rank computes on its pieces alone,
/// and what it gets is a piece of the result, or an addend of one.
struct BinaryPlan {
  Layout a;
  Layout b;
  Layout result;  ///< partial where ranks hold addends
  Shape shape;    ///< of the result, globally
};

/// [m, k] times [k, n]; see matmul in dtensor_math.hpp.
/// Errors   throws comm::AgreedError (2) for other shapes, and for layouts of different meshes.
BinaryPlan matmul_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                       const Shape& b_shape);

/// Value by value, with broadcasting; see elementwise in dtensor_math.hpp.
/// Errors   throws comm::AgreedError (2) for shapes that do not fit, and for different meshes.
BinaryPlan elementwise_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                            const Shape& b_shape);

/// The result of adding up an axis, each rank those indices that it owns.
/// Errors   throws comm::AgreedError (2) for an axis that there is not.
Layout reduced_layout(const Layout& layout, std::size_t axis);

/// The same of all axes.
Layout fully_reduced_layout(const Layout& layout);

}  // namespace lockstep::sharding
