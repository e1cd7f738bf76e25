// The distribution of a tensor over a mesh: the part that each rank owns, the collectives that
// convert between layouts, and the layouts of operations. Arithmetic only: no communication.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/mesh.hpp"
#include "lockstep/distribute/tensor.hpp"

namespace lockstep {
/// For each axis of a tensor the mesh dimension that cuts it, or unsharded.
///
///   Layout rows(mesh, {"batch", Layout::unsharded});  // rows cut over batch, whole columns
///
/// Along the mesh dimensions that cut no axis the tensor is replicated, or partial: then each rank
/// along that dimension holds one addend of the tensor.
///
/// A value; local.
/// Uneven   Coordinate c of p owns indices [c q, (c + 1) q) of n, with q = ceil(n / p); trailing
///          pieces are shorter or empty (data::piece_of). Collectives pad pieces to q.
class Layout {
 public:
  static constexpr const char* unsharded = "unsharded";

  /// `sharding_specs`: one per axis. Throws ConfigError for a dimension that the mesh does not
  /// have, or that is used twice.
  Layout(MeshShape mesh, std::vector<std::string> sharding_specs);

  /// Every rank holds the whole tensor, which has `rank` axes.
  static Layout replicated(MeshShape mesh, std::size_t rank);

  /// One axis is cut by `dimension`: axis 0, or the last one. Throws ConfigError, also for rank 0.
  static Layout batch_sharded(MeshShape mesh, const std::string& dimension, std::size_t rank);
  static Layout inner_sharded(MeshShape mesh, const std::string& dimension, std::size_t rank);

  /// The layout without one axis: a bias has the layout of the activations without axis 0. Throws
  /// ConfigError unless axis < rank().
  Layout without_axis(std::size_t axis) const;

  /// The layout with another spec for one axis. Throws ConfigError.
  Layout with_axis(std::size_t axis, const std::string& spec) const;

  /// The layout in which each rank along `dimension` holds an addend. Throws ConfigError for a
  /// dimension that the mesh does not have, or that cuts an axis.
  Layout partial_over(const std::string& dimension) const;

  /// The layout after the sum over `dimension`, or over all partial dimensions.
  Layout summed_over(std::string_view dimension) const;
  Layout summed() const;

  const MeshShape& mesh() const noexcept { return mesh_; }
  std::size_t rank() const noexcept { return specs_.size(); }
  const std::vector<std::string>& sharding_specs() const noexcept { return specs_; }

  /// The dimension that cuts `axis`, or unsharded. Throws ConfigError unless axis < rank().
  const std::string& spec(std::size_t axis) const;

  /// The axis that a mesh dimension cuts, if any.
  std::optional<std::size_t> axis_of(std::string_view dimension) const noexcept;
  bool is_partial_over(std::string_view dimension) const noexcept;
  bool is_partial() const noexcept { return !partial_.empty(); }
  bool is_fully_replicated() const noexcept;

  /// The number of pieces of an axis: 1 if it is unsharded.
  int num_shards(std::size_t axis) const;

  /// The indices that mesh rank `rank` owns of an axis of `length`.
  Range owned(std::size_t length, std::size_t axis, int rank) const;

  /// The shape of a rank's piece of a tensor of shape `global`; and the largest piece of any rank.
  /// Throws ConfigError if `global` does not have rank() axes.
  Shape local_shape(const Shape& global, int rank) const;
  Shape largest_local_shape(const Shape& global) const;

  bool operator==(const Layout&) const = default;

 private:
  void require_rank(const Shape& global) const;

  MeshShape mesh_;
  std::vector<std::string> specs_;
  std::vector<std::string> partial_;  // in the order of the mesh
};

/// "sharding_specs:[batch, unsharded], mesh:[batch=2, model=3]"; a partial layout has
/// "partial:[model]" before the mesh.
std::string to_text(const Layout& layout);

/// The global shape of the tensor whose pieces have the shapes `pieces`, by rank of the mesh.
///
/// Errors   throws ConfigError that names the ranks that differ: another number of axes than the
///          layout; different lengths on an unsharded axis or between replicas; pieces of other
///          lengths than Layout::owned.
Shape global_shape(const Layout& layout, const std::vector<Shape>& pieces);

}  // namespace lockstep

namespace lockstep::sharding {

/// A layout change along one mesh dimension. If several moves are possible, the first of this list
/// is made first, so that pieces shrink early.
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
  std::size_t from = 0;  ///< the axis it cut before: all_to_all, all_gather
  std::size_t to = 0;    ///< the axis it cuts afterwards: slice, reduce_scatter, all_to_all

  bool operator==(const Move&) const = default;
};

/// The moves from one layout to another: one per mesh dimension in which they differ.
///
/// An axis is never cut by two dimensions at once. If dimensions exchange their axes in a cycle,
/// the smallest of them is gathered first and sliced last, which adds one move.
/// Errors   throws ConfigError: layouts of different meshes or numbers of axes; a dimension over
///          which `to` is partial and `from` is not.
std::vector<Move> moves_between(const Layout& from, const Layout& to);

/// The layout after a move.
Layout after(const Layout& layout, const Move& move);

/// The layouts of an operation on two tensors: operands are converted to layouts `a` and `b`; then
/// each rank computes its piece of the result, or an addend of it, from its pieces.
struct BinaryPlan {
  Layout a;
  Layout b;
  Layout result;  ///< partial where ranks hold addends
  Shape shape;    ///< of the result, globally
};

/// For the product of [m, k] and [k, n]; see matmul in operations.hpp.
/// Errors   throws comm::AgreedError (2) for other shapes and for layouts of different meshes.
BinaryPlan matmul_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                       const Shape& b_shape);

/// For element-wise operations with broadcasting; see elementwise in operations.hpp.
/// Errors   throws comm::AgreedError (2), which begins with `operation`, for incompatible shapes
/// and
///          for different meshes.
BinaryPlan elementwise_plan(const std::string& operation, const Layout& a, const Shape& a_shape,
                            const Layout& b, const Shape& b_shape);

/// The layout after summing an axis, each rank over the indices that it owns.
/// Errors   throws comm::AgreedError (2) unless axis < layout.rank().
Layout reduced_layout(const Layout& layout, std::size_t axis);

/// The layout after summing all axes.
Layout fully_reduced_layout(const Layout& layout);

}  // namespace lockstep::sharding
