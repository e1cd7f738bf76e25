// Gradients of functions of tensors over a mesh: a tape records operations, and backpropagates
// through them.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/distribute/dtensor.hpp"

namespace lockstep::sharding {
struct TapeState;
}  // namespace lockstep::sharding

namespace lockstep {

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

}  // namespace lockstep

namespace lockstep::sharding {

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

}  // namespace lockstep::sharding
