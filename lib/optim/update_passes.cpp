#include "lockstep/optim/update_passes.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace lockstep::optim {
namespace {

using Squared = UpdateKernels::Squared;
using Squares = UpdateKernels::Squares;

bool has_tensor_norms(OptimizerKind kind) {
  return kind == OptimizerKind::lars || kind == OptimizerKind::lamb;
}

/// The factors of the update that `state` was advanced to, at learning rate `rate`, over examples
/// of weight `weight` (above 0) in all: computed in double, rounded once.
PassFactors factors_of(const OptimizerOptions& options, double rate, const OptimizerScalars& state,
                       double weight) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  return {.inverse_weight = static_cast<float>(1 / weight),
          .beta1 = static_cast<float>(options.beta1),
          .rest1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .rest2 = static_cast<float>(1 - options.beta2),
          .corrected_rate = static_cast<float>(rate / (1 - state.beta1_power)),
          .inverse_correction1 = static_cast<float>(1 / (1 - state.beta1_power)),
          .inverse_correction2 = static_cast<float>(1 / (1 - state.beta2_power)),
          .epsilon = static_cast<float>(options.epsilon),
          .rate = static_cast<float>(rate),
          .momentum = static_cast<float>(options.momentum),
          .decay = static_cast<float>(options.weight_decay),
          .kept = static_cast<float>(1 - rate * options.weight_decay),
          .clip_scale = 1,
          .clip_value = options.clip_value ? static_cast<float>(*options.clip_value) : infinity,
          .scale = 0,
          .nesterov = options.nesterov,
          .clips = options.clip_value.has_value()};
}

/// The factors for a vector, which does not decay.
PassFactors without_decay(PassFactors factors) {
  factors.decay = 0;
  factors.kept = 1;
  return factors;
}

Pass pass_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd: return Pass::sgd;
    case OptimizerKind::adam: return Pass::adam;
    case OptimizerKind::adamw: return Pass::adamw;
    case OptimizerKind::lars: return Pass::lars;
    case OptimizerKind::lamb: return Pass::lamb_weights;
  }
  return Pass::sgd;
}

/// The sums of squares that ranks add up: `count` of each tensor.
class SharedSquares {
 public:
  SharedSquares(std::size_t tensors, std::size_t count)
      : count_(count), words_(tensors * count * ExactSquares::words) {}

  /// Adds this rank's sum.
  void add(std::size_t tensor, std::size_t index, const ExactSquares::Words& squares) {
    const auto to = at(tensor, index);
    std::transform(squares.begin(), squares.end(), to.begin(), to.begin(), std::plus<>());
  }

  /// `cut`: the number of tensors that are cut, which are the first. Collective.
  void add_up(const RankSums& sums, std::size_t cut) {
    if (sums.over_batch) sums.over_batch(words_);
    const auto first = std::span(words_).first(cut * count_ * ExactSquares::words);
    if (sums.over_model && !first.empty()) sums.over_model(first);
  }

  std::span<std::uint64_t, ExactSquares::words> at(std::size_t tensor, std::size_t index) {
    const std::size_t first = (tensor * count_ + index) * ExactSquares::words;
    return std::span(words_).subspan(first).first<ExactSquares::words>();
  }

  double norm(std::size_t tensor, std::size_t index) {
    return std::sqrt(ExactSquares::value(at(tensor, index)));
  }

 private:
  std::size_t count_;
  std::vector<std::uint64_t> words_;
};

/// The rate of a tensor with these norms, of its weights and of its gradient or direction.
double scaled_rate(const OptimizerOptions& options, double rate, double weights, double step) {
  if (weights == 0 || step == 0) return rate;
  if (options.kind == OptimizerKind::lamb) return rate * (weights / step);
  return rate * (options.trust * weights / (step + options.weight_decay * weights));
}

/// The norm of the mean gradient of all weights. Collective.
double norm_of_gradients(UpdateKernels& kernels, const std::vector<UpdatedTensor>& tensors,
                         const PassFactors& factors, const RankSums& sums) {
  std::vector<Squares> asked(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) asked[i].range = tensors[i].range;
  const auto squares = kernels.squares(asked, factors);
  SharedSquares shared(2, 1);  // of tensors that are cut, and of the others
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    shared.add(tensors[i].cut ? 0 : 1, 0, squares[i]);
  }
  shared.add_up(sums, 1);
  ExactSquares::Words cut{};
  std::copy_n(shared.at(0, 0).begin(), cut.size(), cut.begin());
  shared.add(1, 0, cut);
  return shared.norm(1, 0);
}

/// The rate of lars or lamb for each tensor: for vectors `rate`. Those that are cut come first.
/// Collective.
std::vector<double> tensor_rates(UpdateKernels& kernels, const OptimizerOptions& options,
                                 double rate, const std::vector<UpdatedTensor>& tensors,
                                 const PassFactors& factors, const RankSums& sums) {
  const Squared step =
      options.kind == OptimizerKind::lamb ? Squared::directions : Squared::gradients;
  std::vector<Squares> asked;
  for (const auto& tensor : tensors) {
    if (tensor.vector) continue;
    asked.push_back({Squared::weights, tensor.range});
    asked.push_back({step, tensor.range});
  }
  const auto squares = kernels.squares(asked, factors);
  SharedSquares norms(tensors.size(), 2);
  std::size_t next = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].vector) continue;
    norms.add(i, 0, squares[next++]);
    norms.add(i, 1, squares[next++]);
  }
  const auto is_cut = [](const UpdatedTensor& tensor) { return tensor.cut; };
  norms.add_up(sums,
               static_cast<std::size_t>(std::count_if(tensors.begin(), tensors.end(), is_cut)));
  std::vector<double> rates(tensors.size(), rate);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].vector) continue;
    rates[i] = scaled_rate(options, rate, norms.norm(i, 0), norms.norm(i, 1));
  }
  return rates;
}

}  // namespace

UpdatePasses::UpdatePasses(const OptimizerOptions& options,
                           const std::vector<UpdatedTensor>& tensors)
    : options_(options), tensors_(tensors) {
  require_valid(options);
  const bool has_frozen =
      std::erase_if(tensors_, [](const UpdatedTensor& tensor) { return tensor.frozen; }) > 0;
  is_uniform_ = options.weight_decay == 0 && !has_frozen && !has_tensor_norms(options.kind);
  std::stable_partition(tensors_.begin(), tensors_.end(),
                        [](const UpdatedTensor& tensor) { return tensor.cut; });
}

/// Begins an update; returns the factors of all weights.
PassFactors UpdatePasses::advance(double weight, std::uint64_t step) {
  state_.advance(options_);
  rate_ = options_.learning_rate * options_.schedule.factor(step);
  return factors_of(options_, rate_, state_, weight);
}

std::span<const RangePass> UpdatePasses::passes(std::size_t weights) {
  passes_.clear();
  const Pass pass = pass_of(options_.kind);
  if (is_uniform_) passes_.push_back({pass, {0, weights}, {}});
  for (std::size_t i = 0; !is_uniform_ && i < tensors_.size(); ++i) {
    passes_.push_back({pass, tensors_[i].range, {}});
  }
  return passes_;
}

std::span<const RangePass> UpdatePasses::begin(std::size_t weights, double weight,
                                               std::uint64_t step) {
  const PassFactors factors = advance(weight, step);
  passes(weights);
  set_factors(factors, {});
  return passes_;
}

/// Sets the factors of passes_. `rates`: of lars and lamb for each tensor; else empty.
void UpdatePasses::set_factors(const PassFactors& factors, std::span<const double> rates) {
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    const bool decays = is_uniform_ || !tensors_[i].vector;
    passes_[i].factors = decays ? factors : without_decay(factors);
    if (!rates.empty()) passes_[i].factors.scale = static_cast<float>(rates[i]);
  }
}

bool UpdatePasses::update(UpdateKernels& kernels, std::size_t weights, double weight,
                          std::uint64_t step, const RankSums& sums) {
  PassFactors factors = advance(weight, step);
  if (options_.clip_norm) {
    gradient_norm_ = norm_of_gradients(kernels, tensors_, factors, sums);
    if (!std::isfinite(*gradient_norm_)) return false;
    if (*gradient_norm_ > *options_.clip_norm) {
      factors.clips = true;
      factors.clip_scale = static_cast<float>(*options_.clip_norm / *gradient_norm_);
    }
  }
  bool finite = true;
  if (options_.kind == OptimizerKind::lamb) {
    finite = kernels.run({Pass::lamb_moments, {0, weights}, factors});
  }
  std::vector<double> rates;
  if (has_tensor_norms(options_.kind)) {
    rates = tensor_rates(kernels, options_, rate_, tensors_, factors, sums);
    if (!std::ranges::all_of(rates, [](double each) { return std::isfinite(each); })) return false;
  }
  passes(weights);
  set_factors(factors, rates);
  for (const RangePass& pass : passes_) finite = kernels.run(pass) && finite;
  return finite;
}

}  // namespace lockstep::optim
