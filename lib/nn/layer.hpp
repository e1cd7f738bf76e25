// What a layer does: forward, backward, and its part of the gradient block.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/aligned.hpp"
#include "lib/nn/batch_sums.hpp"
#include "lib/nn/layer_spec.hpp"
#include "lib/nn/parameters.hpp"
#include "lib/numerics/matrix.hpp"
#include "lib/numerics/products.hpp"

namespace lockstep::nn {

/// Where a layer's random numbers come from: the same for an example wherever it is computed.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;       ///< of the run
  std::uint64_t layer = 0;      ///< its number in the network
  std::uint64_t first_row = 0;  ///< of the global batch: the row of x(0)
};

/// Memory that layers compute in; takes more only when a call is the largest so far.
template <class Real>
class Scratch {
 public:
  enum Use { columns, waiting, uses };

  /// `count` elements from a 64-byte boundary on; what was there before is lost.
  std::span<Real> get(Use use, std::size_t count) {
    auto& buffer = buffers_[use];
    if (buffer.size() < count) buffer = AlignedBuffer<Real>(count);
    return buffer.span().first(count);
  }

 private:
  std::array<AlignedBuffer<Real>, uses> buffers_;
};

/// What a layer is given for one pass over some rows.
template <class Real>
struct Pass {
  Products<Real>& products;
  const ParameterBlock<Real>& block;
  std::size_t tensor;  ///< the layer's first in the block
  Scratch<Real>& scratch;
  std::optional<Draws> draws;  ///< none: evaluation
  BatchSums* batch = nullptr;  ///< null: evaluation, or no layer sums over the batch
};

/// A slice of the gradient block that is asked for.
template <class Real>
struct GradientSlice {
  const std::vector<ParameterSpec>& tensors;
  Range slice;
  std::span<Real> gradients;  ///< the whole block

  /// Calls sum(within, out) with the part of `tensor` that lies in the slice, counted from the
  /// tensor's first element, and where its sums belong; not at all where there is none.
  template <class Sum>
  void with(std::size_t tensor, Sum sum) const {
    const ParameterSpec& t = tensors[tensor];
    const std::size_t first = std::clamp(slice.begin, t.offset, t.offset + t.stored);
    const std::size_t last = std::clamp(slice.end, first, t.offset + t.stored);
    if (first == last) return;
    sum(Range{first - t.offset, last - t.offset}, gradients.subspan(first, last - first));
  }
};

/// One layer of a network. It owns no weights: they stand in the block that each pass names.
///
/// Rows are examples. Everything is local; one thread. It keeps nothing of a row between calls:
/// weight_gradients() is also given rows that went through another rank's layer. To be canonical, a
/// row of forward() and backward_input() is one fixed expression of its row alone, and
/// weight_gradients() the leaf-wise sum of numerics/strict.hpp over the rows.
/// Shapes   x, dx [B, inputs()]; y, dz [B, outputs()]; B may be 0.
template <class Real>
class Layer {
 public:
  Layer(std::size_t inputs, std::size_t outputs) : inputs_(inputs), outputs_(outputs) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  virtual ~Layer() = default;

  /// Values of one example.
  std::size_t inputs() const noexcept { return inputs_; }
  std::size_t outputs() const noexcept { return outputs_; }

  /// What forward() ends with. `dz` below is the gradient by what stood before it: the layer above
  /// multiplies by its derivative, which it knows from `y`.
  virtual Activation activation() const noexcept { return Activation::identity; }

  /// Its weights in the block's order, named "`prefix`.weight" and the like; none unless
  /// overridden.
  virtual std::vector<ParameterSpec> tensors(const std::string& /*prefix*/,
                                             const Products<Real>& /*products*/) const {
    return {};
  }

  /// Whether passes of training sum over the global batch (Pass::batch). Then every rank's
  /// forward() and backward_input() are collective, and rows depend on the whole batch.
  virtual bool sums_over_batch() const noexcept { return false; }

  virtual void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) = 0;

  /// The gradient by x, times the derivative of `below`, the activation that gave x.
  virtual void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                              Activation below, Matrix<Real> dx) = 0;

  /// The slice of its tensors' gradients, summed over the rows in leaves of `leaf`. Never called
  /// for a layer without tensors.
  virtual void weight_gradients(const Pass<Real>& /*pass*/, Matrix<const Real> /*x*/,
                                Matrix<const Real> /*dz*/, std::size_t /*leaf*/,
                                const GradientSlice<Real>& /*out*/) {}

  /// After the backward pass of a step: may change those of its tensors, from `tensor` on, whose
  /// gradients are always zero, on every rank alike.
  virtual void end_training_pass(ParameterBlock<Real>& /*block*/, std::size_t /*tensor*/) {}

 private:
  std::size_t inputs_;
  std::size_t outputs_;
};

/// The same elements in rows of `cols`.
template <class Real>
Matrix<Real> in_rows_of(std::size_t cols, Matrix<Real> matrix) {
  return {matrix.data, matrix.rows * (matrix.cols / cols), cols};
}

/// Rows [first, first + count) of a matrix.
template <class Real>
Matrix<Real> rows_of(Matrix<Real> matrix, std::size_t first, std::size_t count) {
  return {matrix.data + first * matrix.cols, count, matrix.cols};
}

/// Multiplies dx by the derivative of `below`, which gave x.
template <class Real>
void through(Activation below, Matrix<const Real> x, Matrix<Real> dx) {
  if (below != Activation::relu) return;
  const auto in = x.flat();
  const auto out = dx.flat();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] > 0 ? out[i] : Real{0};
}

}  // namespace lockstep::nn
