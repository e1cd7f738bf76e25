// Layers and a loss: one replica.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "lib/nn/initialisers.hpp"
#include "lib/nn/layer.hpp"
#include "lib/nn/layer_spec.hpp"
#include "lib/nn/loss.hpp"
#include "lib/nn/parameters.hpp"

namespace lockstep::nn {

/// Which rows of which step a training pass computes: random layers draw by them.
struct TrainingRows {
  std::uint64_t step = 0;
  std::uint64_t first = 0;  ///< of the global batch: what stands in row 0 of the buffers
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
  /// all buffers are kept; a rank with peers gives that of its communicator. `layers`: ready ones
  /// in place of make_layers(shape), which lead from its features to its classes. `products` and
  /// `memory` must outlive the network.
  /// Errors   throws std::bad_alloc; std::invalid_argument where a layer of the user's own is not
  ///          what its kind says, or its tensors are not stored as `products` store them.
  Network(const NetworkShape& shape, std::size_t rows, Products<Real>& products,
          std::size_t slices = 1,
          std::pmr::memory_resource& memory = *std::pmr::new_delete_resource(),
          std::vector<NumberedLayer<Real>> layers = {});

  const NetworkShape& shape() const noexcept { return shape_; }
  std::size_t rows() const noexcept { return rows_; }
  ParameterBlock<Real>& parameters() noexcept { return block_; }
  const ParameterBlock<Real>& parameters() const noexcept { return block_; }

  /// Where the features of `rows` belong.  [count, features]
  Matrix<Real> inputs(Range rows) noexcept { return activation(0, rows); }

  /// What examples added to the loss; filled by loss(), read by sum_over_leaves().
  std::span<ExampleResult> results(Range rows) noexcept {
    return results_.span().subspan(rows.begin, rows.size());
  }

  /// From inputs(rows) to logits [count, classes], as evaluation has them; or as a training step
  /// has them, with what is random in it and the statistics of its batch.
  /// Errors   throws std::logic_error: training where sums_over_batch(), without batch sums.
  Matrix<const Real> forward(Range rows) { return forward(rows, std::nullopt); }
  Matrix<const Real> forward(Range rows, std::optional<TrainingRows> training);

  /// Keys what is random in training.
  void set_seed(std::uint64_t seed) noexcept { seed_ = seed; }

  /// What layers that sum over the global batch do it with in training; must outlive its use. Null
  /// until a step sets it (lib/train/canonical.hpp); WholeBatch serves a replica that is alone.
  void set_batch_sums(BatchSums* sums) noexcept { batch_sums_ = sums; }

  /// Whether training needs them.
  bool sums_over_batch() const noexcept;

  /// What loss() computes; must outlive its use, and is set before a step is made. Softmax
  /// cross-entropy unless it is set.
  void set_loss(const Loss<Real>& loss) noexcept { loss_ = &loss; }
  void set_loss(const Loss<Real>&&) = delete;  ///< it would not live
  const Loss<Real>& loss_function() const noexcept { return *loss_; }

  /// After forward(): fills results(rows), and, for training, the gradient by the logits.
  /// Errors   throws std::invalid_argument: not a label for each row, or one outside [0, classes).
  void loss(Range rows, std::span<const std::int32_t> labels, bool training);

  /// After loss(): the gradient of the *sum* of losses by what every layer gives before its
  /// activation. Draws as the last forward() did. Changes no state: it may be computed again.
  void backward(Range rows);

  /// Once per training step, after backward(): layers with running statistics update them.
  void end_training_pass();

  /// The slice of the gradient block, summed over `rows`, which begin with a leaf of `leaf`.
  void weight_gradients(Range rows, std::size_t leaf, Range slice) {
    weight_gradients(rows, leaf, slice, block_.gradients());
  }

  /// The same into another block of that length.
  void weight_gradients(Range rows, std::size_t leaf, Range slice, std::span<Real> gradients);

  /// Calls visit(span) for the inputs and every buffer that weight_gradients() reads: all its
  /// elements of `rows`.
  template <class Visit>
  void for_each_exchanged(Range rows, Visit visit) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (i == 0 || layers_[i].trained) visit(activation(i, rows).flat());
      if (layers_[i].trained) visit(gradient(i, rows).flat());
    }
  }

 private:
  /// What goes into layer `i`: the inputs, then each layer's output.
  Matrix<Real> activation(std::size_t i, Range rows) noexcept {
    const std::size_t width = widths_[i];
    return {activations_.data() + starts_[i] + rows.begin * width, rows.size(), width};
  }

  /// The gradient of the loss by the output of layer `i`, before its activation function.
  Matrix<Real> gradient(std::size_t i, Range rows) noexcept {
    const std::size_t width = widths_[i + 1];
    const std::size_t start = starts_[i + 1] - starts_[1];
    return {activation_gradients_.data() + start + rows.begin * width, rows.size(), width};
  }

  /// A layer at its place: its number in the shape, its first tensor in the block.
  struct Placed {
    std::unique_ptr<Layer<Real>> layer;
    std::size_t number = 0;
    std::size_t tensor = 0;
    bool trained = false;
  };
  static std::vector<ParameterSpec> place(const NetworkShape& shape,
                                          std::vector<NumberedLayer<Real>> layers,
                                          const Products<Real>& products,
                                          std::vector<Placed>& placed);
  Pass<Real> pass(std::size_t layer, Range rows);

  NetworkShape shape_;
  std::size_t rows_;
  Products<Real>& products_;
  std::vector<Placed> layers_;
  ParameterBlock<Real> block_;
  // Matrices [rows_, width] one after another in one block each, on cache lines: the inputs, then
  // each layer's output; and the gradients by the outputs.
  std::vector<std::size_t> widths_;
  std::vector<std::size_t> starts_;
  AlignedBuffer<Real> activations_;
  AlignedBuffer<Real> activation_gradients_;
  AlignedBuffer<ExampleResult> results_;
  Scratch<Real> scratch_;
  BatchSums* batch_sums_ = nullptr;
  const Loss<Real>* loss_;
  std::uint64_t seed_ = 0;
  std::optional<TrainingRows> training_;  // of the last forward()
};

/// Glorot uniform weights, gains of one, zero biases; the same seed for every layer, as in the
/// tutorial. Keys what is random in training with it too.
void initialise(Network<float>& network, SeedPair seed);

}  // namespace lockstep::nn
