// Tables: what the columns of delimited text mean as features and labels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::data {
struct OpeningRanks;  // source.hpp

/// What a feature that is not given is read as; a missing category is zeros, unless it is an error.
enum class Missing : std::uint8_t {
  error,  ///< a DataError
  mean,   ///< the column's mean in the training set
  zero,
};

/// "error", "mean", "zero", and the inverse; empty for any other name.
const char* name_of(Missing missing) noexcept;
std::optional<Missing> missing_named(std::string_view name) noexcept;

/// What is predicted.
enum class Task : std::uint8_t {
  classification,  ///< one of several classes
  regression,      ///< numbers
  multi_label,     ///< of each label whether the example has it
};

/// "classification", "regression", "multi-label", and the inverse; empty for any other name.
const char* name_of(Task task) noexcept;
std::optional<Task> task_named(std::string_view name) noexcept;

/// How a table is read. What is not given is found in the training set.
struct TableOptions {
  char separator = '\0';  ///< ',', ';' or a tab; NUL: the one that is most frequent in line 1
  bool has_header = true;
  std::optional<Task> task = {};
  /// The columns to predict, one for a classification: names, or numbers: 1 for the first, -1 for
  /// the last.
  std::vector<std::string> label_columns = {"label"};
  /// The name of a column of weights of the records in losses; empty: each is 1.
  std::string weight_column = {};
  std::vector<std::string> ignored = {};  ///< names of columns to leave out
  std::vector<std::string> categories =
      {};  ///< names of columns of which numbers are categories, too
  Missing missing = Missing::mean;
  std::optional<bool> standardize = {};  ///< nullopt: unless all columns are of one scale near 1
};

/// A column of features.
struct TableColumn {
  std::string name;
  /// Of a column of words: all words, in the order of their bytes, a feature each, which is 1 where
  /// the field has this word and else 0. Of a column of numbers: empty, and one feature.
  std::vector<std::string> categories = {};
  double mean = 0;       ///< of a column of numbers: of the training set; 0 if not computed
  double deviation = 1;  ///< of its population; 1 if it is 0, or if not computed

  std::size_t features() const noexcept { return categories.empty() ? 1 : categories.size(); }
  bool operator==(const TableColumn&) const = default;
};

/// The columns of a table as features and classes, or targets; saved with a network that was
/// trained on it.
struct TableSchema {
  Task task = Task::classification;
  std::vector<TableColumn> columns;       ///< in the order of the features
  std::string label = {};                 ///< of classification: the name of the column of labels
  std::vector<std::string> classes = {};  ///< of classification: the text of each label
  /// Of a regression: the columns of numbers to predict, which are standardized. Of several labels:
  /// their columns of 1 and 0.
  std::vector<TableColumn> targets = {};
  std::string weight = {};  ///< the name of the column of weights; empty: there is none
  /// Columns that were left out, and why.
  std::vector<std::pair<std::string, std::string>> left_out = {};
  bool has_header = true;    ///< false: columns are named "1", "2", ...
  bool has_moments = false;  ///< means and deviations are computed
  /// A number is read as (value - mean) / deviation, in double.
  bool standardized = false;
  Missing missing = Missing::mean;

  std::size_t features() const noexcept;
  bool is_regression() const noexcept { return task == Task::regression; }
  bool is_multi_label() const noexcept { return task == Task::multi_label; }

  /// The names of all columns that are read: of features, labels and weights.
  std::vector<std::string> used_columns() const;

  /// The names of the columns to predict.
  std::vector<std::string> label_names() const;

  /// The names of classes or labels; of a regression: none.
  std::vector<std::string> class_names() const;

  /// Names of the features: that of the column, or "COLUMN=CATEGORY".
  std::vector<std::string> feature_names() const;

  bool operator==(const TableSchema&) const = default;
};

/// A hash of the columns, targets and classes, and of what is done to their numbers; of the task
/// only where the targets do not tell it.
std::uint64_t hash_of(const TableSchema& schema);

/// True for the usual texts of a missing value: empty, NA, N/A, NaN, null, None, ?, and such.
bool is_missing(std::string_view text) noexcept;

/// Finds kinds, categories and classes of the columns in the files of a training set. Means and
/// deviations are not computed: see add_moments().
///
/// A column of words has one category for each; it is left out if there are more than 100, or if
/// one is longer than 1,000 bytes, and so is a column without a name: a row number. If the task is
/// not given, it is several labels if there are several columns to predict that have 0 and 1 alone;
/// else regression if there are several, or labels with a fraction, or more than 20 different whole
/// numbers that are written as floats (7.0). Else labels are whole numbers or words. `classes`:
/// labels are whole numbers in [0, classes); nullopt: what is found, in order of their numbers or
/// bytes.
///
/// Errors   throws DataError with file, line and column: no column of labels (similar names are in
///          the message), a column of numbers and words, a first line that looks like a record, two
///          columns of one name that is used, and those of reading. ConfigError: an option names no
///          column, or does not fit the task.
/// Ranks    local; collective over `ranks`, unless that is null: see OpeningRanks (source.hpp).
TableSchema find_schema(std::span<const std::string> paths, const TableOptions& options,
                        std::optional<int> classes, const OpeningRanks* ranks = nullptr);

/// The column of labels in one table, and the classes, as find_schema() finds them; other columns
/// may have any kind, and are not in the result.
///
/// Errors   throws as find_schema(), and DataError for numbers to predict.
/// Ranks    local.
TableSchema find_classes(const std::string& path, const TableOptions& options);

/// The text in TableSchema::classes of a label that is written as `text`; where all labels are
/// whole numbers, "7" of " 7.0".
std::string class_text(std::string_view text, bool are_whole);

/// True if all classes are whole numbers.
bool are_whole(std::span<const std::string> classes) noexcept;

/// The feature of a number in `column`, one of schema.columns: standardized with
/// schema.standardized; NaN: missing. Local.
float feature_of(const TableSchema& schema, const TableColumn& column, double number) noexcept;

/// The features of a record, as a network that was trained on the table takes them (for example
/// train::Replica::predict): one text for each of schema.columns, in their order. `divide_by`: the
/// divisor of the training set's numbers.
///
///   const auto& table = *saved.info.table;  // of a train::SavedNetwork
///   const std::vector<std::string> texts = {"5.1", "red"};
///   const auto features = data::features_of(table, saved.info.divide_by, texts);
///
/// Returns  [schema.features()].
/// Errors   throws DataError with the column: another number of texts; a text that is not a number
///          in a column of numbers; with Missing::error, a missing value or an unknown category.
/// Ranks    local.
std::vector<float> features_of(const TableSchema& schema, float divide_by,
                               std::span<const std::string> texts);

class Source;

/// Columns whose numbers are all below this are not refused for what float32 rounds away: that is
/// noise, rather than information beside an offset.
inline constexpr double least_offset = 1 << 24;  // up to which whole numbers are exact

/// Sets mean and deviation of columns of numbers and targets from the records of `source`, but for
/// those of weight 0. It must have this schema without moments: missing numbers are NaN. Decides on
/// `schema.standardized`: `standardize`, or if the largest absolute values of two columns differ by
/// more than a factor of two, or one of them is above 10 or below 0.1. A column of equal numbers up
/// to 10 is not compared.
///
/// Sums are in double with compensation, in the order of the records, so the same on any number of
/// ranks. Reads the records once, each rank its part of them; and each sums some columns of all.
///
/// Errors   throws DataError for a column with numbers of at least least_offset and a deviation
///          below 16 steps of float32 at the greatest, and for a target of equal numbers that
///          float32 may have rounded.
/// Ranks    local; collective over `ranks`, unless that is null: see OpeningRanks (source.hpp).
void add_moments(TableSchema& schema, Source& source, std::optional<bool> standardize,
                 const OpeningRanks* ranks = nullptr);

/// Throws DataError if records have weights, and all of them are 0. Local.
void require_weight(const Source& source);

}  // namespace lockstep::data
