#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/base/errors.hpp"
#include "lockstep/train/evaluation.hpp"
#include "lockstep/train/nonfinite.hpp"

namespace lockstep::train {

std::optional<double> SetFigures::named(std::string_view name) const {
  if (name == "loss") return loss;
  if (name == "score") return score;
  for (const auto& [metric, figure] : metrics) {
    if (metric == name) return figure;
  }
  return std::nullopt;
}

bool is_less_better(std::string_view figure) { return figure == "loss"; }

void ValueSums::add(double output, double value) noexcept {
  if (count_++ == 0) first_ = value;
  const double error = output - value;
  const double difference = value - first_;
  squared_error_ += error * error;
  differences_ += difference;
  squares_ += difference * difference;
}

double ValueSums::r2() const {
  const double distance = squares_ - differences_ * differences_ / static_cast<double>(count_);
  if (distance > 0) return 1 - squared_error_ / distance;
  return squared_error_ > 0 ? 0 : 1;
}

double ValueSums::rmse() const { return std::sqrt(squared_error_ / static_cast<double>(count_)); }

namespace {

std::optional<double> share(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::optional<double> ClassCounts::recall() const { return share(correct, examples); }

std::optional<double> ClassCounts::precision() const { return share(correct, predicted); }

std::optional<double> ClassCounts::f1() const { return share(2 * correct, examples + predicted); }

Metric top_k(std::size_t k) {
  if (k == 0) throw ConfigError("metric top-0", "use a K of at least 1");
  const auto of_example = [k](std::span<const float> outputs, const nn::Targets& target) {
    const auto label = static_cast<std::size_t>(target.labels[0]);
    std::size_t before = 0;  // outputs that are greater than the label's
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      const bool is_less = j < label ? outputs[j] < outputs[label] : outputs[j] <= outputs[label];
      if (j != label && !is_less) ++before;  // also where one of both is NaN
    }
    return before < k ? 1.0 : 0.0;
  };
  return {.name = "top-" + std::to_string(k),
          .of_example = of_example,
          .targets = {nn::TargetKind::label}};
}

namespace {

/// The area for one class. `is_positive(record)`: has the class.
template <class IsPositive>
double area(const ScoredSet& set, std::size_t output, IsPositive is_positive) {
  const auto score = [&](std::size_t record) { return set.scores[record * set.outputs + output]; };
  std::vector<std::size_t> order(set.records());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return score(a) < score(b); });
  std::uint64_t positives = 0;
  std::uint64_t negatives = 0;
  std::uint64_t halves = 0;  // of pairs in order
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    std::uint64_t equal_positives = 0;
    while (end < order.size() && score(order[end]) == score(order[begin])) {
      if (is_positive(order[end++])) ++equal_positives;
    }
    const std::uint64_t equal_negatives = (end - begin) - equal_positives;
    halves += equal_positives * (2 * negatives + equal_negatives);
    positives += equal_positives;
    negatives += equal_negatives;
  }
  if (positives == 0 || negatives == 0) {
    throw DataError("metric auc: " + std::string(positives == 0 ? "no record" : "every record") +
                        " has label " + std::to_string(output),
                    "give evaluation data in which some records have each label and some do not, "
                    "or leave the metric out");
  }
  return static_cast<double>(halves) / static_cast<double>(2 * positives * negatives);
}

/// NaN if a score is not finite.
double mean_area(const ScoredSet& set) {
  if (!all_finite(set.scores)) return std::numeric_limits<double>::quiet_NaN();
  const bool are_flags = set.labels.empty();
  if (are_flags && set.values.size() != set.scores.size()) {
    throw ConfigError("metric auc: the loss has another number of targets than of outputs",
                      "leave the metric out");
  }
  double sum = 0;
  const std::size_t first = !are_flags && set.outputs == 2 ? 1 : 0;
  for (std::size_t output = first; output < set.outputs; ++output) {
    sum += area(set, output, [&](std::size_t record) {
      if (are_flags) return set.values[record * set.outputs + output] != 0;
      return static_cast<std::size_t>(set.labels[record]) == output;
    });
  }
  return sum / static_cast<double>(set.outputs - first);
}

}  // namespace

Metric area_under_curve() {
  return {.name = "auc",
          .of_set = mean_area,
          .targets = {nn::TargetKind::label, nn::TargetKind::flags}};
}

Metric metric_named(std::string_view name, nn::TargetKind kind, std::size_t outputs) {
  const auto refuse = [&](const std::string& problem, const std::string& remedy) {
    throw ConfigError("metric '" + std::string(name) + "': " + problem, remedy);
  };
  if (name == "auc") {
    if (kind == nn::TargetKind::values) refuse("there are numbers to predict", "leave it out");
    if (kind == nn::TargetKind::label && outputs < 2) refuse("there is one class", "leave it out");
    return area_under_curve();
  }
  constexpr std::string_view top = "top-";
  const auto k = whole_number(name.substr(std::min(top.size(), name.size())));
  if (!k || name != std::string(top) + std::to_string(*k)) {  // nor "top-05"
    refuse("there is none of that name", "use auc or top-K, such as top-5");
  }
  if (kind != nn::TargetKind::label) refuse("there are no classes", "leave it out");
  if (*k == 0 || *k >= outputs) {
    refuse("there are " + std::to_string(outputs) + " classes",
           "use a K of at least 1 and below their number");
  }
  return top_k(*k);
}

}  // namespace lockstep::train
