#include "lockstep/nn/loss.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <typeinfo>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/numerics/strict_math.hpp"

namespace lockstep::nn {
namespace {

float exponential(float x) { return strict_exp(x); }
float logarithm(float x) { return strict_log(x); }
double exponential(double x) { return std::exp(x); }
double logarithm(double x) { return std::log(x); }

constexpr const char* smoothing_mark = ", smoothing ";
constexpr const char* huber_mark = "huber loss of values, delta ";

/// sum(exp(z - greatest)), at least 1.
template <class Real>
Real sum_exp(std::span<const Real> z, Real greatest) {
  Real sum = 0;
  for (const Real value : z) sum += exponential(value - greatest);
  return sum;
}

/// node(first, size) of the tree over leaves: `size` is a power of two of leaves; the node exists,
/// because leaf `first` does.
ExampleResult tree(std::span<const ExampleResult> results, std::size_t leaf, std::size_t first,
                   std::size_t size) {
  const auto add = [](ExampleResult& sum, const ExampleResult& other) {
    sum.loss += other.loss;
    sum.correct += other.correct;
    sum.weight += other.weight;
  };
  if (size == 1) {
    const std::size_t begin = first * leaf;
    ExampleResult sum = {.weight = 0};
    for (const auto& result : results.subspan(begin, std::min(leaf, results.size() - begin))) {
      add(sum, result);
    }
    return sum;
  }
  ExampleResult left = tree(results, leaf, first, size / 2);
  const std::size_t middle = first + size / 2;
  if (middle * leaf < results.size()) add(left, tree(results, leaf, middle, size / 2));
  return left;
}

}  // namespace

template <class Real>
Real log_sum_exp(std::span<const Real> z) noexcept {
  const Real greatest = *std::max_element(z.begin(), z.end());
  return greatest + logarithm(sum_exp(z, greatest));
}

template <class Real>
std::size_t predicted_class(std::span<const Real> logits) noexcept {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

template <class Real>
Real greatest_probability(std::span<const Real> logits) noexcept {
  return 1 / sum_exp(logits, *std::max_element(logits.begin(), logits.end()));
}

template <class Real>
void probabilities(std::span<const Real> logits, std::span<Real> softmax) noexcept {
  const Real greatest = *std::max_element(logits.begin(), logits.end());
  const Real sum = sum_exp(logits, greatest);
  std::transform(logits.begin(), logits.end(), softmax.begin(),
                 [&](Real logit) { return exponential(logit - greatest) / sum; });
}

template <class Real>
Real sigmoid(Real z) noexcept {
  const Real small = exponential(-std::abs(z));  // at most 1
  return z >= 0 ? 1 / (1 + small) : small / (1 + small);
}

namespace {

/// log(1 + x) for x in [0, 1], without losing the digits of a small x.
/// Source   Kahan, as in Goldberg 1991, "What every computer scientist should know about
/// floating-point arithmetic", theorem 4.
template <class Real>
Real log_of_one_and(Real x) {
  const Real sum = 1 + x;
  return sum == 1 ? x : x * logarithm(sum) / (sum - 1);
}

}  // namespace

void require_labels(std::span<const std::int32_t> labels, std::size_t examples, std::size_t classes,
                    std::size_t first) {
  if (labels.size() != examples) {
    throw ConfigError(
        std::to_string(labels.size()) + " labels for " + std::to_string(examples) + " examples",
        "give a label for each example, or a loss of values (`loss`)");
  }
  const auto wrong = std::find_if(labels.begin(), labels.end(), [&](std::int32_t label) {
    return label < 0 || static_cast<std::size_t>(label) >= classes;
  });
  if (wrong == labels.end()) return;
  const auto example = first + static_cast<std::size_t>(wrong - labels.begin());
  throw DataError("label " + std::to_string(*wrong) + " of example " + std::to_string(example) +
                      " is not in [0, " + std::to_string(classes) + ")",
                  "give labels from 0 to " + std::to_string(classes - 1));
}

namespace {

void require_weights(std::span<const float> weights, std::size_t examples) {
  if (weights.empty()) return;
  if (weights.size() != examples) {
    throw ConfigError(
        std::to_string(weights.size()) + " weights for " + std::to_string(examples) + " examples",
        "give a weight for each example, or none");
  }
  const auto wrong = std::find_if(weights.begin(), weights.end(),
                                  [](float w) { return !(w >= 0 && std::isfinite(w)); });
  if (wrong == weights.end()) return;
  throw DataError("the weight " + shortest(*wrong) + " of example " +
                      std::to_string(wrong - weights.begin()) +
                      " is no finite number of at least 0",
                  "give a weight of 0 or more");
}

}  // namespace

template <class Real>
void require_targets(const Targets& targets, const Loss<Real>& loss, std::size_t examples,
                     std::size_t outputs, std::size_t first) {
  require_weights(targets.weights, examples);
  if (loss.target() == TargetKind::label) {
    return require_labels(targets.labels, examples, outputs, first);
  }
  const std::size_t width = loss.target_width(outputs);
  if (targets.values.size() != examples * width) {
    throw ConfigError(std::to_string(targets.values.size()) + " target values for " +
                          std::to_string(examples) + " examples",
                      "give " + std::to_string(width) + " for each, which the loss '" +
                          loss.name() + "' takes, or another loss");
  }
  if (loss.target() != TargetKind::flags) return;
  const auto wrong = std::find_if(targets.values.begin(), targets.values.end(),
                                  [](float flag) { return flag != 0 && flag != 1; });
  if (wrong == targets.values.end()) return;
  const auto at = static_cast<std::size_t>(wrong - targets.values.begin());
  throw DataError("the target " + shortest(*wrong) + " of example " +
                      std::to_string(first + at / width) + " is neither 0 nor 1, as the loss '" +
                      loss.name() + "' needs",
                  "give 1 for each label that an example has, and else 0");
}

template void require_targets(const Targets&, const Loss<float>&, std::size_t, std::size_t,
                              std::size_t);
template void require_targets(const Targets&, const Loss<double>&, std::size_t, std::size_t,
                              std::size_t);

template <class Real>
void softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels,
                           std::span<ExampleResult> results, Matrix<Real> dz) {
  assert(labels.size() == z.rows && results.size() == z.rows);
  for (std::size_t i = 0; i < z.rows; ++i) {
    const auto row = std::span<const Real>(z.row(i));
    const auto label = static_cast<std::size_t>(labels[i]);
    assert(label < row.size());
    const Real normaliser = log_sum_exp(row);
    results[i] = {static_cast<double>(normaliser - row[label]),
                  predicted_class(row) == label ? 1.0 : 0.0};
    if (dz.rows == 0) continue;
    const auto out = dz.row(i);
    for (std::size_t j = 0; j < out.size(); ++j) out[j] = exponential(row[j] - normaliser);
    out[label] -= 1;
  }
}

namespace {

/// A function of the distance of an output from its target, and its derivative.
template <class Real>
struct Term {
  Real value;
  Real derivative;
};

template <class Real>
Term<Real> square(Real distance) {
  return {distance * distance, 2 * distance};
}

/// The mean of term(distance) of row `i` from target(j), and its gradient.
template <class Real, class Target, class Function>
Real mean_term(Matrix<const Real> z, std::size_t i, Target target, Matrix<Real> dz, Function term) {
  const auto outputs = static_cast<Real>(z.cols);
  Real sum = 0;
  for (std::size_t j = 0; j < z.cols; ++j) {
    const Term<Real> one = term(z(i, j) - target(j));
    sum = sum + one.value;
    if (dz.rows > 0) dz(i, j) = one.derivative / outputs;
  }
  return sum / outputs;
}

/// The results of a loss of values that is the mean of term(distance).
template <class Real, class Function>
void run_on_values(Matrix<const Real> z, std::span<const float> values,
                   std::span<ExampleResult> results, Matrix<Real> dz, Function term) {
  assert(values.size() == z.rows * z.cols && results.size() == z.rows);
  for (std::size_t i = 0; i < z.rows; ++i) {
    const auto value = [&](std::size_t j) { return static_cast<Real>(values[i * z.cols + j]); };
    results[i] = {static_cast<double>(mean_term(z, i, value, dz, term)), 0.0};
  }
}

}  // namespace

template <class Real>
void MeanSquaredError<Real>::run(Matrix<const Real> z, const Targets& targets,
                                 std::span<ExampleResult> results, Matrix<Real> dz) const {
  assert(targets.labels.size() == z.rows && results.size() == z.rows);
  for (std::size_t i = 0; i < z.rows; ++i) {
    const auto label = static_cast<std::size_t>(targets.labels[i]);
    const auto one_hot = [&](std::size_t j) { return j == label ? Real{1} : Real{0}; };
    results[i] = {static_cast<double>(mean_term(z, i, one_hot, dz, square<Real>)),
                  predicted_class<Real>(z.row(i)) == label ? 1.0 : 0.0};
  }
}

template <class Real>
void RegressionLoss<Real>::run(Matrix<const Real> z, const Targets& targets,
                               std::span<ExampleResult> results, Matrix<Real> dz) const {
  run_on_values(z, targets.values, results, dz, square<Real>);
}

template <class Real>
void AbsoluteError<Real>::run(Matrix<const Real> z, const Targets& targets,
                              std::span<ExampleResult> results, Matrix<Real> dz) const {
  run_on_values(z, targets.values, results, dz, [](Real distance) {
    const auto sign = static_cast<Real>((distance > 0 ? 1 : 0) - (distance < 0 ? 1 : 0));
    return Term<Real>{std::abs(distance), sign};
  });
}

template <class Real>
void BinaryCrossEntropy<Real>::run(Matrix<const Real> z, const Targets& targets,
                                   std::span<ExampleResult> results, Matrix<Real> dz) const {
  assert(targets.values.size() == z.rows * z.cols && results.size() == z.rows);
  const auto outputs = static_cast<Real>(z.cols);
  for (std::size_t i = 0; i < z.rows; ++i) {
    Real sum = 0;
    bool is_correct = true;
    for (std::size_t j = 0; j < z.cols; ++j) {
      const Real logit = z(i, j);
      const auto flag = static_cast<Real>(targets.values[i * z.cols + j]);
      const Real rest = log_of_one_and(exponential(-std::abs(logit)));
      sum = sum + ((std::max(logit, Real{0}) - logit * flag) + rest);
      is_correct = is_correct && predicts_label(logit) == (flag != 0);
      if (dz.rows > 0) dz(i, j) = (sigmoid(logit) - flag) / outputs;
    }
    results[i] = {static_cast<double>(sum / outputs), is_correct ? 1.0 : 0.0};
  }
}

std::string huber_loss(double delta) { return huber_mark + shortest(delta); }

template <class Real>
HuberLoss<Real>::HuberLoss(double delta)
    : name_(huber_loss(delta)), delta_(static_cast<Real>(delta)) {
  if (delta > 0 && std::isfinite(delta)) return;
  throw ConfigError("`huber_delta=" + shortest(delta) + "`: not above 0", "give more than 0");
}

template <class Real>
void HuberLoss<Real>::run(Matrix<const Real> z, const Targets& targets,
                          std::span<ExampleResult> results, Matrix<Real> dz) const {
  run_on_values(z, targets.values, results, dz, [delta = delta_](Real distance) {
    const Real size = std::abs(distance);
    if (size <= delta) return Term<Real>{distance * distance / 2, distance};
    return Term<Real>{delta * (size - delta / 2), distance > 0 ? delta : -delta};
  });
}

std::string smoothed_loss(double smoothing) {
  return std::string(default_loss) + smoothing_mark + shortest(smoothing);
}

template <class Real>
SmoothedCrossEntropy<Real>::SmoothedCrossEntropy(double smoothing)
    : name_(smoothed_loss(smoothing)), smoothing_(static_cast<Real>(smoothing)) {
  if (smoothing > 0 && smoothing < 1) return;
  throw ConfigError("`label_smoothing=" + shortest(smoothing) + "`: outside (0, 1)",
                    "give more than 0 and less than 1");
}

template <class Real>
void SmoothedCrossEntropy<Real>::run(Matrix<const Real> z, const Targets& targets,
                                     std::span<ExampleResult> results, Matrix<Real> dz) const {
  assert(targets.labels.size() == z.rows && results.size() == z.rows);
  const Real each = smoothing_ / static_cast<Real>(z.cols);
  for (std::size_t i = 0; i < z.rows; ++i) {
    const auto row = std::span<const Real>(z.row(i));
    const auto label = static_cast<std::size_t>(targets.labels[i]);
    const Real normaliser = log_sum_exp(row);
    Real all = 0;
    for (const Real logit : row) all = all + (normaliser - logit);
    const Real own = normaliser - row[label];
    results[i] = {static_cast<double>((1 - smoothing_) * own + each * all),
                  predicted_class(row) == label ? 1.0 : 0.0};
    if (dz.rows == 0) continue;
    const auto out = dz.row(i);
    for (std::size_t j = 0; j < out.size(); ++j) {
      out[j] = exponential(row[j] - normaliser) - each;
    }
    out[label] -= 1 - smoothing_;
  }
}

namespace {

/// The loss with this parameter, made when it is first asked for; null if `text` is no number above
/// 0 and below `end` in its shortest form.
template <class Parametrised>
const Parametrised* loss_with(std::string_view text, double end) {
  static std::mutex mutex;
  static std::map<double, Parametrised> made;
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && stop == text.data() + text.size();
  if (!is_number || !(number > 0 && number < end) || shortest(number) != text) return nullptr;
  const std::scoped_lock lock(mutex);
  return &made.try_emplace(number, number).first->second;
}

}  // namespace

template <class Real>
const Loss<Real>* built_in_loss(std::string_view name) {
  static const SoftmaxCrossEntropy<Real> cross_entropy;
  static const MeanSquaredError<Real> squares;
  static const RegressionLoss<Real> regression;
  static const AbsoluteError<Real> distances;
  static const BinaryCrossEntropy<Real> binary;
  for (const Loss<Real>* loss : std::initializer_list<const Loss<Real>*>{
           &cross_entropy, &squares, &regression, &distances, &binary}) {
    if (name == loss->name()) return loss;
  }
  const std::string smoothed = std::string(default_loss) + smoothing_mark;
  if (name.starts_with(smoothed)) {
    return loss_with<SmoothedCrossEntropy<Real>>(name.substr(smoothed.size()), 1);
  }
  const std::string_view huber = huber_mark;
  if (!name.starts_with(huber)) return nullptr;
  return loss_with<HuberLoss<Real>>(name.substr(huber.size()),
                                    std::numeric_limits<double>::infinity());
}

template <class Real>
void require_own_name(const Loss<Real>& loss) {
  const auto* const built_in = built_in_loss<Real>(loss.name());
  if (built_in == nullptr || typeid(*built_in) == typeid(loss)) return;
  throw ConfigError(std::string("a built-in loss is named '") + loss.name() + "', too",
                    "give Loss::name() another name");
}

Tally sum_over_leaves(std::span<const ExampleResult> results, std::size_t leaf) {
  if (results.empty()) return {};
  const std::size_t leaves = (results.size() + leaf - 1) / leaf;
  const ExampleResult sums = tree(results, leaf, 0, std::bit_ceil(leaves));
  return {sums.loss, static_cast<std::uint64_t>(sums.correct), sums.weight};
}

#define LOCKSTEP_INSTANTIATE(Real)                                                       \
  template Real sigmoid(Real) noexcept;                                                  \
  template std::size_t predicted_class(std::span<const Real>) noexcept;                  \
  template Real greatest_probability(std::span<const Real>) noexcept;                    \
  template Real log_sum_exp(std::span<const Real>) noexcept;                             \
  template void probabilities(std::span<const Real>, std::span<Real>) noexcept;          \
  template void softmax_cross_entropy(Matrix<const Real>, std::span<const std::int32_t>, \
                                      std::span<ExampleResult>, Matrix<Real>);           \
  template class SmoothedCrossEntropy<Real>;                                             \
  template class MeanSquaredError<Real>;                                                 \
  template class RegressionLoss<Real>;                                                   \
  template class AbsoluteError<Real>;                                                    \
  template class BinaryCrossEntropy<Real>;                                               \
  template class HuberLoss<Real>;                                                        \
  template void require_own_name(const Loss<Real>&);                                     \
  template const Loss<Real>* built_in_loss(std::string_view);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::nn
