// Ranks in a grid of named dimensions, collectives along each dimension, and traffic counters; and
// layouts, which say how a tensor is cut over the grid.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/distribute/tensor_math.hpp"

namespace lockstep {

/// A named dimension of a mesh and its number of ranks.
struct MeshDimension {
  std::string name;
  int size = 1;

  bool operator==(const MeshDimension&) const = default;
};

/// The grid of ranks 0, 1, ... in row-major order: the last dimension varies fastest.
///
/// With {{"batch", 2}, {"model", 3}} rank 4 has the coordinates batch 1, model 1. A value; local.
class MeshShape {
 public:
  /// Throws ConfigError: no dimension; a name that is empty, "unsharded" or used twice; a size
  /// below 1; more ranks than an int holds.
  explicit MeshShape(std::vector<MeshDimension> dimensions);

  const std::vector<MeshDimension>& dimensions() const noexcept { return dimensions_; }

  /// Ranks of the mesh: the product of all sizes.
  int size() const noexcept { return size_; }

  /// Ranks along a dimension. Throws ConfigError for an unknown name.
  int size(std::string_view name) const { return dimensions_[index(name)].size; }

  /// Index of a dimension in dimensions(). Throws ConfigError for an unknown name.
  std::size_t index(std::string_view name) const;

  /// The coordinates of a rank, one per dimension; or along one dimension. Throws std::out_of_range
  /// for a rank outside [0, size()), ConfigError for an unknown name.
  std::vector<int> coordinates(int rank) const;
  int coordinate(int rank, std::string_view name) const { return coordinates(rank)[index(name)]; }

  /// The rank with these coordinates. Throws std::out_of_range.
  int rank_of(const std::vector<int>& coordinates) const;

  bool operator==(const MeshShape&) const = default;

 private:
  std::vector<MeshDimension> dimensions_;
  int size_ = 1;
};

/// "batch=2, model=3".
std::string to_text(const std::vector<MeshDimension>& dimensions);
std::string to_text(const MeshShape& shape);

/// The number of collectives along dimensions of more than one rank, and of the elements that this
/// rank received from others, including the padding of uneven pieces.
struct Traffic {
  std::uint64_t all_gathers = 0;
  std::uint64_t reduce_scatters = 0;
  std::uint64_t all_to_alls = 0;
  std::uint64_t all_reduces = 0;
  std::uint64_t elements = 0;

  bool operator==(const Traffic&) const = default;
};

/// "1 all-gather, 2 all-reduces, 24 elements".
std::string to_text(const Traffic& traffic);

/// The ranks of a communicator as a grid with named dimensions.
///
///   Mesh mesh(comm, {{"batch", 2}, {"model", 3}});  // rank 4 is batch 1, model 1
///
/// Converts to its MeshShape, so layouts can be made from a mesh. The collectives below run among
/// the ranks that differ in one dimension only, ordered by their coordinate in it; all of these
/// ranks call them, with equal counts. Sums are taken in the order of the coordinates, so their
/// bits do not depend on the transport.
/// Threads  that of the communicator, which must outlive the mesh; the mesh must outlive its
///          tensors.
/// Errors   comm::CommError of the transport; std::invalid_argument, before any communication, if
///          the values are not one block of equal length per coordinate.
class Mesh {
 public:
  /// Errors   throws the same comm::AgreedError (2) on all ranks: ranks that pass different
  ///          dimensions, naming the one that differs; the errors of MeshShape; sizes whose product
  ///          is not the number of ranks.
  /// Ranks    collective.
  Mesh(comm::Communicator& comm, const std::vector<MeshDimension>& dimensions);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const MeshShape& shape() const noexcept { return shape_; }
  operator const MeshShape&() const noexcept { return shape_; }
  const std::vector<MeshDimension>& dimensions() const noexcept { return shape_.dimensions(); }

  /// The number of ranks of the mesh, or along a dimension.
  int size() const noexcept { return shape_.size(); }
  int size(std::string_view name) const { return shape_.size(name); }

  /// This rank, and its coordinate along a dimension.
  int rank() const noexcept { return comm_.rank(); }
  int coordinate(std::string_view name) const { return shape_.coordinate(rank(), name); }

  /// All ranks; and the ranks that differ from this one in dimension `name` only, in order of their
  /// coordinate.
  comm::Communicator& communicator() noexcept { return comm_; }
  comm::Communicator& communicator(std::string_view name) { return *along_[shape_.index(name)]; }

  /// All-gather: `values` holds one block of equal length per coordinate. Each rank fills its own
  /// block before the call and receives the others.
  template <Number T>
  void all_gather(std::string_view name, std::span<T> values) {
    auto& comm = communicator(name);
    require_blocks("all_gather", comm, values.size(), block_of(comm, values.size()));
    comm.all_gather(bytes_of(values));
    count(&Traffic::all_gathers, comm, foreign(comm, values.size()));
  }

  /// All-to-all: sends block j of `send` to coordinate j; receives block i of `receive` from i.
  template <Number T>
  void all_to_all(std::string_view name, std::span<const T> send, std::span<T> receive) {
    auto& comm = communicator(name);
    require_blocks("all_to_all", comm, send.size(), block_of(comm, receive.size()));
    comm.all_to_all(bytes_of(send), bytes_of(receive));
    count(&Traffic::all_to_alls, comm, foreign(comm, send.size()));
  }

  /// Reduce-scatter: sets `sum` to the sum, over all coordinates, of this rank's block. `values`
  /// holds size(name) blocks as long as `sum`.
  template <Number T>
  void reduce_scatter(std::string_view name, std::span<const T> values, std::span<T> sum) {
    auto& comm = communicator(name);
    require_blocks("reduce_scatter", comm, values.size(), sum.size());
    sum_own_block(comm, values, sum);
    count(&Traffic::reduce_scatters, comm, foreign(comm, values.size()));
  }

  /// All-reduce: replaces `values` by the sum over all coordinates. Each rank sums one block and
  /// gathers the others.
  template <Number T>
  void all_reduce(std::string_view name, std::span<T> values) {
    auto& comm = communicator(name);
    if (comm.size() == 1 || values.empty()) return;
    const auto ranks = static_cast<std::size_t>(comm.size());
    const std::size_t block = ceil_divide(values.size(), ranks);
    std::vector<T> padded(ranks * block);
    std::copy(values.begin(), values.end(), padded.begin());
    std::vector<T> mine(block);
    sum_own_block(comm, std::span<const T>(padded), std::span(mine));
    const auto own = static_cast<std::size_t>(comm.rank()) * block;
    std::copy(mine.begin(), mine.end(), padded.begin() + static_cast<std::ptrdiff_t>(own));
    comm.all_gather(bytes_of(std::span(padded)));
    std::copy_n(padded.begin(), values.size(), values.begin());
    count(&Traffic::all_reduces, comm, 2 * foreign(comm, padded.size()));
  }

  /// The traffic of the collectives above since construction or the last reset. Local.
  const Traffic& traffic() const noexcept { return traffic_; }
  void reset_traffic() noexcept { traffic_ = {}; }

 private:
  template <class T>
  static auto bytes_of(std::span<T> values) noexcept {
    using Byte = std::conditional_t<std::is_const_v<T>, const std::uint8_t, std::uint8_t>;
    return std::span<Byte>(reinterpret_cast<Byte*>(values.data()), values.size_bytes());
  }

  // The number of elements in all blocks except this rank's own.
  static std::size_t foreign(const comm::Communicator& comm, std::size_t elements) noexcept {
    return elements - block_of(comm, elements);
  }

  static std::size_t block_of(const comm::Communicator& comm, std::size_t elements) noexcept {
    return elements / static_cast<std::size_t>(comm.size());
  }

  // Checks elements, not bytes: the byte count may be divisible when the element count is not.
  static void require_blocks(const char* collective, const comm::Communicator& comm,
                             std::size_t elements, std::size_t block);

  void count(std::uint64_t Traffic::*kind, const comm::Communicator& comm, std::size_t elements) {
    if (comm.size() == 1 || elements == 0) return;
    ++(traffic_.*kind);
    traffic_.elements += elements;
  }

  template <Number T>
  static void sum_own_block(comm::Communicator& comm, std::span<const T> values, std::span<T> sum) {
    std::vector<T> addends(values.size());
    comm.all_to_all(bytes_of(values), bytes_of(std::span(addends)));
    std::copy_n(addends.begin(), sum.size(), sum.begin());
    for (std::size_t at = sum.size(); at < addends.size(); at += sum.size()) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sharding::plus(sum[i], addends[at + i]);
    }
  }

  comm::Communicator& comm_;
  MeshShape shape_;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
  std::vector<comm::Communicator*> along_;  // by dimension
  Traffic traffic_;
};

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

  /// The shape of a rank's piece of a tensor of shape `global`; the largest one is rank 0's. Throws
  /// ConfigError if `global` does not have rank() axes.
  Shape local_shape(const Shape& global, int rank) const;

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

namespace sharding {

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

/// For the product of [m, k] and [k, n] on one mesh; see matmul in operations.hpp.
/// Errors   throws comm::AgreedError (2) for other shapes.
BinaryPlan matmul_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                       const Shape& b_shape);

/// For element-wise operations on one mesh with broadcasting; see elementwise in operations.hpp.
/// Errors   throws comm::AgreedError (2), which begins with `operation`, for incompatible shapes.
BinaryPlan elementwise_plan(const std::string& operation, const Layout& a, const Shape& a_shape,
                            const Layout& b, const Shape& b_shape);

/// The layout after summing an axis, each rank over the indices that it owns.
/// Errors   throws comm::AgreedError (2) unless axis < layout.rank().
Layout reduced_layout(const Layout& layout, std::size_t axis);

/// The layout after summing all axes.
Layout fully_reduced_layout(const Layout& layout);

}  // namespace sharding
}  // namespace lockstep
