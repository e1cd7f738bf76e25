// The layer interface (forward, backward, weight gradients), sums over the global batch for layers,
// and the built-in layers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/nn/parameters.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/numerics/matrix.hpp"
#include "lockstep/numerics/products.hpp"

namespace lockstep::nn {
using lockstep::apply_relu_gradient;

/// Sums terms over all examples of the global batch: in order within a leaf, then in the balanced
/// binary tree over leaves, like gradients, but in double. One fixed expression, so the bits depend
/// neither on the number of ranks nor on the distribution of examples over ranks.
class BatchSums {
 public:
  BatchSums() = default;
  BatchSums(const BatchSums&) = delete;
  BatchSums& operator=(const BatchSums&) = delete;
  virtual ~BatchSums() = default;

  /// Number of examples of the step over all ranks; at least 1.
  virtual std::size_t examples() const noexcept = 0;

  /// Sets `sums` to the sums over all examples. `add(range, into)` must add to `into`, in order,
  /// the terms of a range of this rank's examples.
  /// Ranks    collective: a rank without examples must call it too, with the same number of sums.
  template <class Add>
  void sum(std::span<double> sums, const Add& add) {
    do_sum(sums, {&add, [](const void* object, Range examples, std::span<double> into) {
                    (*static_cast<const Add*>(object))(examples, into);
                  }});
  }

 protected:
  struct Terms {
    const void* object;
    void (*call)(const void* object, Range examples, std::span<double> into);

    void add(Range examples, std::span<double> into) const { call(object, examples, into); }
  };

 private:
  virtual void do_sum(std::span<double> sums, Terms terms) = 0;
};

/// Sums one subtree of the leaves [0, leaves) into `out`: leaf(q, into) sets `into` to the sums of
/// leaf `q`. `scratch` is resized if the tree needs more.
template <class Leaf>
void sum_subtree(const Subtree& tree, std::uint64_t leaves, std::span<double> out,
                 std::vector<double>& scratch, const Leaf& leaf) {
  const std::uint64_t count = std::min(tree.size, leaves - tree.first);
  const std::size_t needed = tree_slots(count) * out.size();
  if (scratch.size() < needed) scratch.resize(needed);
  sum_tree(count, std::span(scratch), out,
           [&](std::uint64_t n, std::span<double> into) { leaf(tree.first + n, into); });
}

/// Sums over a batch that is on one replica.
class WholeBatch final : public BatchSums {
 public:
  WholeBatch(std::size_t examples, std::size_t leaf) : examples_(examples), leaf_(leaf) {}

  std::size_t examples() const noexcept override { return examples_; }

 private:
  void do_sum(std::span<double> sums, Terms terms) override {
    const std::uint64_t leaves = leaves_of(examples_, leaf_);
    sum_subtree({0, std::bit_ceil(leaves)}, leaves, sums, scratch_,
                [&](std::uint64_t q, std::span<double> into) {
                  std::fill(into.begin(), into.end(), 0.0);
                  terms.add({q * leaf_, std::min((q + 1) * leaf_, examples_)}, into);
                });
  }

  std::size_t examples_;
  std::size_t leaf_;
  std::vector<double> scratch_;
};

/// The key of a layer's random numbers: for one example the same on every rank.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;       ///< step of the run
  std::uint64_t layer = 0;      ///< index in NetworkShape::layers
  std::uint64_t first_row = 0;  ///< row of the global batch that is row 0 of x
};

/// Scratch memory of layers; grows if a call needs more than the calls before.
template <class Real>
class Scratch {
 public:
  /// contribution: the gradient that one of several layers adds to the output that they take
  /// (Network::backward).
  enum Use { columns, waiting, contribution, uses };

  /// Returns `count` elements, aligned to 64 bytes. Does not preserve earlier contents.
  std::span<Real> get(Use use, std::size_t count) {
    auto& buffer = buffers_[use];
    if (buffer.size() < count) buffer = AlignedBuffer<Real>(count);
    return buffer.span().first(count);
  }

 private:
  std::array<AlignedBuffer<Real>, uses> buffers_;
};

/// The context of one forward or backward pass over some rows.
template <class Real>
struct Pass {
  Products<Real>& products;
  const ParameterBlock<Real>& block;
  std::size_t tensor;  ///< index of the layer's first tensor in the block
  Scratch<Real>& scratch;
  std::optional<Draws> draws;  ///< none: evaluation
  BatchSums* batch = nullptr;  ///< null: evaluation, frozen, or no layer sums over the batch
  std::size_t input = 0;       ///< index of x among the inputs of a layer of several
};

/// The requested slice of the gradient block.
template <class Real>
struct GradientSlice {
  const std::vector<ParameterSpec>& tensors;
  Range slice;
  std::span<Real> gradients;  ///< the whole block

  /// Calls sum(within, out) with the part of `tensor` in the slice, as a range of the tensor's
  /// elements, and the output for its sums. Does not call it if that part is empty.
  template <class Sum>
  void with(std::size_t tensor, Sum sum) const {
    const ParameterSpec& t = tensors[tensor];
    const std::size_t first = std::clamp(slice.begin, t.offset, t.offset + t.stored);
    const std::size_t last = std::clamp(slice.end, first, t.offset + t.stored);
    if (first == last) return;
    sum(Range{first - t.offset, last - t.offset}, gradients.subspan(first, last - first));
  }

  /// Sets the part of `tensor` in the slice to 0.
  void clear(std::size_t tensor) const {
    with(tensor, [](Range, std::span<Real> part) { std::fill(part.begin(), part.end(), Real{0}); });
  }
};

/// One layer of a network. It owns no weights: they are in the parameter block of each pass.
///
/// Rows are examples. Functions are called by one thread; those of the built-in layers compute on
/// the rank's threads (ReplicaOptions::threads), but for the gradient of an embedding. They are
/// local unless sums_over_batch(). A layer keeps no per-row state between calls: weight_gradients()
/// also receives rows computed on other ranks. A layer is canonical if each row of forward() and
/// backward_input() is one fixed expression of its input row, and weight_gradients() is the sum
/// over the rows by leaves: each leaf is summed row by row, and the leaves are added as a tree
/// (numerics/leaf_tree.hpp).
///
/// A layer of several inputs (Merges) has no tensors. forward() is called for each of them in
/// order, Pass::input of them before, and adds x to what the calls before left in y;
/// backward_input() is called for each of them in order, with that input as x and dx.
/// Shapes   x, dx [B, inputs()], or the width of that input; y, dz [B, outputs()]; B may be 0.
template <class Real>
class Layer {
 public:
  Layer(std::size_t inputs, std::size_t outputs) : inputs_(inputs), outputs_(outputs) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  virtual ~Layer() = default;

  /// Number of values per example; of several inputs, of the first.
  std::size_t inputs() const noexcept { return inputs_; }
  std::size_t outputs() const noexcept { return outputs_; }

  /// The activation that forward() applies last. `dz` in the functions below is the gradient with
  /// respect to its input: the next layer multiplies by the derivative, which it computes from `y`;
  /// if there are several, Network::backward does after adding their gradients.
  virtual Activation activation() const noexcept { return Activation::identity; }

  /// The layer's tensors in the order of the block, named "`prefix`.weight" and so on; none by
  /// default.
  virtual std::vector<ParameterSpec> tensors(const std::string& /*prefix*/,
                                             const Products<Real>& /*products*/) const {
    return {};
  }

  /// True if training passes sum over the global batch (Pass::batch). Then forward() and
  /// backward_input() are collective, and rows depend on the whole batch. Without Pass::batch they
  /// use running statistics.
  virtual bool sums_over_batch() const noexcept { return false; }

  virtual void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) = 0;

  /// What is wrong with the inputs of an example, if they are values that the layer does not take;
  /// else empty. Asked where outputs are not finite.
  virtual std::string input_problem(std::span<const Real> /*x*/) const { return {}; }

  /// Computes the gradient by x, times the derivative of `below`, the activation that computed x.
  virtual void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                              Activation below, Matrix<Real> dx) = 0;

  /// Computes the slice of the tensors' gradients, summed over the rows in leaves of `leaf` rows.
  /// Not called for a layer that is frozen or has no tensors.
  virtual void weight_gradients(const Pass<Real>& /*pass*/, Matrix<const Real> /*x*/,
                                Matrix<const Real> /*dz*/, std::size_t /*leaf*/,
                                const GradientSlice<Real>& /*out*/) {}

  /// Called after the backward pass of a step, unless the layer is frozen or has no tensors. May
  /// change the layer's tensors (from index `tensor`) whose gradients are always zero; the change
  /// must be the same on every rank.
  virtual void end_training_pass(ParameterBlock<Real>& /*block*/, std::size_t /*tensor*/) {}

 private:
  std::size_t inputs_;
  std::size_t outputs_;
};

/// The same elements as a matrix with `cols` columns.
template <class Real>
Matrix<Real> reshape_to_columns(std::size_t cols, Matrix<Real> matrix) {
  return {matrix.data, matrix.rows * (matrix.cols / cols), cols};
}

/// Number of rows whose terms of a gradient are in scratch memory together, at `row` terms per row:
/// a node of the tree.
inline std::size_t piece_rows(std::size_t leaf, std::size_t row) {
  constexpr std::size_t max_terms = 1 << 18;
  return node_rows(max_terms / row, leaf);
}

/// Number of rows that forward and dX of a convolution gather together, at `row` window elements
/// per row: as many for each thread as stay in its core's cache between im2col and the product.
/// Pieces of dW are larger (piece_rows()), since each adds a whole weight gradient.
inline std::size_t cached_rows(std::size_t row, std::size_t threads) {
  constexpr std::size_t max_cached = 1 << 16;
  return std::max<std::size_t>(1, max_cached / row) * threads;
}

/// Sums `rows` rows into `out` in pieces of `piece` rows: sum(range, into) computes the tree over
/// the leaves of one piece, and the pieces are added in the order of the tree over all leaves
/// (numerics/leaf_tree.hpp). So the result is bitwise equal to one sum over all rows.
template <class Real, class Sum>
void sum_by_pieces(std::size_t rows, std::size_t piece, Scratch<Real>& scratch, std::span<Real> out,
                   Sum sum) {
  if (rows <= piece) return sum(Range{0, rows}, out);
  const std::size_t pieces = ceil_divide(rows, piece);
  const auto waiting = scratch.get(Scratch<Real>::waiting, tree_slots(pieces) * out.size());
  sum_tree(pieces, waiting, out, [&](std::size_t q, std::span<Real> into) {
    sum(Range{q * piece, std::min((q + 1) * piece, rows)}, into);
  });
}

/// A layer and its index in the shape. Flatten has no layer.
template <class Real>
struct NumberedLayer {
  std::size_t number;
  std::unique_ptr<Layer<Real>> layer;
};

/// Creates the layers of a shape in order.
template <class Real>
std::vector<NumberedLayer<Real>> make_layers(const NetworkShape& shape);

/// Creates one layer for inputs of the given shapes.
///
// clang-format off
///   dense        y = activation(x W + b)
///   convolution  the dense product of every window with W [kernel * kernel * channels, filters],
///                whose rows are in the window's order: row, column, channel. With stride s the
///                windows are every s-th of those with stride 1. dx: each pixel is the sum over its
///                windows, in their order
///   pool         max: the greatest value, dx goes to the first of them; average: the sum in the
///                window's order, divided by their number; global-pool: one window, the image
///   dropout      element e of row r: word e % 4 of Philox(e / 4, r; key of seed, layer, step)
///                below floor(rate * 2^32) is zero, unless the value is NaN; others are multiplied
///                by 1 / (1 - rate), rounded
///   layer norm   m = sum(x) / C, s = sum((x - m)^2) / C, each in order; r = 1 / sqrt(s + 1e-5);
///                y = (x - m) r gain + bias, from left to right; every operation rounded
///   batch norm   as layer norm, but with m = S1 / N and s = S2 / N - m^2, at least 0, of the sums
///                S1 of x and S2 of x^2 over the batch (BatchSums), N terms per channel; m and r
///                are computed in double, then rounded; then the activation
///   add          y = activation((x1 + x2) + x3 ...), every addition rounded
///   concatenate  the channels of every pixel, input after input
///   embedding    the row of W [vocabulary, width] for each value; dW as of the dense product in
///                float32 with one-hot rows
// clang-format on
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Dense& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Convolution& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Pool& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const GlobalPool& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Dropout& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const LayerNorm& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const BatchNorm& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Embedding& spec, const FeatureShape& input);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Add& spec, std::span<const FeatureShape> inputs);
template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Concatenate& spec,
                                        std::span<const FeatureShape> inputs);

}  // namespace lockstep::nn
