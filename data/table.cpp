#include "lockstep/data/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
const char* name_of(Missing missing) noexcept {
  constexpr std::array<const char*, 3> names{"error", "mean", "zero"};
  return names[static_cast<std::size_t>(missing)];
}

std::optional<Missing> missing_named(std::string_view name) noexcept {
  for (const Missing missing : {Missing::error, Missing::mean, Missing::zero}) {
    if (name == name_of(missing)) return missing;
  }
  return std::nullopt;
}

const char* name_of(Task task) noexcept {
  constexpr std::array<const char*, 3> names{"classification", "regression", "multi-label"};
  return names[static_cast<std::size_t>(task)];
}

std::optional<Task> task_named(std::string_view name) noexcept {
  for (const Task task : {Task::classification, Task::regression, Task::multi_label}) {
    if (name == name_of(task)) return task;
  }
  return std::nullopt;
}

std::vector<std::string> TableSchema::label_names() const {
  if (targets.empty()) return {label};
  std::vector<std::string> names(targets.size());
  std::transform(targets.begin(), targets.end(), names.begin(),
                 [](const TableColumn& target) { return target.name; });
  return names;
}

std::vector<std::string> TableSchema::class_names() const {
  if (is_regression()) return {};
  return is_multi_label() ? label_names() : classes;
}

std::size_t TableSchema::features() const noexcept {
  std::size_t features = 0;
  for (const TableColumn& column : columns) features += column.features();
  return features;
}

std::vector<std::string> TableSchema::feature_names() const {
  std::vector<std::string> names;
  for (const TableColumn& column : columns) {
    if (column.categories.empty()) names.push_back(column.name);
    for (const std::string& category : column.categories) {
      names.push_back(column.name + "=" + category);
    }
  }
  return names;
}

float feature_of(const TableSchema& schema, const TableColumn& column, double number) noexcept {
  if (std::isnan(number)) number = schema.missing == Missing::mean ? column.mean : 0;
  if (schema.standardized) number = (number - column.mean) / column.deviation;
  return static_cast<float>(number);
}

std::vector<float> features_of(const TableSchema& schema, std::span<const std::string> texts) {
  if (texts.size() != schema.columns.size()) {
    std::vector<std::string> names;
    names.reserve(schema.columns.size());
    for (const TableColumn& column : schema.columns) names.push_back(column.name);
    throw DataError(counted(texts.size(), "value") + " for " + counted(names.size(), "column"),
                    "give one for each of " + listed(names));
  }
  std::vector<float> features;
  features.reserve(schema.features());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const TableColumn& column = schema.columns[i];
    const std::string_view text = without_blanks(texts[i]);
    const auto refuse = [&](const std::string& problem) {
      throw DataError("column " + in_quotes(column.name) + ": " + in_quotes(text) + problem,
                      "give a value as in the table that the network was trained on");
    };
    const bool refuses_missing = schema.missing == Missing::error;
    if (column.categories.empty()) {
      const auto number = parse_float(text);
      if (!number && !is_missing(text)) refuse(" is not a finite number (in float32)");
      if (!number && refuses_missing) refuse(": a missing value");
      features.push_back(
          feature_of(schema, column, number ? *number : std::numeric_limits<double>::quiet_NaN()));
      continue;
    }
    const auto word = std::find(column.categories.begin(), column.categories.end(), text);
    if (word == column.categories.end() && refuses_missing) {
      refuse(is_missing(text) ? ": a missing value" : " is not a category of the training set");
    }
    for (auto other = column.categories.begin(); other != column.categories.end(); ++other) {
      features.push_back(other == word ? 1.0F : 0.0F);
    }
  }
  return features;
}

std::uint64_t hash_of(const TableSchema& schema) {
  Hash hash;
  const auto add = [&](double number) { hash.add_bytes(std::as_bytes(std::span(&number, 1))); };
  for (const auto* columns : {&schema.columns, &schema.targets}) {
    for (const TableColumn& column : *columns) {
      hash.add(column.name);
      hash.add(column.categories.size());
      for (const std::string& category : column.categories) hash.add(category);
      add(column.mean);
      add(column.deviation);
    }
  }
  hash.add(schema.label);
  if (schema.is_multi_label()) hash.add(name_of(schema.task));
  if (!schema.weight.empty()) hash.add("weights " + schema.weight);
  for (const std::string& name : schema.classes) hash.add(name);
  hash.add(schema.standardized ? 1U : 0U);
  hash.add(name_of(schema.missing));
  return hash.value();
}

std::string class_text(std::string_view text) {
  const auto number = parse_integral(text);
  return number ? std::to_string(*number) : std::string(without_blanks(text));
}

std::string_view without_blanks(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_missing(std::string_view text) noexcept {
  constexpr std::array<std::string_view, 13> missing{"",
                                                     "NA",
                                                     "N/A",
                                                     "n/a",
                                                     "<NA>",
                                                     "#N/A",
                                                     "NaN",
                                                     "nan",
                                                     "-nan",
                                                     "NUL"
                                                     "L",
                                                     "null",
                                                     "None",
                                                     "?"};
  text = without_blanks(text);
  return std::find(missing.begin(), missing.end(), text) != missing.end();
}

namespace {

/// A sum in double with the error of each addition added in the end.
/// Source   Neumaier 1974, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher
/// Summen".
class Sum {
 public:
  void add(double value) noexcept {
    const double sum = sum_ + value;
    error_ += std::abs(sum_) >= std::abs(value) ? (sum_ - sum) + value : (value - sum) + sum_;
    sum_ = sum;
  }
  double value() const noexcept { return sum_ + error_; }

 private:
  double sum_ = 0;
  double error_ = 0;
};

/// Of one column of numbers.
class Moments {
 public:
  void add(double value) noexcept {
    if (std::isnan(value)) return;
    if (count_++ == 0) first_ = value;
    const double difference = value - first_;
    sum_.add(difference);
    squares_.add(difference * difference);
    greatest_ = std::max(greatest_, std::abs(value));
  }

  /// Sets mean and deviation; false if all values are equal.
  bool set(TableColumn& column) const {
    if (count_ == 0) return false;
    const auto count = static_cast<double>(count_);
    const double mean = sum_.value() / count;
    const double variance = squares_.value() / count - mean * mean;
    column.mean = first_ + mean;
    column.deviation = variance > 0 ? std::sqrt(variance) : 1;
    return variance > 0;
  }

  double greatest() const noexcept { return greatest_; }  ///< absolute value

 private:
  std::uint64_t count_ = 0;
  double first_ = 0;
  double greatest_ = 0;
  Sum sum_;  // of differences from the first value
  Sum squares_;
};

}  // namespace

void add_moments(TableSchema& schema, Source& source, std::optional<bool> standardize) {
  constexpr std::uint64_t block = 256;
  const std::size_t features = source.features();
  std::vector<std::size_t> numbers;  // the feature of each column of numbers
  std::size_t feature = 0;
  for (const TableColumn& column : schema.columns) {
    if (column.categories.empty()) numbers.push_back(feature);
    feature += column.features();
  }
  std::vector<Moments> all(numbers.size());
  std::vector<Moments> of_targets(schema.targets.size());
  std::vector<std::uint64_t> ids;
  std::vector<float> x;
  std::vector<float> values(schema.targets.size());
  std::vector<std::int32_t> labels;
  for (std::uint64_t begin = 0; begin < source.records(); begin += ids.size()) {
    ids.clear();
    const std::uint64_t end = std::min(begin + block, source.records());
    for (std::uint64_t id = begin; id < end; ++id) ids.push_back(id);
    x.resize(ids.size() * features);
    labels.resize(ids.size());
    source.read(ids, x, labels);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      if (source.weight(ids[row]) == 0) continue;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        all[i].add(static_cast<double>(x[row * features + numbers[i]]));
      }
      source.target_values(ids[row], values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        of_targets[i].add(static_cast<double>(values[i]));
      }
    }
  }

  double least = std::numeric_limits<double>::infinity();
  double greatest = 0;
  std::size_t i = 0;
  for (TableColumn& column : schema.columns) {
    if (!column.categories.empty()) continue;
    const Moments& moments = all[i++];
    if (!moments.set(column)) continue;
    least = std::min(least, moments.greatest());
    greatest = std::max(greatest, moments.greatest());
  }
  for (i = 0; schema.is_regression() && i < of_targets.size(); ++i) {
    of_targets[i].set(schema.targets[i]);
  }
  const bool is_of_one_scale = greatest <= 2 * least && greatest <= 10 && least >= 0.1;
  schema.standardized = standardize.value_or(!is_of_one_scale);
  schema.has_moments = true;
}

void require_weight(const Source& source) {
  if (!source.has_weights()) return;
  for (std::uint64_t id = 0; id < source.records(); ++id) {
    if (source.weight(id) > 0) return;
  }
  throw DataError(source.place_of(0) + " and all others of this set (" +
                      counted(source.records(), "record") + "): column " +
                      in_quotes(source.table()->weight) + ": the weights sum to zero",
                  "give at least one record a weight above 0");
}

}  // namespace lockstep::data
