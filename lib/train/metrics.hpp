// Figures of evaluations beside loss and accuracy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/nn/loss.hpp"

namespace lockstep::train {

/// Sums over the examples of one value of a regression, in the order of the records.
class ValueSums {
 public:
  void add(double output, double value) noexcept;

  /// The coefficient of determination: 1 - squared error / squared distance from the mean. If all
  /// values are equal it is 1 if there is no error, else 0.
  double r2() const;

  /// The root of the mean squared error, in the units of the values that the network learned.
  double rmse() const;

 private:
  std::uint64_t count_ = 0;
  double first_ = 0;
  double squared_error_ = 0;
  double differences_ = 0;  ///< of the values from the first
  double squares_ = 0;
};

/// Examples of one class or label, and examples that were predicted to be of it.
struct ClassCounts {
  std::uint64_t examples = 0;
  std::uint64_t predicted = 0;
  std::uint64_t correct = 0;  ///< predicted to be of the class, and of it

  /// The share of the class's examples that were found; none without examples.
  std::optional<double> recall() const;

  /// The share of the predictions of the class that are right; none without predictions.
  std::optional<double> precision() const;

  /// The harmonic mean of precision and recall; none without examples and predictions.
  std::optional<double> f1() const;
};

/// Outputs and targets of a whole data set, in the order of the evaluation: 0, 1, 2, ...
struct ScoredSet {
  std::size_t outputs = 0;
  /// [records, outputs]: probabilities of classes or labels, as predict() gives them; of a
  /// regression the values that the network learned.
  std::vector<float> scores = {};
  std::vector<std::int32_t> labels = {};  ///< [records], of classes
  std::vector<float> values = {};  ///< [records, Loss::target_width()], of labels and numbers

  std::size_t records() const noexcept { return outputs == 0 ? 0 : scores.size() / outputs; }
};

/// A std::function. For a function that does not take Arguments the compiler's error is a sentence.
template <class... Arguments>
class Figure : public std::function<double(Arguments...)> {
 public:
  Figure() = default;
  template <class Function>
  requires(!std::is_base_of_v<Figure, Function>) Figure(Function figure)  // NOLINT: converts
      : std::function<double(Arguments...)>(checked(std::move(figure))) {}

 private:
  template <class Function>
  static std::function<double(Arguments...)> checked(Function figure) {
    constexpr bool fits = std::is_invocable_r_v<double, Function&, Arguments...>;
    static_assert(
        fits,
        "a metric's function returns a double, and takes (std::span<const float> outputs, "
        "const nn::Targets& target) for each example, or (const train::ScoredSet&)");
    if constexpr (fits) return figure;
    return {};
  }
};

/// A metric: one of both functions is set. Local; a function of its arguments alone.
struct Metric {
  std::string name;
  /// A figure for each example, of which evaluation gives the mean. `outputs`: logits or values,
  /// [outputs]. `target`: one label, or Loss::target_width() values.
  Figure<std::span<const float>, const nn::Targets&> of_example = {};
  /// A figure of the whole set, which every rank holds: 4 bytes for each record and output.
  Figure<const ScoredSet&> of_set = {};
};

/// Names and figures of metrics.
using NamedFigures = std::vector<std::pair<std::string, double>>;

/// The share of the examples whose label is among the `k` greatest outputs; of equal ones the first
/// are greater. Name: "top-5".
Metric top_k(std::size_t k);

/// The area under the receiver operating characteristic curve: the share of the pairs of a record
/// with a label and one without it whose probabilities are in that order, equal ones counted half.
/// Of two classes that of the second; of several classes (each against all others) or labels their
/// mean. Pairs are counted, so the figure does not depend on thresholds; it is rounded twice for
/// each class. Name: "auc".
///
/// Errors   of_set throws DataError if a class has no record, or all of them.
/// Source   Fawcett 2006, "An introduction to ROC analysis"; Hand and Till 2001 for the mean over
///          classes, as scikit-learn's roc_auc_score(multi_class="ovr") has it.
Metric area_under_curve();

/// The metric of that name: "top-K" or "auc", for targets of `kind` and a network of `outputs`.
/// Throws ConfigError if there is none, or if it does not fit. Local.
Metric metric_named(std::string_view name, nn::TargetKind kind, std::size_t outputs);

}  // namespace lockstep::train
