#include "lockstep/nn/network.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <stdexcept>
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/nn/loss_formula.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep::nn {
namespace {

/// The layer's tensors must equal the shape's: memory, messages and checkpoints depend on the
/// shape.
template <class Real>
void require_weights(const std::string& layer, double weights_said,
                     const std::vector<ParameterSpec>& tensors, const Products<Real>& products) {
  std::size_t weights = 0;
  for (const ParameterSpec& tensor : tensors) {
    weights += tensor.whole_size();
    const auto named = [&](const ParameterSpec& other) { return other.name == tensor.name; };
    if (std::count_if(tensors.begin(), tensors.end(), named) > 1) {
      throw std::invalid_argument(layer + ": two tensors are named " + tensor.name);
    }
    const std::size_t stored = tensor.vector ? products.bias_size(tensor.size())
                                             : products.weight_size(tensor.rows, tensor.cols);
    if (tensor.stored == stored) continue;
    throw std::invalid_argument(layer + ": tensor " + tensor.name + " is stored in " +
                                std::to_string(tensor.stored) + " elements, but " +
                                (tensor.vector ? "bias_size" : "weight_size") +
                                "() of the products is " + std::to_string(stored));
  }
  const auto said = static_cast<std::size_t>(weights_said);
  if (weights == said) return;
  throw std::invalid_argument(layer + ": its tensors hold " + std::to_string(weights) +
                              " weights, but LayerKind::weights() is " + std::to_string(said));
}

}  // namespace

template <class Real>
std::vector<ParameterSpec> Network<Real>::place(const NetworkShape& shape,
                                                std::vector<NumberedLayer<Real>> layers,
                                                const Products<Real>& products,
                                                std::vector<Placed>& placed) {
  std::vector<ParameterSpec> tensors;
  const auto sizes = shape.sizes();
  for (auto& [number, layer] : layers) {
    const std::size_t first = tensors.size();
    auto own = layer->tensors(std::to_string(number), products);
    require_weights(shape.layer_text(number), sizes[number].weights, own, products);
    const bool frozen = shape.layers[number].frozen;
    for (auto& tensor : own) {
      tensor.frozen = frozen;
      tensors.push_back(std::move(tensor));
    }
    const std::size_t count = tensors.size() - first;
    placed.push_back({std::move(layer), number, first, count > 0 && !frozen, count});
  }
  return tensors;
}

template <class Real>
Network<Real>::Network(const NetworkShape& shape, std::size_t rows, Products<Real>& products,
                       std::size_t slices, std::pmr::memory_resource& memory,
                       std::vector<NumberedLayer<Real>> layers)
    : shape_(shape),
      rows_(rows),
      products_(products),
      block_(place(shape, layers.empty() ? make_layers<Real>(shape) : std::move(layers), products,
                   layers_),
             products, slices, memory),
      results_(rows, memory),
      loss_(built_in_loss<Real>(default_loss)) {
  connect();
  std::size_t end = 0;
  const auto place_matrix = [&](std::size_t width) {
    widths_.push_back(width);
    starts_.push_back(end);
    end += round_up(rows * width, alignment_bytes / sizeof(Real));  // each begins a cache line
  };
  place_matrix(shape.features);
  for (const Placed& placed : layers_) place_matrix(placed.layer->outputs());
  activations_ = AlignedBuffer<Real>(end, memory);
  activation_gradients_ = AlignedBuffer<Real>(layers_.empty() ? 0 : end - starts_[1], memory);
}

/// Sets the inputs of layers: from indices of the shape's layers to those of layers_, which have no
/// flatten.
template <class Real>
void Network<Real>::connect() {
  const auto sizes = shape_.sizes();
  std::vector<std::size_t> values(sizes.size() + 1);  // of each of the shape's
  std::vector<bool> is_exchanged(layers_.size() + 1);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Placed& placed = layers_[i];
    values[placed.number + 1] = i + 1;
    for (const std::size_t from : sizes[placed.number].from) {
      placed.inputs.push_back({values[from]});
    }
    const std::size_t value = placed.inputs[0].value;
    placed.exchanges_input = (i == 0 || placed.trained) && !is_exchanged[value];
    if (placed.exchanges_input) is_exchanged[value] = true;
  }
  const auto trained = std::find_if(layers_.begin(), layers_.end(),
                                    [](const Placed& placed) { return placed.trained; });
  first_trained_ = static_cast<std::size_t>(trained - layers_.begin());
  std::vector<Input*> latest(layers_.size() + 1);  // use of each value, in the backward pass
  for (std::size_t i = layers_.size(); i-- > 0;) {
    for (Input& input : layers_[i].inputs) {
      Input*& before = latest[input.value];
      input.first = before == nullptr;
      if (before != nullptr) before->last = false;
      before = &input;
    }
  }
}

template <class Real>
ParameterLayout<Real> Network<Real>::layout_of(const NetworkShape& shape,
                                               const Products<Real>& products) {
  std::vector<Placed> layers;
  return {place(shape, make_layers<Real>(shape), products, layers), products, 1};
}

template <class Real>
Pass<Real> Network<Real>::pass(std::size_t layer, Range rows, std::size_t input) {
  const Placed& placed = layers_[layer];
  std::optional<Draws> draws;
  if (training_) {
    draws = Draws{seed_, training_->step, placed.number, training_->first + rows.begin};
  }
  const bool sums = training_ && !shape_.layers[placed.number].frozen;
  return {products_, block_, placed.tensor, scratch_, draws, sums ? batch_sums_ : nullptr, input};
}

template <class Real>
Matrix<const Real> Network<Real>::forward(Range rows, std::optional<TrainingRows> training) {
  assert(rows.begin + rows.size() <= rows_);
  if (training && batch_sums_ == nullptr && sums_over_batch()) {
    throw std::logic_error("a layer sums over the batch: Network::set_batch_sums() first");
  }
  training_ = training;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& inputs = layers_[i].inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      layers_[i].layer->forward(pass(i, rows, k), activation(inputs[k].value, rows),
                                activation(i + 1, rows));
    }
  }
  return activation(layers_.size(), rows);
}

template <class Real>
bool Network<Real>::sums_over_batch() const noexcept {
  return std::any_of(layers_.begin(), layers_.end(), [&](const Placed& placed) {
    return placed.layer->sums_over_batch() && !shape_.layers[placed.number].frozen;
  });
}

template <class Real>
void Network<Real>::loss(Range rows, const Targets& targets, bool training) {
  require_targets(targets, *loss_, rows.size(), shape_.classes);
  const Matrix<const Real> logits = activation(layers_.size(), rows);
  const Matrix<Real> dz = training ? gradient(layers_.size() - 1, rows) : Matrix<Real>();
  std::ranges::fill(results(rows), ExampleResult{});  // a custom loss need not set the weight
  loss_->run(logits, targets, results(rows), dz);
  if (!training || !is_weighted(targets)) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float weight = training_weight(targets, i);
    ExampleResult& result = results(rows)[i];
    result.weight = static_cast<double>(weight);
    result.loss = weighted(result.loss, result.weight);
    for (Real& value : dz.row(i)) value = weighted(value, static_cast<Real>(weight));
  }
}

template <class Real>
void Network<Real>::set_loss(const Loss<Real>& loss) {
  require_own_name(loss);
  if (!class_weights_.empty() && loss.target() != TargetKind::label) {
    throw ConfigError(
        std::string("`class_weights` with the loss ") + loss.name() + ", which takes no labels",
        "leave them out, or use a loss of classes");
  }
  loss_ = &loss;
}

template <class Real>
void Network<Real>::set_class_weights(std::span<const float> weights) {
  if (!weights.empty() &&
      (weights.size() != shape_.classes || loss_->target() != TargetKind::label)) {
    throw ConfigError("`class_weights`: " + std::to_string(weights.size()) + " for a network of " +
                          std::to_string(shape_.classes) + " outputs and the loss " + loss_->name(),
                      "give one for each class, with a loss of classes");
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 0 && std::isfinite(weights[i])) continue;
    throw ConfigError(
        "`class_weights`: that of class " + std::to_string(i) + " is " + shortest(weights[i]),
        "give finite numbers of at least 0");
  }
  class_weights_.assign(weights.begin(), weights.end());
}

template <class Real>
void Network<Real>::backward(Range rows) {
  for (std::size_t i = layers_.size(); i-- > 1;) {
    for (std::size_t k = 0; k < layers_[i].inputs.size(); ++k) backward_input(i, k, rows);
  }
}

/// Adds the contribution of a layer to the gradient by one of its inputs.
template <class Real>
void Network<Real>::backward_input(std::size_t layer, std::size_t number, Range rows) {
  const Input& input = layers_[layer].inputs[number];
  if (input.value <= first_trained_) return;
  const Matrix<const Real> x = activation(input.value, rows);
  const Matrix<Real> sum = gradient(input.value - 1, rows);
  const Activation below = layers_[input.value - 1].layer->activation();
  const auto compute = [&](Activation derivative, Matrix<Real> dx) {
    layers_[layer].layer->backward_input(pass(layer, rows, number), gradient(layer, rows), x,
                                         derivative, dx);
  };
  if (input.first && input.last) return compute(below, sum);
  if (input.first) return compute(Activation::identity, sum);
  const auto memory = scratch_.get(Scratch<Real>::contribution, sum.rows * sum.cols);
  const Matrix<Real> dx = {memory.data(), sum.rows, sum.cols};
  compute(Activation::identity, dx);
  share(sum.rows, 1, 2 * sum.cols, [&](Range part, std::size_t) {
    const Matrix<Real> to = sum.slice(part);
    const auto from = dx.slice(part).flat();
    for (std::size_t i = 0; i < from.size(); ++i) to.data[i] = to.data[i] + from[i];
    if (input.last) apply_relu_gradient(below, x.slice(part), to);
  });
}

template <class Real>
void Network<Real>::end_training_pass() {
  for (const Placed& placed : layers_) {
    if (placed.trained) placed.layer->end_training_pass(block_, placed.tensor);
  }
}

template <class Real>
void Network<Real>::weight_gradients(Range rows, std::size_t leaf, Range slice,
                                     std::span<Real> gradients) {
  const auto& tensors = block_.tensors();
  const GradientSlice<Real> out{tensors, slice, gradients};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].tensors == 0) continue;
    const ParameterSpec& last = tensors[layers_[i].tensor + layers_[i].tensors - 1];
    if (slice.end <= tensors[layers_[i].tensor].offset) continue;
    if (slice.begin >= last.offset + last.stored) continue;
    if (!layers_[i].trained) {
      for (std::size_t k = 0; k < layers_[i].tensors; ++k) out.clear(layers_[i].tensor + k);
      continue;
    }
    layers_[i].layer->weight_gradients(pass(i, rows), activation(layers_[i].inputs[0].value, rows),
                                       gradient(i, rows), leaf, out);
  }
}

void initialise(Network<float>& network, SeedPair seed) {
  auto& block = network.parameters();
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    const ParameterSpec& tensor = block.tensors()[i];
    std::vector<float> weights(tensor.whole_size(), tensor.start.value);
    if (tensor.start.fan_in > 0) {
      glorot_uniform(seed, tensor.start.fan_in, tensor.start.fan_out, weights);
    }
    block.set_from_whole(i, weights);
  }
  network.set_seed(seed.first);
}

template class Network<float>;
template class Network<double>;

}  // namespace lockstep::nn
