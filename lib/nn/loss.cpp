#include "lockstep/nn/loss.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <variant>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/numerics/leaf_tree.hpp"

namespace lockstep::nn {
namespace {

constexpr const char* smoothing_mark = ", smoothing ";
constexpr const char* huber_mark = "huber loss of values, delta ";

template <class Real>
Real greatest(std::span<const Real> z) {
  return *std::max_element(z.begin(), z.end());
}

/// sum(exp(z - top)) for the greatest of z: at least 1.
template <class Real>
Real sum_exp(std::span<const Real> z, Real top) {
  Real sum = 0;
  for (const Real value : z) sum += exponential(value - top);
  return sum;
}

}  // namespace

template <class Real>
Real log_sum_exp(std::span<const Real> z) noexcept {
  const Real top = greatest(z);
  return top + logarithm(sum_exp(z, top));
}

template <class Real>
std::size_t predicted_class(std::span<const Real> logits) noexcept {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

template <class Real>
Real greatest_probability(std::span<const Real> logits) noexcept {
  return 1 / sum_exp(logits, greatest(logits));
}

template <class Real>
void probabilities(std::span<const Real> logits, std::span<Real> softmax) noexcept {
  const Real top = greatest(logits);
  const Real sum = sum_exp(logits, top);
  std::transform(logits.begin(), logits.end(), softmax.begin(),
                 [&](Real logit) { return exponential(logit - top) / sum; });
}

template <class Real>
Real sigmoid(Real z) noexcept {
  return sigmoid_from(z, exponential(-magnitude(z)));
}

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

void require_weights(std::span<const float> weights, std::size_t examples, std::size_t first) {
  if (weights.empty()) return;
  if (weights.size() != examples) {
    throw ConfigError(
        std::to_string(weights.size()) + " weights for " + std::to_string(examples) + " examples",
        "give a weight for each example, or none");
  }
  const auto wrong = std::find_if(weights.begin(), weights.end(),
                                  [](float w) { return !(w >= 0 && std::isfinite(w)); });
  if (wrong == weights.end()) return;
  const auto example = first + static_cast<std::size_t>(wrong - weights.begin());
  throw DataError("the weight " + shortest(*wrong) + " of example " + std::to_string(example) +
                      " is not a finite number of at least 0",
                  "give a weight of 0 or more");
}

}  // namespace

template <class Real>
void require_targets(const Targets& targets, const Loss<Real>& loss, std::size_t examples,
                     std::size_t outputs, std::size_t first) {
  require_weights(targets.weights, examples, first);
  const auto called = [&loss] { return "the loss '" + std::string(loss.name()) + "'"; };
  if (loss.target() == TargetKind::label) {
    if (targets.labels.empty() && !targets.values.empty()) {
      throw ConfigError(called() + " takes labels, but the data has values",
                        "use a loss of values (`loss`); one of your own overrides Loss::target()");
    }
    return require_labels(targets.labels, examples, outputs, first);
  }
  if (targets.values.empty() && !targets.labels.empty()) {
    throw ConfigError(called() + " takes values, but the data has labels",
                      "use a loss of labels (`loss`), or data with values to predict");
  }
  const std::size_t width = loss.target_width(outputs);
  if (targets.values.size() != examples * width) {
    throw ConfigError(std::to_string(targets.values.size()) + " target values for " +
                          std::to_string(examples) + " examples",
                      "give " + std::to_string(width) + " for each, which " + called() +
                          " takes, or another loss");
  }
  if (loss.target() != TargetKind::flags) return;
  const auto wrong = std::find_if(targets.values.begin(), targets.values.end(),
                                  [](float flag) { return flag != 0 && flag != 1; });
  if (wrong == targets.values.end()) return;
  const auto at = static_cast<std::size_t>(wrong - targets.values.begin());
  throw DataError("the target " + shortest(*wrong) + " of example " +
                      std::to_string(first + at / width) + " is neither 0 nor 1, as " + called() +
                      " needs",
                  "give 1 for each label that an example has, and else 0");
}

template void require_targets(const Targets&, const Loss<float>&, std::size_t, std::size_t,
                              std::size_t);
template void require_targets(const Targets&, const Loss<double>&, std::size_t, std::size_t,
                              std::size_t);

namespace {

/// The exponential of each value.
void exponentials(std::span<float> values) noexcept { strict_exp(values); }
void exponentials(std::span<double> values) noexcept {
  for (double& value : values) value = exponential(value);
}

/// out = values - less.
template <class Real>
void subtract(std::span<const Real> values, Real less, std::span<Real> out) {
  std::transform(values.begin(), values.end(), out.begin(),
                 [less](Real value) { return value - less; });
}

/// The loss of an example with logits `row`. `normaliser` is log_sum_exp() of the row.
template <class Real>
Real loss_of(const CrossEntropy<Real>& loss, std::span<const Real> row, Real normaliser,
             std::size_t label) {
  assert(label < row.size());
  Real all = 0;
  if (loss.smoothing != 0) {
    for (const Real logit : row) all = all + (normaliser - logit);
  }
  return loss.loss(normaliser - row[label], all, loss.each(row.size()));
}

template <class Real>
void run_formula(const CrossEntropy<Real>& loss, Matrix<const Real> z, const Targets& targets,
                 std::span<ExampleResult> results, Matrix<Real> dz) {
  assert(targets.labels.size() == z.rows && results.size() == z.rows);
  const auto logits = [&](std::size_t i) { return std::span<const Real>(z.row(i)); };
  const auto label = [&](std::size_t i) { return static_cast<std::size_t>(targets.labels[i]); };
  const Real each = loss.each(z.cols);
  const std::size_t at_once = std::max<std::size_t>(1, 2048 / z.cols);  // rows that stay in L1
  std::vector<Real> scratch(dz.rows == 0 ? at_once * z.cols : 0);
  for (std::size_t first = 0; first < z.rows; first += at_once) {
    const std::size_t last = std::min(z.rows, first + at_once);
    const Matrix<Real> out(dz.rows == 0 ? scratch.data() : dz.row(first).data(), last - first,
                           z.cols);
    for (std::size_t i = first; i < last; ++i) {
      subtract(logits(i), greatest(logits(i)), out.row(i - first));
    }
    exponentials(out.flat());
    for (std::size_t i = first; i < last; ++i) {
      const auto row = out.row(i - first);
      const std::size_t predicted = predicted_class(logits(i));
      const Real sum = std::accumulate(row.begin(), row.end(), Real{0});
      const Real normaliser = logits(i)[predicted] + logarithm(sum);  // log_sum_exp()
      results[i] = {static_cast<double>(loss_of(loss, logits(i), normaliser, label(i))),
                    predicted == label(i) ? 1.0 : 0.0};
      if (dz.rows > 0) subtract(logits(i), normaliser, row);
    }
    if (dz.rows == 0) continue;
    exponentials(out.flat());
    for (std::size_t i = first; i < last; ++i) {
      const auto row = dz.row(i);
      for (std::size_t j = 0; j < row.size(); ++j) {
        row[j] = loss.gradient(row[j], j == label(i), each);
      }
    }
  }
}

/// True if all outputs of a row predict its flags.
template <class Real>
bool predicts_flags(std::span<const Real> row, std::span<const float> flags) {
  return std::equal(row.begin(), row.end(), flags.begin(),
                    [](Real z, float flag) { return predicts_label(z) == (flag != 0); });
}

/// The loss that is the mean of term(output, target).
template <class Real, class Function>
void run_formula(TargetKind kind, Function term, Matrix<const Real> z, const Targets& targets,
                 std::span<ExampleResult> results, Matrix<Real> dz) {
  assert(results.size() == z.rows);
  const auto outputs = static_cast<Real>(z.cols);
  for (std::size_t i = 0; i < z.rows; ++i) {
    const auto row = std::span<const Real>(z.row(i));
    const bool has_label = kind == TargetKind::label;
    const auto label = has_label ? static_cast<std::size_t>(targets.labels[i]) : 0;
    const auto values =
        has_label ? std::span<const float>() : targets.values.subspan(i * z.cols, z.cols);
    Real sum = 0;
    for (std::size_t j = 0; j < z.cols; ++j) {
      const Real target = has_label ? Real(j == label ? 1 : 0) : static_cast<Real>(values[j]);
      const Term<Real> one = term(row[j], target);
      sum = sum + one.value;
      if (dz.rows > 0) dz(i, j) = one.derivative / outputs;
    }
    const bool is_correct = has_label                   ? predicted_class(row) == label
                            : kind == TargetKind::flags ? predicts_flags(row, values)
                                                        : false;
    results[i] = {static_cast<double>(sum / outputs), is_correct ? 1.0 : 0.0};
  }
}

}  // namespace

template <class Real>
void softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels,
                           std::span<ExampleResult> results, Matrix<Real> dz) {
  run_formula(CrossEntropy<Real>{}, z, labels, results, dz);
}

template <class Real>
void FormulaLoss<Real>::run(Matrix<const Real> z, const Targets& targets,
                            std::span<ExampleResult> results, Matrix<Real> dz) const {
  std::visit(
      [&](const auto& function) {
        if constexpr (std::is_same_v<decltype(function), const CrossEntropy<Real>&>) {
          run_formula(function, z, targets, results, dz);
        } else {
          run_formula(formula_.target, function, z, targets, results, dz);
        }
      },
      formula_.function);
}

namespace {

/// True if HuberLoss<Real> can have this delta.
template <class Real>
bool is_delta(double delta) {
  const auto rounded = static_cast<Real>(delta);
  return rounded > 0 && std::isfinite(rounded);
}

}  // namespace

std::string huber_loss(double delta) { return huber_mark + shortest(delta); }

template <class Real>
HuberLoss<Real>::HuberLoss(double delta)
    : FormulaLoss<Real>(huber_loss(delta),
                        {TargetKind::values, HuberTerm<Real>{static_cast<Real>(delta)}}) {
  if (is_delta<Real>(delta)) return;
  const std::string type = std::is_same_v<Real, float> ? "float32" : "float64";
  throw ConfigError("`huber_delta=" + shortest(delta) + "`: not a finite " + type + " above 0",
                    "give one, such as 1");
}

std::string smoothed_loss(double smoothing) {
  return std::string(default_loss) + smoothing_mark + shortest(smoothing);
}

template <class Real>
SmoothedCrossEntropy<Real>::SmoothedCrossEntropy(double smoothing)
    : FormulaLoss<Real>(smoothed_loss(smoothing),
                        {TargetKind::label, CrossEntropy<Real>{static_cast<Real>(smoothing)}}) {
  if (smoothing > 0 && smoothing < 1) return;
  throw ConfigError("`label_smoothing=" + shortest(smoothing) + "`: outside (0, 1)",
                    "give more than 0 and less than 1");
}

namespace {

/// The number above 0 and below `end` that `text` is in its shortest form.
std::optional<double> parameter_in(std::string_view text, double end) {
  const auto number = number_in<double>(text);
  const bool fits = number && *number > 0 && *number < end && shortest(*number) == text;
  return fits ? number : std::nullopt;
}

/// The parameter in the name of a SmoothedCrossEntropy.
std::optional<double> smoothing_in(std::string_view name) {
  const std::string before = std::string(default_loss) + smoothing_mark;
  if (!name.starts_with(before)) return std::nullopt;
  return parameter_in(name.substr(before.size()), 1);
}

/// The parameter in the name of a HuberLoss.
std::optional<double> delta_in(std::string_view name) {
  const std::string_view before = huber_mark;
  if (!name.starts_with(before)) return std::nullopt;
  return parameter_in(name.substr(before.size()), std::numeric_limits<double>::infinity());
}

/// The loss with this parameter, made when it is first asked for.
template <class Parametrised>
const Parametrised* loss_with(double parameter) {
  static std::mutex mutex;
  static std::map<double, Parametrised> made;
  const std::scoped_lock lock(mutex);
  return &made.try_emplace(parameter, parameter).first->second;
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
  if (const auto smoothing = smoothing_in(name)) {
    return loss_with<SmoothedCrossEntropy<Real>>(*smoothing);
  }
  const auto delta = delta_in(name);
  if (delta && is_delta<Real>(*delta)) return loss_with<HuberLoss<Real>>(*delta);
  return nullptr;
}

std::optional<LossFormula<float>> formula_of(const Loss<float>& loss) {
  const auto* const built_in = dynamic_cast<const FormulaLoss<float>*>(&loss);
  if (built_in == nullptr) return std::nullopt;
  return built_in->formula();
}

template <class Real>
void require_own_name(const Loss<Real>& loss) {
  if (!is_utf8(loss.name())) {
    throw ConfigError("Loss::name() is not UTF-8: " + in_quotes(loss.name()), "write it in UTF-8");
  }
  const auto* const built_in = built_in_loss<Real>(loss.name());
  if (built_in == nullptr || typeid(*built_in) == typeid(loss)) return;
  throw ConfigError(std::string("a built-in loss is named '") + loss.name() + "', too",
                    "give Loss::name() another name");
}

Tally sum_over_leaves(std::span<const ExampleResult> results, std::size_t leaf) {
  if (results.empty()) return {};
  using Sums = std::array<double, 3>;  // of loss, correct and weight
  constexpr std::size_t slots = tree_slots(std::numeric_limits<std::uint64_t>::max());
  std::array<double, slots * std::tuple_size_v<Sums>> waiting;
  Sums sums;
  const auto sum_leaf = [&](std::uint64_t n, std::span<double> into) {
    const auto first = static_cast<std::size_t>(n) * leaf;
    std::fill(into.begin(), into.end(), 0.0);
    for (const auto& result : results.subspan(first, std::min(leaf, results.size() - first))) {
      into[0] += result.loss;
      into[1] += result.correct;
      into[2] += result.weight;
    }
  };
  const std::size_t leaves = leaves_of(results.size(), leaf);
  sum_tree(leaves, std::span<double>(waiting), std::span<double>(sums), sum_leaf);
  return {sums[0], static_cast<std::uint64_t>(sums[1]), sums[2]};
}

#define LOCKSTEP_INSTANTIATE(Real)                                                       \
  template Real sigmoid(Real) noexcept;                                                  \
  template std::size_t predicted_class(std::span<const Real>) noexcept;                  \
  template Real greatest_probability(std::span<const Real>) noexcept;                    \
  template Real log_sum_exp(std::span<const Real>) noexcept;                             \
  template void probabilities(std::span<const Real>, std::span<Real>) noexcept;          \
  template void softmax_cross_entropy(Matrix<const Real>, std::span<const std::int32_t>, \
                                      std::span<ExampleResult>, Matrix<Real>);           \
  template class FormulaLoss<Real>;                                                      \
  template class SmoothedCrossEntropy<Real>;                                             \
  template class HuberLoss<Real>;                                                        \
  template void require_own_name(const Loss<Real>&);                                     \
  template const Loss<Real>* built_in_loss(std::string_view);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::nn
