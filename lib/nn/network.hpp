// A network: a graph of layers, parameters, buffers for rows, and a loss.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/initialisers.hpp"
#include "lockstep/nn/layer.hpp"
#include "lockstep/nn/loss.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/nn/parameters.hpp"

namespace lockstep::nn {

/// Step and first row of a training pass: the key of random layers.
struct TrainingRows {
  std::uint64_t step = 0;
  std::uint64_t first = 0;  ///< row of the global batch that is row 0 of the buffers
};

/// The weights and gradients of one replica, and buffers for the rows of a batch.
///
/// The layers are a directed acyclic graph, in the order of the shape (network_shape.hpp), which is
/// that of the forward pass. Values are numbered: 0 is the input, i + 1 the output of layer i. A
/// layer reads the values that it takes; each has one buffer, and its gradient another.
///
/// The gradient by a value that is taken several times is the sum of the users' contributions in
/// the order of the backward pass: of layers from the last to the first, and of one layer's inputs
/// in their order; each addition is rounded. Only then is it multiplied by the derivative of the
/// activation that computed the value. A value that is taken once is written by its user,
/// derivative included, without a copy; so a chain of layers needs no further memory or time.
///
/// The buffers hold all rows over which weight gradients are summed; a rank computes its own rows
/// with forward and backward, and may receive the others from other ranks. All memory is allocated
/// in the constructor or by the first step, except by embeddings. Functions are called by one
/// thread and computed on the rank's threads, but for losses, custom layers and the gradients of
/// embeddings; they are local, except with layers that sum over the batch.
template <class Real>
class Network {
 public:
  /// Weights are zero. `rows`: rows of the buffers. `slices`: see ParameterBlock. `memory`: the
  /// memory of all buffers; with several ranks, that of the communicator. `layers`: used instead of
  /// make_layers(shape) if not empty, from the shape's features to its classes. `products` and
  /// `memory` must outlive the network.
  /// Errors   throws std::bad_alloc; std::invalid_argument if a custom layer does not match its
  ///          LayerKind, or if its tensors do not have the layout of `products`.
  Network(const NetworkShape& shape, std::size_t rows, Products<Real>& products,
          std::size_t slices = 1,
          std::pmr::memory_resource& memory = *std::pmr::new_delete_resource(),
          std::vector<NumberedLayer<Real>> layers = {});

  /// The layout of the parameters of a network of `shape`, in one slice. `products` must outlive
  /// it.
  static ParameterLayout<Real> layout_of(const NetworkShape& shape, const Products<Real>& products);

  const NetworkShape& shape() const noexcept { return shape_; }
  std::size_t rows() const noexcept { return rows_; }
  ParameterBlock<Real>& parameters() noexcept { return block_; }
  const ParameterBlock<Real>& parameters() const noexcept { return block_; }

  /// The input buffer of `rows`.  [count, features]
  Matrix<Real> inputs(Range rows) noexcept { return activation(0, rows); }

  /// The results of examples; written by loss(), read by sum_over_leaves().
  std::span<ExampleResult> results(Range rows) noexcept {
    return results_.span().subspan(rows.begin, rows.size());
  }

  /// Computes the logits [count, classes] from inputs(rows): for evaluation, or for a training
  /// step, with random layers and the statistics of the batch.
  /// Errors   throws std::logic_error: training with sums_over_batch() but without batch sums.
  Matrix<const Real> forward(Range rows) { return forward(rows, std::nullopt); }
  Matrix<const Real> forward(Range rows, std::optional<TrainingRows> training);

  /// Sets the seed of random layers.
  void set_seed(std::uint64_t seed) noexcept { seed_ = seed; }

  /// Sets the sums over the global batch for layers in training; must outlive its use. Null until a
  /// training step sets it, as train::Replica does. Use WholeBatch with one replica.
  void set_batch_sums(BatchSums* sums) noexcept { batch_sums_ = sums; }

  /// True if training needs batch sums.
  bool sums_over_batch() const noexcept;

  /// Sets the loss function; it must outlive its use. Call it before a step is created. The default
  /// is softmax cross-entropy. Throws what require_own_name() throws, and ConfigError if the
  /// network has class weights and the loss takes no labels.
  void set_loss(const Loss<Real>& loss);
  void set_loss(const Loss<Real>&&) = delete;  ///< no temporaries
  const Loss<Real>& loss_function() const noexcept { return *loss_; }

  /// Sets factors of the training loss of each class, [classes], finite and at least 0; empty:
  /// none. Throws ConfigError for others, for another number, or if the loss takes no labels.
  void set_class_weights(std::span<const float> weights);

  /// True if a row of these targets may have another weight in training than 1.
  bool is_weighted(const Targets& targets) const noexcept {
    return !targets.weights.empty() || !class_weights_.empty();
  }

  /// The weight of row `i` of the targets in training: that of the example times that of its class,
  /// rounded to float32. The targets must have passed require_targets().
  float training_weight(const Targets& targets, std::size_t i) const noexcept {
    const float weight = targets.weights.empty() ? 1 : targets.weights[i];
    if (class_weights_.empty()) return weight;
    return weight * class_weights_[static_cast<std::size_t>(targets.labels[i])];
  }

  /// Computes results(rows) after forward() and, for training, the gradient by the logits, both
  /// times training_weight(). Evaluation applies weights of examples itself.
  /// Errors   those of require_targets().
  void loss(Range rows, const Targets& targets, bool training);

  /// Computes, after loss(), the gradient of the *sum* of losses by every layer's output before its
  /// activation, but for layers before the first that is trained. Random layers use the numbers of
  /// the last forward(). Changes no state, so it may be repeated.
  void backward(Range rows);

  /// Updates running statistics. Call it once per training step, after backward().
  void end_training_pass();

  /// Computes the slice of the gradient block, summed over `rows`, which begin at the boundary of a
  /// leaf of `leaf` rows; zeros for frozen layers.
  void weight_gradients(Range rows, std::size_t leaf, Range slice) {
    weight_gradients(rows, leaf, slice, block_.gradients());
  }

  /// The same into another block of equal length.
  void weight_gradients(Range rows, std::size_t leaf, Range slice, std::span<Real> gradients);

  /// Number of layers, and the index of layer `i` in the shape, where flatten is one too.
  std::size_t layers() const noexcept { return layers_.size(); }
  std::size_t number_of(std::size_t i) const noexcept { return layers_[i].number; }

  /// Value `i`: the network's inputs (0), or the output of layer i - 1; the logits if `i` is
  /// layers().  [rows, width]
  Matrix<Real> activation(std::size_t i, Range rows) noexcept {
    const std::size_t width = widths_[i];
    return {activations_.data() + starts_[i] + rows.begin * width, rows.size(), width};
  }

  /// The value that layer `i` takes; of several the first.
  std::size_t input_of(std::size_t i) const noexcept { return layers_[i].inputs[0].value; }

  /// Layer::input_problem() of layer `i`, for an example's row of value input_of(i).
  std::string input_problem(std::size_t i, std::span<const Real> x) const {
    return layers_[i].layer->input_problem(x);
  }

  /// The gradient of the loss by value i + 1, the output of layer `i`, before its activation
  /// function.
  Matrix<Real> gradient(std::size_t i, Range rows) noexcept {
    const std::size_t width = widths_[i + 1];
    const std::size_t start = starts_[i + 1] - starts_[1];
    return {activation_gradients_.data() + start + rows.begin * width, rows.size(), width};
  }

  /// Calls visit(span) for the inputs and every buffer that weight_gradients() reads, once each,
  /// with the elements of `rows`.
  template <class Visit>
  void for_each_exchanged(Range rows, Visit visit) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].exchanges_input) visit(activation(layers_[i].inputs[0].value, rows).flat());
      if (layers_[i].trained) visit(gradient(i, rows).flat());
    }
  }

  /// Sets `rows` of these buffers to zero: rows without an example, which are summed over.
  void clear_exchanged(Range rows) {
    for_each_exchanged(
        rows, [](std::span<Real> values) { std::fill(values.begin(), values.end(), Real{0}); });
  }

 private:
  /// An input of a layer.
  struct Input {
    std::size_t value = 0;
    bool first = true;  ///< its contribution is the first of the value's gradient
    bool last = true;   ///< and the last
  };
  /// A layer with its index in the shape, the index of its first tensor in the block, and inputs.
  struct Placed {
    std::unique_ptr<Layer<Real>> layer;
    std::size_t number = 0;
    std::size_t tensor = 0;
    bool trained = false;     ///< it has tensors, and is not frozen
    std::size_t tensors = 0;  ///< number of its tensors
    std::vector<Input> inputs = {};
    bool exchanges_input = false;  ///< see for_each_exchanged()
  };
  static std::vector<ParameterSpec> place(const NetworkShape& shape,
                                          std::vector<NumberedLayer<Real>> layers,
                                          const Products<Real>& products,
                                          std::vector<Placed>& placed);
  void connect();
  Pass<Real> pass(std::size_t layer, Range rows, std::size_t input = 0);
  void backward_input(std::size_t layer, std::size_t input, Range rows);

  NetworkShape shape_;
  std::size_t rows_;
  Products<Real>& products_;
  std::vector<Placed> layers_;
  std::size_t first_trained_ = 0;  // earlier layers need no gradients
  ParameterBlock<Real> block_;
  // Matrices [rows_, width] of values, contiguous and aligned to cache lines. One block holds the
  // values, the other their gradients but for the inputs'.
  std::vector<std::size_t> widths_;
  std::vector<std::size_t> starts_;
  AlignedBuffer<ExampleResult> results_;  // allocated first, so freed last
  AlignedBuffer<Real> activations_;
  AlignedBuffer<Real> activation_gradients_;
  Scratch<Real> scratch_;
  BatchSums* batch_sums_ = nullptr;
  const Loss<Real>* loss_;
  std::vector<float> class_weights_;
  std::uint64_t seed_ = 0;
  std::optional<TrainingRows> training_;  // of the last forward()
};

/// Sets Glorot uniform weights, gains of one and zero biases, with the same seed for every layer,
/// as in the DTensor tutorial. Also sets the seed of random layers.
void initialise(Network<float>& network, SeedPair seed);

}  // namespace lockstep::nn
