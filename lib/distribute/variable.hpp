// Variables over a mesh, and initial values of which each rank makes its own piece only.
#pragma once

#include <string>
#include <utility>

#include "lockstep/distribute/dtensor.hpp"
#include "lockstep/nn/initialisers.hpp"

namespace lockstep {

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
