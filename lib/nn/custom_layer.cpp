#include "lockstep/nn/custom_layer.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/nn/network.hpp"

namespace lockstep::nn {

void require_names(const CustomSizes& sizes) {
  for (std::size_t i = 0; i < sizes.weights.size(); ++i) {
    const std::string& name = sizes.weights[i].name;
    const std::string number = std::to_string(i + 1);
    const char* const remedy = "give each of CustomSizes::weights a name of its own";
    if (name.empty()) throw ConfigError("its weights " + number + " have no name", remedy);
    if (!is_utf8(name)) {
      throw ConfigError("the name of its weights " + number + " is not UTF-8", remedy);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (sizes.weights[j].name != name) continue;
      throw ConfigError("its weights " + std::to_string(j + 1) + " and " + number +
                            " are both named '" + name + "'",
                        remedy);
    }
  }
}

namespace {

constexpr std::size_t leaf = 4;
constexpr std::size_t max_checked = 60;  // weights per tensor
constexpr double step = 1e-6;
constexpr float deviation = 0.5F;  // standard deviation of the weights

/// The smallest vocabulary of the network's embeddings, which may take the same inputs; 0: it has
/// none.
std::size_t vocabulary_of(const NetworkShape& shape) {
  std::size_t smallest = 0;
  for (const LayerSpec& layer : shape.layers) {
    const auto* embedding = std::get_if<Embedding>(&layer.function);
    if (embedding == nullptr) continue;
    if (smallest == 0 || embedding->vocabulary < smallest) smallest = embedding->vocabulary;
  }
  return smallest;
}

/// A network with random weights, rows and targets.
class Problem {
 public:
  Problem(const NetworkShape& shape, const Loss<double>& loss, std::size_t rows, std::uint32_t seed)
      : products_(make_library_products<double>()),
        network_(shape, rows, *products_),
        batch_(rows, leaf),
        all_{0, rows} {
    network_.set_loss(loss);
    network_.set_batch_sums(&batch_);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::size_t vocabulary = vocabulary_of(shape);
    for (double& x : network_.inputs(all_).flat()) {
      x = vocabulary > 0 ? static_cast<double>(random() % vocabulary)
                         : static_cast<double>(normal(random));
    }
    for (std::size_t i = 0; i < rows; ++i) {
      labels_.push_back(static_cast<std::int32_t>(random() % shape.classes));
    }
    if (loss.target() != TargetKind::label) {
      const bool are_flags = loss.target() == TargetKind::flags;
      labels_.clear();
      values_.resize(rows * loss.target_width(shape.classes));
      for (float& value : values_) {
        value = are_flags ? static_cast<float>(random() % 2) : normal(random);
      }
    }
    auto& block = network_.parameters();
    for (std::size_t t = 0; t < block.tensors().size(); ++t) {
      std::vector<double> weights(block.tensors()[t].size());
      for (double& w : weights) w = static_cast<double>(deviation * normal(random));
      if (block.tensors()[t].name.ends_with(".variance")) {
        for (double& w : weights) w = std::abs(w);
      }
      block.set_logical_value(t, weights);
    }
  }

  std::vector<double> gradients() {
    run(true);
    network_.backward(all_);
    auto& block = network_.parameters();
    network_.weight_gradients(all_, leaf, {0, block.values().size()});
    return {block.gradients().begin(), block.gradients().end()};
  }

  /// The difference quotient with respect to the weight at an index of the block.
  double difference(std::size_t at) {
    double& weight = network_.parameters().values()[at];
    const double kept = weight;
    weight = kept + step;
    const double above = run(false);
    weight = kept - step;
    const double below = run(false);
    weight = kept;
    return (above - below) / (2 * step);
  }

  const std::vector<ParameterSpec>& tensors() { return network_.parameters().tensors(); }

 private:
  double run(bool training) {
    network_.forward(all_, TrainingRows{5, 1000});  // any step: the same for all evaluations
    network_.loss(all_, {labels_, values_}, training);
    return sum_over_leaves(network_.results(all_), leaf).loss_sum;
  }

  std::unique_ptr<Products<double>> products_;
  Network<double> network_;
  WholeBatch batch_;
  Range all_;
  std::vector<std::int32_t> labels_;
  std::vector<float> values_;  // instead of labels, if the loss takes values
};

/// About max_checked elements of a tensor and, where few gradients are not zero, as many of those:
/// a batch uses few rows of an embedding.
std::set<std::size_t> checked_elements(std::span<const double> gradients) {
  std::vector<std::size_t> all(gradients.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::size_t> used;
  std::ranges::copy_if(all, std::back_inserter(used),
                       [&](std::size_t i) { return gradients[i] != 0; });
  if (used.size() > all.size() / 2) used.clear();
  std::set<std::size_t> checked;
  for (const auto* from : {&all, &used}) {
    const std::size_t stride = std::max<std::size_t>(1, from->size() / max_checked);
    for (std::size_t n = 0; n < from->size(); n += stride) checked.insert((*from)[n]);
  }
  return checked;
}

}  // namespace

GradientCheck check_gradients(const NetworkShape& shape, const Loss<double>& loss, std::size_t rows,
                              std::uint32_t seed) {
  if (rows == 0) throw ConfigError("check_gradients: 0 rows", "give at least 1");
  Problem problem(shape, loss, rows, seed);
  const auto gradients = problem.gradients();
  GradientCheck check;
  bool all_zero = true;
  for (const ParameterSpec& tensor : problem.tensors()) {
    if (tensor.frozen) continue;
    for (const std::size_t i :
         checked_elements(std::span(gradients).subspan(tensor.offset, tensor.size()))) {
      const double gradient = gradients[tensor.offset + i];
      all_zero = all_zero && gradient == 0;
      const double difference = problem.difference(tensor.offset + i);
      const double error = std::abs(difference - gradient) / std::max(1.0, std::abs(gradient));
      if (std::isnan(check.worst)) continue;  // nothing is worse
      if (!(error <= check.worst)) check = {error, tensor.name + "[" + std::to_string(i) + "]"};
    }
  }
  constexpr double rounding = 1e-6;
  if (all_zero && check.worst < rounding) {
    throw ConfigError("check_gradients: all gradients of the loss '" + std::string(loss.name()) +
                          "' are zero, so nothing was checked",
                      "pass the loss you train with, and a network with weights that are trained");
  }
  return check;
}

}  // namespace lockstep::nn
