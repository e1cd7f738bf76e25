// A network of dense layers with softmax cross-entropy: one replica.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "lib/nn/dense.hpp"
#include "lib/nn/initialisers.hpp"
#include "lib/nn/loss.hpp"
#include "lib/nn/parameters.hpp"

namespace lockstep::nn {

/// features -> hidden widths, each followed by ReLU -> classes (logits). No hidden widths: a
/// linear classifier.
struct NetworkShape {
  std::size_t features = 0;
  std::vector<std::size_t> hidden;
  std::size_t classes = 0;

  /// features, hidden widths, classes.
  std::vector<std::size_t> widths() const;

  /// Number of weights.
  std::size_t parameters() const;
};

/// Rows [first, first + count) of a network's buffers.
struct Rows {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// The weights and gradients of one replica, and buffers for the rows of a batch.
///
/// The buffers hold all rows that weight gradients are summed over; a rank fills its own with
/// forward and backward, and may fill the others with those of its peers. All
/// memory is taken in the constructor; a step allocates nothing. One thread; everything is local.
template <class Real>
class Network {
 public:
  /// Weights are zero. `rows`: rows of the buffers. `slices`: see ParameterBlock. `memory`: where
  /// all buffers are kept; a rank with peers gives that of its communicator. `products` and
  /// `memory` must outlive the network.
  /// Errors   throws std::bad_alloc.
  Network(const NetworkShape& shape, std::size_t rows, Products<Real>& products,
          std::size_t slices = 1,
          std::pmr::memory_resource& memory = *std::pmr::new_delete_resource());

  const NetworkShape& shape() const noexcept { return shape_; }
  std::size_t rows() const noexcept { return rows_; }
  ParameterBlock<Real>& parameters() noexcept { return block_; }
  const ParameterBlock<Real>& parameters() const noexcept { return block_; }

  /// Where the features of `rows` belong.  [count, features]
  Matrix<Real> inputs(Rows rows) noexcept { return view(activations_[0], shape_.features, rows); }

  /// What examples added to the loss; filled by loss(), read by sum_over_leaves().
  std::span<ExampleResult> results(Rows rows) noexcept {
    return results_.span().subspan(rows.first, rows.count);
  }

  /// From inputs(rows) to logits [count, classes].
  Matrix<const Real> forward(Rows rows);

  /// After forward(): fills results(rows), and, for training, the gradient by the logits.
  void loss(Rows rows, std::span<const std::int32_t> labels, bool training);

  /// After loss(): the gradient of the *sum* of losses by every layer's x W + b.
  void backward(Rows rows);

  /// The gradients by the logits, as loss() left them.
  Matrix<const Real> logit_gradients(Rows rows) noexcept {
    return view(gradients_.back(), shape_.classes, rows);
  }

  /// The slice of the gradient block, summed over `rows`, which begin with a leaf of `leaf`.
  void weight_gradients(Rows rows, std::size_t leaf, Slice slice) {
    weight_gradients(rows, leaf, slice, block_.gradients());
  }

  /// The same into another block of that length.
  void weight_gradients(Rows rows, std::size_t leaf, Slice slice, std::span<Real> gradients);

  /// Calls visit(span) for every buffer that weight_gradients() reads: all its elements of `rows`.
  template <class Visit>
  void for_each_exchanged(Rows rows, Visit visit) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      visit(view(activations_[i], layers_[i].inputs, rows).flat());
      visit(view(gradients_[i], layers_[i].outputs, rows).flat());
    }
  }

 private:
  Matrix<Real> view(AlignedBuffer<Real>& buffer, std::size_t width, Rows rows) noexcept {
    return {buffer.data() + rows.first * width, rows.count, width};
  }

  NetworkShape shape_;
  std::size_t rows_;
  Products<Real>& products_;
  std::vector<Dense> layers_;
  ParameterBlock<Real> block_;
  std::vector<AlignedBuffer<Real>> activations_;  // inputs, then each layer's output, [rows, width]
  std::vector<AlignedBuffer<Real>> gradients_;    // of the loss by each layer's x W + b
  AlignedBuffer<ExampleResult> results_;
};

/// Glorot uniform weights, zero biases; the same seed for every layer, as in the tutorial.
void initialise(Network<float>& network, SeedPair seed);

}  // namespace lockstep::nn
