#include "lockstep/data/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <unordered_set>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
namespace {

/// A column of more words is left out, unless it is named in TableOptions::categories.
constexpr std::size_t max_categories = 100;
constexpr std::size_t max_named_categories = 10'000;
constexpr std::size_t max_word = 1000;
constexpr std::size_t max_saved_values = 900'000;  // of a checkpoint's network.json

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

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

std::uint64_t hash_of(const TableSchema& schema) {
  Hash hash;
  const auto add = [&](double number) { hash.add_bytes(std::as_bytes(std::span(&number, 1))); };
  for (const TableColumn& column : schema.columns) {
    hash.add(column.name);
    hash.add(column.categories.size());
    for (const std::string& category : column.categories) hash.add(category);
    add(column.mean);
    add(column.deviation);
  }
  hash.add(schema.label);
  for (const std::string& name : schema.classes) hash.add(name);
  hash.add(schema.standardized ? 1U : 0U);
  hash.add(name_of(schema.missing));
  return hash.value();
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

/// What is found in a column, in all files.
struct Found {
  std::uint64_t numbers = 0;
  std::uint64_t words = 0;
  bool has_long_word = false;
  std::set<std::string, std::less<>> texts;  // at most as many as may be categories, and one
  std::string place;                         // of the first word
  std::string first_word;
};

/// The labels that are found, in all files.
struct FoundLabels {
  std::unordered_set<std::string> texts;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t greatest = std::numeric_limits<std::int64_t>::min();
  std::string place_of_greatest;
  bool are_whole = true;
  bool are_numbers = true;
  std::string fraction;  // the first that is a number, but not a whole one
  std::string place_of_fraction;
};

/// A name that may be meant by `wanted`.
std::string likely_label(const std::vector<std::string>& names, const std::string& wanted) {
  const auto lower = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  };
  for (const std::string& name : names) {
    if (lower(name) == lower(wanted)) return name;
  }
  for (const char* usual : {"label", "labels", "class", "target", "species", "y", "outcome",
                            "category", "diagnosis", "result", "type"}) {
    for (const std::string& name : names) {
      if (lower(name) == usual) return name;
    }
  }
  if (const auto similar = nearest(wanted, names)) return *similar;
  return names.back();
}

/// The index of the column of labels. Throws DataError.
std::size_t find_label(const CsvHeader& header, const TableOptions& options,
                       const std::string& place) {
  const auto& names = header.names;
  const auto found = std::find(names.begin(), names.end(), options.label_column);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  const auto columns = static_cast<std::int64_t>(names.size());
  if (const auto number = parse_whole(options.label_column)) {
    const std::int64_t at = *number < 0 ? columns + *number : *number - 1;
    if (at >= 0 && at < columns && *number != 0) return static_cast<std::size_t>(at);
    throw DataError(place + ": there is no column " + std::to_string(*number) +
                        ": the columns are 1 to " + std::to_string(columns),
                    "count from 1, or from the last with -1");
  }
  const std::string likely =
      options.has_header ? likely_label(names, options.label_column) : std::to_string(columns);
  throw DataError(place + ": no column is named " + in_quotes(options.label_column) +
                      "; the columns are " + listed(names),
                  "say which column has the labels: `label_column=" + likely + "`");
}

/// Reads the columns of the files of one training set.
class SchemaFinder {
 public:
  SchemaFinder(const TableOptions& options, std::optional<int> classes)
      : options_(options), classes_(classes) {}

  void read(const std::filesystem::path& path) {
    Content content(path);
    content.finish();
    const CsvHeader header = read_header(content, options_.has_header, options_.separator);
    if (names_.empty()) begin(header, path.string() + ":1");
    for (const std::string& name : header.names) require_utf8(name, path.string() + ":1");
    order(header.names, path.string() + ":1");
    CsvRows rows(content);
    if (options_.has_header) rows.next();
    std::string scratch;
    const auto place = [&] { return path.string() + ":" + std::to_string(rows.line()); };
    while (rows.next()) {
      const std::string_view row = rows.row();
      if (is_blank(row, header.separator)) continue;
      const auto fail = [&](const std::string& reason) {
        throw DataError(place() + ": " + reason, mend_line);
      };
      const auto take = [&](std::size_t at, std::string_view text) {
        if (at >= order_.size()) return;
        if (order_[at] == label_) return add_label(text, place);
        add(order_[at], text, place);
      };
      const std::size_t fields = split_csv(row, header.separator, scratch, take, fail);
      if (fields != order_.size()) {
        fail(std::to_string(fields) + " fields, but the " +
             (options_.has_header ? "header names " : "first line has ") +
             std::to_string(order_.size()));
      }
      ++records_;
    }
  }

  std::uint64_t records() const noexcept { return records_; }

  TableSchema schema() const {
    TableSchema schema;
    schema.label = names_[label_];
    schema.has_header = options_.has_header;
    schema.missing = options_.missing;
    schema.classes = classes();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (i == label_) continue;
      const std::string reason = reason_to_leave_out(i);
      if (!reason.empty()) {
        schema.left_out.emplace_back(names_[i], reason);
        continue;
      }
      TableColumn column = {.name = names_[i]};
      if (is_category(i)) column.categories = {found_[i].texts.begin(), found_[i].texts.end()};
      schema.columns.push_back(std::move(column));
    }
    if (options_.has_header && !is_label_named_ && has_numbers_for_names(schema)) {
      refuse_header();
    }
    std::size_t values = schema.classes.size() + 3 * schema.left_out.size();
    for (const TableColumn& column : schema.columns) values += 4 + column.categories.size();
    if (values > max_saved_values) {
      throw DataError(place_ + ": more columns, words and classes than can be saved: " +
                          grouped(values) + " values",
                      "leave columns out: `ignore_columns=NAME,...`");
    }
    if (schema.columns.empty()) {
      throw DataError(
          place_ + ": no column of features besides the labels, " + in_quotes(schema.label),
          "give the table at least one column of numbers or words");
    }
    return schema;
  }

 private:
  void begin(const CsvHeader& header, const std::string& place) {
    names_ = header.names;
    place_ = place;
    found_.resize(names_.size());
    if (options_.has_header && looks_like_a_record(names_)) refuse_header();
    label_ = find_label(header, options_, place);
    is_label_named_ = contains(names_, options_.label_column);
    for (const auto* list : {&options_.ignored, &options_.categories}) {
      for (const std::string& name : *list) {
        if (contains(names_, name)) continue;
        const auto similar = nearest(name, names_);
        throw ConfigError(place + ": no column is named " + in_quotes(name) + ", as in `" +
                              (list == &options_.ignored ? "ignore_columns" : "category_columns") +
                              "`",
                          similar ? "did you mean " + in_quotes(*similar) + "?"
                                  : "the first is " + in_quotes(names_.front()));
      }
    }
  }

  [[noreturn]] void refuse_header() const {
    throw_no_header(place_, names_.front(),
                    "say so with `header=none`, or give the file a header line");
  }

  /// True if all columns of numbers have numbers for names, which do not count them.
  static bool has_numbers_for_names(const TableSchema& schema) {
    std::vector<std::string> names;
    for (const TableColumn& column : schema.columns) {
      if (column.categories.empty()) names.push_back(column.name);
    }
    return looks_like_a_record(names);
  }

  /// Sets order_: for each column of this file its index in names_.
  void order(const std::vector<std::string>& names, const std::string& place) {
    order_.clear();
    std::multimap<std::string_view, std::size_t> left;
    for (std::size_t i = 0; i < names_.size(); ++i) left.emplace(names_[i], i);
    for (const std::string& name : names) {
      const auto found = left.find(name);
      if (found == left.end()) {
        throw DataError(place + ": the column " + in_quotes(name) + " is not in " + place_,
                        "give all files the same columns");
      }
      order_.push_back(found->second);
      left.erase(found);
    }
    if (left.empty()) return;
    throw DataError(
        place + ": no column is named " + in_quotes(left.begin()->first) + ", as in " + place_,
        "give all files the same columns");
  }

  static void require_utf8(const std::string& text, const std::string& place) {
    if (is_utf8(text)) return;
    throw DataError(place + ": " + in_quotes(text) + " is not UTF-8",
                    "write the file as UTF-8: in pandas, to_csv(..., encoding='utf-8')");
  }

  template <class Place>
  void add(std::size_t column, std::string_view text, const Place& place) {
    Found& found = found_[column];
    const bool is_named = contains(options_.categories, names_[column]);
    if (!is_named && parse_float(text)) {
      ++found.numbers;
      return;
    }
    if (is_missing(text)) return;
    text = without_blanks(text);
    found.has_long_word = found.has_long_word || text.size() > max_word;
    if (found.words++ == 0) {
      found.place = place();
      found.first_word = text;
    }
    const std::size_t max = is_named ? max_named_categories : max_categories;
    if (found.texts.size() > max || found.texts.contains(text)) return;
    found.texts.emplace(text);
    require_utf8(std::string(text), place());
  }

  template <class Place>
  void add_label(std::string_view text, const Place& place) {
    const auto fail = [&](const std::string& reason, const std::string& remedy) {
      throw DataError(place() + ": column " + in_quotes(names_[label_]) + ": " + reason, remedy);
    };
    if (is_missing(text)) {
      fail(in_quotes(text) + " is no label",
           "remove records without a label from the training set");
    }
    text = without_blanks(text);
    if (text.size() > max_word) {
      fail("a label of " + counted(text.size(), "byte"),
           "look whether another column has the labels");
    }
    if (const auto number = parse_whole(text)) {
      if (*number > labels_.greatest) labels_.place_of_greatest = place();
      labels_.least = std::min(labels_.least, *number);
      labels_.greatest = std::max(labels_.greatest, *number);
      labels_.texts.insert(std::to_string(*number));
    } else {
      labels_.are_whole = false;
      if (!parse_float(text)) {
        labels_.are_numbers = false;
      } else if (labels_.fraction.empty()) {
        labels_.fraction = text;
        labels_.place_of_fraction = place();
      }
      if (labels_.texts.emplace(text).second) require_utf8(std::string(text), place());
    }
    if (labels_.texts.size() > static_cast<std::size_t>(max_found_classes)) {
      fail("more than " + grouped(max_found_classes) + " different labels",
           "look whether another column has the labels");
    }
  }

  std::vector<std::string> classes() const {
    const std::string column = ": column " + in_quotes(names_[label_]) + ": ";
    if (!labels_.are_whole && labels_.are_numbers) {
      throw DataError(labels_.place_of_fraction + column + in_quotes(labels_.fraction) +
                          " is no class: labels are whole numbers or words",
                      "say which column has the labels; quantities cannot be predicted yet");
    }
    std::vector<std::string> classes;
    if (classes_) {
      if (*classes_ > max_found_classes) {
        throw ConfigError("`classes=" + std::to_string(*classes_) + "`: a table has at most " +
                              grouped(max_found_classes) + " classes",
                          "leave `classes` out");
      }
      if (!labels_.are_whole || labels_.least < 0 || labels_.greatest >= *classes_) {
        throw DataError((labels_.are_whole ? labels_.place_of_greatest : place_) + column +
                            (labels_.are_whole ? "labels go from " + std::to_string(labels_.least) +
                                                     " to " + std::to_string(labels_.greatest)
                                               : "labels are words") +
                            ", but are to be in [0, " + std::to_string(*classes_) + ")",
                        "leave `classes` out: it is found from the labels");
      }
      for (int i = 0; i < *classes_; ++i) classes.push_back(std::to_string(i));
      return classes;
    }
    classes.assign(labels_.texts.begin(), labels_.texts.end());
    std::sort(classes.begin(), classes.end(), [&](const std::string& a, const std::string& b) {
      return labels_.are_whole ? *parse_whole(a) < *parse_whole(b) : a < b;
    });
    return classes;
  }

  bool is_category(std::size_t column) const {
    return found_[column].words > 0 || contains(options_.categories, names_[column]);
  }

  /// Empty for a column that is used. Throws DataError for a column of numbers and words.
  std::string reason_to_leave_out(std::size_t column) const {
    const Found& found = found_[column];
    const std::string& name = names_[column];
    if (contains(options_.ignored, name)) return "as asked";
    if (name.empty() || name == "Unnamed: 0") return "without a name: a row number";
    if (found.numbers + found.words == 0) return "empty";
    if (found.words == 0) return "";
    const std::string place = found.place + ": column " + in_quotes(name) + ": ";
    if (found.numbers > 0) {
      throw DataError(
          place + in_quotes(found.first_word) + " is no number, but " +
              counted(found.numbers, "other field") + " of the column are",
          "mend the line; or, if the numbers are categories, `category_columns=" + csv_field(name) +
              "`; or leave the column out, `ignore_columns=" + csv_field(name) + "`");
    }
    if (!contains(options_.categories, name) && is_decimal_comma(found.first_word)) {
      throw DataError(place + in_quotes(found.first_word) + " has a decimal comma",
                      "write numbers with a decimal point: in pandas, to_csv(..., decimal='.')");
    }
    if (found.has_long_word) return "words, one of more than " + counted(max_word, "byte");
    if (contains(options_.categories, name)) {
      if (found.texts.size() <= max_named_categories) return "";
      throw DataError(place + "more than " + grouped(max_named_categories) + " categories",
                      "leave the column out: `ignore_columns=" + csv_field(name) + "`");
    }
    if (found.texts.size() > max_categories) {
      return "words, more than " + std::to_string(max_categories) + " different ones";
    }
    return "";
  }

  static bool is_decimal_comma(std::string text) {
    const auto comma = text.find(',');
    if (comma == std::string::npos) return false;
    text[comma] = '.';
    return parse_float(text).has_value();
  }

  const TableOptions& options_;
  std::optional<int> classes_;
  std::vector<std::string> names_;  // of the columns of the first file
  std::string place_;               // of its header
  std::size_t label_ = 0;
  bool is_label_named_ = false;
  std::vector<Found> found_;
  std::vector<std::size_t> order_;
  FoundLabels labels_;
  std::uint64_t records_ = 0;
};

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

/// Of one column of numbers: sums of differences from the first value.
struct Moments {
  std::uint64_t count = 0;
  double first = 0;
  double greatest = 0;  // absolute
  Sum sum;
  Sum squares;
};

}  // namespace

TableSchema find_schema(std::span<const std::filesystem::path> paths, const TableOptions& options,
                        std::optional<int> classes) {
  SchemaFinder finder(options, classes);
  for (const auto& path : paths) finder.read(path);
  if (finder.records() == 0) {
    throw DataError(paths.front().string() + ":2: no record follows the header",
                    "give it at least one");
  }
  return finder.schema();
}

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
  std::vector<std::uint64_t> ids;
  std::vector<float> x;
  std::vector<std::int32_t> labels;
  for (std::uint64_t begin = 0; begin < source.records(); begin += ids.size()) {
    ids.clear();
    const std::uint64_t end = std::min(begin + block, source.records());
    for (std::uint64_t id = begin; id < end; ++id) ids.push_back(id);
    x.resize(ids.size() * features);
    labels.resize(ids.size());
    source.read(ids, x, labels);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto value = static_cast<double>(x[row * features + numbers[i]]);
        Moments& moments = all[i];
        if (std::isnan(value)) continue;
        if (moments.count++ == 0) moments.first = value;
        const double difference = value - moments.first;
        moments.sum.add(difference);
        moments.squares.add(difference * difference);
        moments.greatest = std::max(moments.greatest, std::abs(value));
      }
    }
  }

  double least = std::numeric_limits<double>::infinity();
  double greatest = 0;
  std::size_t i = 0;
  for (TableColumn& column : schema.columns) {
    if (!column.categories.empty()) continue;
    const Moments& moments = all[i++];
    if (moments.count == 0) continue;
    const auto count = static_cast<double>(moments.count);
    const double mean = moments.sum.value() / count;
    const double variance = moments.squares.value() / count - mean * mean;
    column.mean = moments.first + mean;
    column.deviation = variance > 0 ? std::sqrt(variance) : 1;
    if (variance <= 0) continue;
    least = std::min(least, moments.greatest);
    greatest = std::max(greatest, moments.greatest);
  }
  const bool is_of_one_scale = greatest <= 2 * least && greatest <= 10 && least >= 0.1;
  schema.standardized = standardize.value_or(!is_of_one_scale);
  schema.has_moments = true;
}

}  // namespace lockstep::data
