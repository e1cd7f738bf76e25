#include "lockstep/data/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/packing.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/opening.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
namespace {

constexpr std::array missing_names = {"error", "mean", "zero"};
constexpr std::array task_names = {"classification", "regression", "multi-label"};

}  // namespace

const char* name_of(Missing missing) noexcept {
  return missing_names[static_cast<std::size_t>(missing)];
}

std::optional<Missing> missing_named(std::string_view name) noexcept {
  return named<Missing>(missing_names, name);
}

const char* name_of(Task task) noexcept { return task_names[static_cast<std::size_t>(task)]; }

std::optional<Task> task_named(std::string_view name) noexcept {
  return named<Task>(task_names, name);
}

std::vector<std::string> TableSchema::used_columns() const {
  std::vector<std::string> names = label_names();
  if (!weight.empty()) names.push_back(weight);
  for (const TableColumn& column : columns) names.push_back(column.name);
  return names;
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

std::vector<float> features_of(const TableSchema& schema, float divide_by,
                               std::span<const std::string> texts) {
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
    const std::string_view text = trimmed(texts[i]);
    const auto refuse = [&](const std::string& problem) {
      throw DataError("column " + in_quotes(column.name) + ": " + in_quotes(text) + problem,
                      "give a value as in the table that the network was trained on");
    };
    const bool refuses_missing = schema.missing == Missing::error;
    if (column.categories.empty()) {
      const auto number = parse_float(text);
      if (!number && !is_missing(text)) refuse(" is not a finite number (in float32)");
      if (!number && refuses_missing) refuse(": a missing value");
      features.push_back(feature_of(
          schema, column, number ? *number / divide_by : std::numeric_limits<double>::quiet_NaN()));
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

bool are_whole(std::span<const std::string> classes) noexcept {
  return std::all_of(classes.begin(), classes.end(), parse_whole);
}

std::string class_text(std::string_view text, bool are_whole) {
  const auto number = are_whole ? parse_integral(text) : std::nullopt;
  return number ? std::to_string(*number) : std::string(trimmed(text));
}

bool is_missing(std::string_view text) noexcept {
  constexpr std::array<std::string_view, 20> missing{
      // pandas' words, and "?"
      "",     "NA",   "N/A",     "n/a",      "<NA>",   "#NA",     "#N/A", "#N/A N/A", "NaN",  "nan",
      "-NaN", "-nan", "1.#QNAN", "-1.#QNAN", "1.#IND", "-1.#IND", "NULL", "null",     "None", "?"};
  text = trimmed(text);
  return contains(missing, text);
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

  /// The distance of the numbers of float32 at `greatest`.
  double step() const noexcept { return std::ldexp(1, std::ilogb(greatest_) - 23); }

 private:
  std::uint64_t count_ = 0;
  double first_ = 0;
  double greatest_ = 0;
  Sum sum_;  // of differences from the first value
  Sum squares_;
};

/// The numbers and targets of records, in the order of their columns.
class Numbers {
 public:
  Numbers(const TableSchema& schema, Source& source) : source_(source) {
    std::size_t feature = 0;
    for (const TableColumn& column : schema.columns) {
      if (column.categories.empty()) features_.push_back(feature);
      feature += column.features();
    }
    values_.resize(schema.targets.size());
  }

  std::size_t columns() const noexcept { return features_.size() + values_.size(); }

  /// Those of the records [begin, end), of which the ones of weight 0 are left out.
  /// Returns  the bytes of [records, columns()], valid until the next call.
  std::string_view read(std::uint64_t begin, std::uint64_t end) {
    ids_.clear();
    numbers_.clear();
    if (begin >= end) return {};
    for (std::uint64_t id = begin; id < end; ++id) ids_.push_back(id);
    x_.resize(ids_.size() * source_.features());
    labels_.resize(ids_.size());
    source_.read(ids_, x_, labels_);
    for (std::size_t row = 0; row < ids_.size(); ++row) {
      if (source_.weight(ids_[row]) == 0) continue;
      const float* const x = x_.data() + row * source_.features();
      for (const std::size_t feature : features_) numbers_.push_back(x[feature]);
      source_.target_values(ids_[row], values_);
      numbers_.insert(numbers_.end(), values_.begin(), values_.end());
    }
    return {reinterpret_cast<const char*>(numbers_.data()), numbers_.size() * sizeof(float)};
  }

 private:
  Source& source_;
  std::vector<std::size_t> features_;  // of each column of numbers
  std::vector<std::uint64_t> ids_;
  std::vector<float> x_;
  std::vector<std::int32_t> labels_;
  std::vector<float> values_;
  std::vector<float> numbers_;
};

/// Adds the columns [first, first + moments.size()) of `numbers`, the bytes of [records, columns].
void add(std::string_view numbers, std::size_t columns, std::size_t first, Missing missing,
         std::span<Moments> moments) {
  if (moments.empty()) return;
  const std::size_t row_bytes = columns * sizeof(float);
  std::vector<float> row(moments.size());
  for (std::size_t at = 0; at < numbers.size(); at += row_bytes) {
    std::memcpy(row.data(), numbers.data() + at + first * sizeof(float),
                row.size() * sizeof(float));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool is_zero = missing == Missing::zero && std::isnan(row[i]);
      moments[i].add(is_zero ? 0 : static_cast<double>(row[i]));
    }
  }
}

/// The moments of all columns. Local.
std::vector<Moments> moments_of(const TableSchema& schema, Source& source) {
  constexpr std::uint64_t block = 256;
  Numbers numbers(schema, source);
  std::vector<Moments> moments(numbers.columns());
  for (std::uint64_t begin = 0; begin < source.records(); begin += block) {
    add(numbers.read(begin, std::min(begin + block, source.records())), moments.size(), 0,
        schema.missing, moments);
  }
  return moments;
}

/// The same: each rank reads its part of the records, and sums its part of the columns over all
/// records, in their order. Nullopt, on all ranks: each is to sum all. Collective.
std::optional<std::vector<Moments>> shared_moments_of(const TableSchema& schema, Source& source,
                                                      const OpeningRanks* ranks) {
  if (ranks == nullptr || ranks->ranks == 1) return std::nullopt;
  const auto all = static_cast<std::size_t>(ranks->ranks);
  const auto me = static_cast<std::size_t>(ranks->rank);
  Packer task;  // ranks on other hosts may have other files
  for (const std::uint64_t number :
       {hash_of(schema), source.records(), std::uint64_t{source.features()}}) {
    task.add(number);
  }
  const std::string mine = task.take();
  const auto tasks = ranks->gather(mine);
  if (!tasks || std::any_of(tasks->begin(), tasks->end(),
                            [&](std::string_view other) { return other != mine; })) {
    return std::nullopt;
  }
  Numbers numbers(schema, source);
  const std::size_t columns = numbers.columns();
  if (source.records() * columns * sizeof(float) < ranks->least_bytes) return std::nullopt;
  constexpr std::uint64_t most_floats = std::uint64_t{1} << 16;  // of a rank at once
  const std::uint64_t width = std::max<std::uint64_t>(columns, source.features());
  const std::uint64_t block = std::max<std::uint64_t>(1, most_floats / width);
  const std::size_t first = columns * me / all;
  std::vector<Moments> moments(columns * (me + 1) / all - first);
  for (std::uint64_t begin = 0; begin < source.records(); begin += all * block) {
    const std::uint64_t at = std::min(begin + me * block, source.records());
    const auto blocks = ranks->gather(numbers.read(at, std::min(at + block, source.records())));
    if (!blocks) return std::nullopt;
    for (const std::string_view one : *blocks) add(one, columns, first, schema.missing, moments);
  }
  Packer summed;
  summed.add(std::span<const Moments>(moments));
  const auto sums = ranks->gather(summed.take());
  if (!sums) return std::nullopt;
  moments.clear();
  for (const std::string_view one : *sums) Unpacker(one).append_to(moments);
  return moments;
}

/// Throws DataError for a column whose numbers float32 cannot tell apart well beside their offset.
/// Equal numbers of a target may have been rounded to one.
void require_spread(const Source& source, const TableColumn& column, const Moments& moments,
                    bool differ, bool is_target) {
  constexpr double least_steps = 16;
  if (moments.greatest() < least_offset) return;
  const bool is_rounded = differ ? column.deviation < least_steps * moments.step() : is_target;
  if (!is_rounded) return;
  throw DataError(source.place_of(0) + " and all others of this set: column " +
                      in_quotes(column.name) + ": its numbers, up to " +
                      shortest(moments.greatest()) +
                      ", differ by too little for the 24 bits of float32",
                  "subtract an offset from them" +
                      std::string(is_target ? "" : ", or leave the column out: `ignore_columns`"));
}

}  // namespace

void add_moments(TableSchema& schema, Source& source, std::optional<bool> standardize,
                 const OpeningRanks* ranks) {
  auto shared = shared_moments_of(schema, source, ranks);
  const std::vector<Moments> all = shared ? std::move(*shared) : moments_of(schema, source);
  constexpr double most_as_is = 10;
  double least = std::numeric_limits<double>::infinity();
  double greatest = 0;
  std::size_t i = 0;
  for (TableColumn& column : schema.columns) {
    if (!column.categories.empty()) continue;
    const Moments& moments = all[i++];
    const bool differ = moments.set(column);
    require_spread(source, column, moments, differ, false);
    if (!differ && moments.greatest() <= most_as_is) continue;
    least = std::min(least, moments.greatest());
    greatest = std::max(greatest, moments.greatest());
  }
  if (schema.is_regression()) {
    for (TableColumn& target : schema.targets) {
      const Moments& moments = all[i++];
      require_spread(source, target, moments, moments.set(target), true);
    }
  }
  const bool is_of_one_scale = greatest <= 2 * least && greatest <= most_as_is && least >= 0.1;
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
