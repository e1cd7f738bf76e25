// Tensors distributed over a mesh: each rank holds one piece. Creation (pack_to_mesh, copy_to_mesh)
// and redistribution (relayout). Variables, and initial values of which each rank makes its own
// piece only. The tape that takes gradients. Operations: operations.hpp.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distribute/mesh.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/nn/initialisers.hpp"

namespace lockstep {
namespace sharding {

struct Maker;
struct TapeState;
struct DTensorTest;

template <class T, class... Others>
concept OneOf = (std::same_as<T, Others> || ...);

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

  /// The global shape, and the layout. Of a temporary, such as a sum, they are moved out of it.
  const Shape& shape() const& noexcept { return shape_; }
  Shape shape() && noexcept { return std::move(shape_); }
  const Layout& layout() const& noexcept { return layout_; }
  Layout layout() && noexcept { return std::move(layout_); }
  Mesh& mesh() const noexcept { return *mesh_; }

  /// This rank's piece: the inverse of pack_to_mesh. Of a temporary, such as a sum, a copy. Local.
  const Tensor<T>& unpack() const& noexcept { return *piece_; }
  Tensor<T> unpack() && { return *piece_; }

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

/// Throws comm::AgreedError (2) unless both are one mesh: of the same shape and ranks. Local; the
/// same on every rank.
void require_one_mesh(const std::string& operation, Mesh& a, Mesh& b);

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

struct TapeOptions {
  bool persistent = false;  ///< gradient() may be called more than once
};

/// Records the operations on tensors over a mesh, from its construction until gradient() or its
/// destruction, and computes gradients by reverse accumulation over them.
///
///   Tape tape;
///   const auto y = relu(matmul(x, w) + b);
///   const auto loss = reduce_mean(softmax_cross_entropy(y, labels));
///   const auto gradients = tape.gradient(loss, {w, b});  // in the order of {w, b}
///
/// Records every operation of operations.hpp and DTensor::relayout on float and double that this
/// thread executes, whatever the operands; no tensor has to be watched. Ranks are threads or
/// processes with a tape each. Tapes may be nested; each records. The tensors that a tape has
/// recorded stay in memory until a gradient() of a tape that is not persistent, or its destruction.
/// gradient() itself is not recorded: there are no second derivatives. Values taken out with unpack
/// or to_global are constants, and so are tensors made of them.
///
/// Layouts  a gradient has the layout of its value. Gradients of intermediate values too, and their
///          partial sums are completed directly into that layout: the gradient of a weight that is
///          cut over "batch" costs a reduce-scatter, of one that is replicated an all-reduce.
/// Bits     y = x w is a sum over the axis that both share, its gradient by x one over the columns
///          of w, and by w one over the rows of x. Where a mesh dimension cuts a summed axis, each
///          rank adds its own part in order, and the parts are added by coordinate: the last bits
///          then depend on the size of that dimension. They are not the trainer's canonical sums
///          (train::Replica), which do not depend on the ranks. What changes no bit: transports,
///          threads or processes; dimensions that cut nothing; and how a variable is stored, if the
///          product gathers it: with x [batch, -], w as [-, -], [batch, -] or [-, batch] has the
///          same gradients.
/// Threads  constructed, used and destroyed on one thread.
class Tape {
 public:
  explicit Tape(TapeOptions options = {});
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The gradients of `target`, or of the sum of its elements if it has several, by each source,
  /// with the source's shape and layout (with all sums complete). A source is a variable, or any
  /// tensor that an operation on the tape has read or returned.
  ///
  /// Errors   throws the same comm::AgreedError (2) on all ranks: a source on which the target does
  ///          not depend on this tape, such as a variable that was assigned since; an operation
  ///          without derivative between source and target; a second call unless persistent.
  /// Ranks    collective.
  template <Differentiable T>
  std::vector<DTensor<T>> gradient(const DTensor<T>& target,
                                   const std::vector<DTensor<T>>& sources);
  template <Differentiable T>
  std::vector<DTensor<T>> gradient(const DTensor<T>& target,
                                   std::initializer_list<DTensor<T>> sources) {
    return gradient(target, std::vector<DTensor<T>>(sources));
  }

  /// The same for a range of tensors or variables, and for one of them.
  template <Differentiable T, class Sources>
  requires requires(const Sources& sources) { sources.begin(); }
  std::vector<DTensor<T>> gradient(const DTensor<T>& target, const Sources& sources) {
    return gradient(target, std::vector<DTensor<T>>(sources.begin(), sources.end()));
  }
  template <Differentiable T>
  DTensor<T> gradient(const DTensor<T>& target, const DTensor<T>& source) {
    return gradient(target, std::vector<DTensor<T>>{source}).front();
  }

 private:
  std::unique_ptr<sharding::TapeState> state_;
};

/// The same tensor as a constant for tapes. Local.
template <Differentiable T>
DTensor<T> stop_gradient(const DTensor<T>& tensor);

namespace sharding {

/// What an operation's gradient functions take. A relayout passes partial sums on, so that they are
/// completed once, in the layout before it.
enum class GradientSums { complete, partial };

/// An operand of a recorded operation. `gradient` computes the gradient by the operand from that of
/// the result, in any layout; empty if the operation has no derivative.
template <Differentiable T>
struct RecordedInput {
  DTensor<T> operand;
  std::function<DTensor<T>(const DTensor<T>&)> gradient;
};

/// True if a tape of this thread records.
bool is_recording() noexcept;

/// Adds an operation to the tapes of this thread.
template <Differentiable T>
void record(const char* operation, GradientSums sums, const DTensor<T>& result,
            std::vector<RecordedInput<T>> inputs);

/// While it lives, no tape of this thread records.
class RecordingPause {
 public:
  RecordingPause() noexcept;
  ~RecordingPause();
  RecordingPause(const RecordingPause&) = delete;
  RecordingPause& operator=(const RecordingPause&) = delete;
};

template <MeshNumber T, class Gradient>
struct Input {
  const DTensor<T>& operand;
  Gradient gradient;
};

/// An operand and its gradient, `gradient(gradient of the result)`; nullptr: no derivative.
template <MeshNumber T, class Gradient>
Input<T, Gradient> input(const DTensor<T>& operand, Gradient gradient) {
  return {operand, std::move(gradient)};
}

/// Records an operation whose operands are of the type of its result. Returns the result.
template <MeshNumber T, class... Gradients>
DTensor<T> on_tape(const char* operation, DTensor<T> result, Input<T, Gradients>... inputs) {
  if constexpr (Differentiable<T>) {
    if (is_recording()) {
      record<T>(operation, GradientSums::complete, result,
                {{inputs.operand, std::move(inputs.gradient)}...});
    }
  }
  return result;
}

/// Records a change of layout: the operand's gradient is that of the result. Returns the result.
template <MeshNumber T>
DTensor<T> relayout_on_tape(DTensor<T> result, const DTensor<T>& operand) {
  if constexpr (Differentiable<T>) {
    if (is_recording()) {
      record<T>("relayout", GradientSums::partial, result,
                {{operand, [](const DTensor<T>& gradient) { return gradient; }}});
    }
  }
  return result;
}

}  // namespace sharding
}  // namespace lockstep
