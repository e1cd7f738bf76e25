// Finds what the columns of a table are: numbers, words, labels (table.hpp).
#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/packing.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/found_columns.hpp"
#include "lockstep/data/opening.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/table.hpp"

namespace lockstep::data {
namespace {

/// A column of more words is left out, unless it is named in TableOptions::categories.
constexpr std::size_t max_categories = 100;
constexpr std::size_t max_named_categories = 10'000;
constexpr std::size_t max_word = 1000;
constexpr std::size_t max_float_classes = 20;      // whole numbers that are written as floats
constexpr std::size_t max_saved_values = 900'000;  // of a checkpoint's network.json

/// The remedy where no column is named `wanted`. Numbers among the names of a header may be those
/// of a record: none of them is suggested, as `label_column=1` also means the first column.
std::string name_label(const std::vector<std::string>& names, const TableOptions& options,
                       const std::string& wanted) {
  const auto take = [](const std::string& name) {
    return "say which column has the labels: `label_column=" + csv_field(name) + "`";
  };
  if (!options.has_header) return take(std::to_string(names.size()));
  for (const std::string& name : names) {
    if (lower_case(name) == lower_case(wanted)) return take(name);
  }
  for (const char* usual : {"label", "labels", "class", "target", "species", "y", "outcome",
                            "category", "diagnosis", "result", "type"}) {
    for (const std::string& name : names) {
      if (lower_case(name) == usual) return take(name);
    }
  }
  if (std::any_of(names.begin(), names.end(), parse_float)) {
    return "if the line is a record: `header=none` `label_column=-1`, for the last column; else "
           "name the column that has the labels";
  }
  if (names.front().starts_with("sep=")) {
    return "remove the first line, which is for spreadsheets, and give `separator`";
  }
  const auto named = std::find_if(names.rbegin(), names.rend(),
                                  [](const std::string& name) { return !name.empty(); });
  const auto meant = nearest(wanted, names);
  return take(meant && !meant->empty() ? *meant : named != names.rend() ? *named : "1");
}

/// The index of a column of labels. Throws DataError.
std::size_t find_label(const CsvHeader& header, const TableOptions& options,
                       const std::string& wanted, const std::string& place) {
  const auto& names = header.names;
  if (const auto found = index_of(names, wanted)) return *found;
  const auto columns = static_cast<std::int64_t>(names.size());
  if (const auto number = parse_whole(wanted)) {
    const std::int64_t at = *number < 0 ? columns + *number : *number - 1;
    if (at >= 0 && at < columns && *number != 0) return static_cast<std::size_t>(at);
    throw DataError(place + ": there is no column " + std::to_string(*number) +
                        ": the columns are 1 to " + std::to_string(columns),
                    "count from 1, or from the last with -1");
  }
  throw DataError(
      place + ": no column is named " + in_quotes(wanted) + "; the columns are " + listed(names),
      name_label(names, options, wanted));
}

/// What the columns of the files of one training set are.
class SchemaFinder {
 public:
  /// Reads the files.
  SchemaFinder(std::span<const std::string> paths, const TableOptions& options,
               std::optional<int> classes, const OpeningRanks* ranks)
      : options_(options), classes_(classes), ranks_(ranks) {
    for (const auto& path : paths) read(path);
  }

  TableSchema classes() const {
    if (task() != Task::classification) {
      throw DataError(place_ + in_column(labels_.front()) + "numbers to predict, not classes",
                      "name a column of classes; if the numbers are classes, "
                      "`task=classification`");
    }
    TableSchema schema;
    schema.has_header = options_.has_header;
    schema.label = names_[labels_.front().column];
    schema.classes = classes(labels_.front());
    require_unique(names_, schema.label_names(), place_);
    return schema;
  }

  TableSchema schema() const {
    TableSchema schema;
    if (task() == Task::classification) {
      schema = classes();
    } else {
      schema.task = task();
      schema.has_header = options_.has_header;
      schema.targets = targets();
    }
    schema.missing = options_.missing;
    schema.weight = options_.weight_column;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (is_label(i) || is_weight(i)) continue;
      const std::string reason = reason_to_leave_out(i);
      if (!reason.empty()) {
        schema.left_out.emplace_back(names_[i], reason);
        continue;
      }
      TableColumn column = {.name = names_[i]};
      if (is_category(i)) column.categories = {found_[i].texts.begin(), found_[i].texts.end()};
      schema.columns.push_back(std::move(column));
    }
    if (options_.has_header && !are_labels_named_ && has_numbers_for_names(schema)) {
      refuse_header();
    }
    require_unique(names_, schema.used_columns(), place_);
    std::size_t values =
        schema.classes.size() + 4 * schema.targets.size() + 3 * schema.left_out.size();
    for (const TableColumn& column : schema.columns) values += 4 + column.categories.size();
    if (values > max_saved_values) {
      throw DataError(place_ + ": more columns, words and classes than can be saved: " +
                          grouped(values) + " values",
                      "leave columns out: `ignore_columns=NAME,...`");
    }
    if (schema.columns.empty()) {
      throw DataError(
          place_ + ": no column of features besides the labels, " + listed(schema.label_names()),
          "give the table at least one column of numbers or words");
    }
    return schema;
  }

 private:
  void read(const std::filesystem::path& path) {
    Content content(path);
    content.finish();
    const CsvHeader header = read_header(content, options_.has_header, options_.separator);
    for (const std::string& name : header.names) require_text(name, path.string() + ":1");
    if (names_.empty()) begin(header, path.string() + ":1");
    order(header.names, path.string() + ":1");
    // What is found in this file is found apart where ranks share it, and then added.
    auto before = std::exchange(found_, std::vector<Found>(names_.size()));
    auto labels_before = labels_;
    for (FoundLabels& labels : labels_) labels = {.column = labels.column};
    const std::uint64_t records_before = std::exchange(records_, 0);
    const std::string what = "columns " + joined(names_, ",", csv_field);  // order of findings
    const auto parts = scan_parts(content, what, ranks_, [&](const CsvPart& part) {
      scan(content, header.separator, part);
      return findings();
    });
    found_ = std::move(before);
    labels_ = std::move(labels_before);
    records_ = records_before;
    if (parts) {
      for (const std::string_view part : *parts) add(part);
    } else {
      scan(content, header.separator, {});
    }
    if (records_ > records_before) return;
    throw DataError(
        path.string() + ":2: no record follows the header",
        "give it at least one" + std::string(records_ > 0 ? ", or remove the file" : ""));
  }

  /// What the fields of a file's column are added to.
  struct Use {
    Found* found;
    FoundLabels* labels;  // null: it is not to predict
    bool is_skipped;      // weights, which are checked where records are read; or ignored
    bool is_named;        // of words, as asked
  };

  std::vector<Use> uses_of_columns() {
    std::vector<Use> uses;
    for (const std::size_t column : order_) {
      const std::string& name = names_[column];
      uses.push_back({&found_[column], nullptr,
                      is_weight(column) || contains(options_.ignored, name),
                      contains(options_.categories, name)});
      for (FoundLabels& labels : labels_) {
        if (labels.column == column) uses.back().labels = &labels;
      }
    }
    return uses;
  }

  /// Fast path: takes a record of as many fields as columns, all simple numbers; else false.
  /// Not for tables with several columns of labels, or with a column that is words as asked.
  template <class Place>
  bool take_plain(std::string_view row, char separator, std::span<const Use> uses,
                  const Place& place) {
    std::size_t at = 0;
    FoundLabels* labels = nullptr;
    std::string_view label;
    for (const Use& use : uses) {
      float number = 0;
      const std::size_t length = at < row.size() ? scan_decimal(row.substr(at), number) : 0;
      const std::size_t end = at + length;
      if (length == 0 || (end < row.size() && row[end] != separator)) return false;
      use.found->spread.add(row.substr(at, length));
      if (use.labels != nullptr) {
        labels = use.labels;
        label = row.substr(at, length);
      }
      at = end + 1;
    }
    if (at != row.size() + 1) return false;
    if (labels != nullptr) add_label(*labels, label, place);
    for (const Use& use : uses) {
      if (use.labels == nullptr && !use.is_skipped) ++use.found->numbers;
    }
    ++records_;
    return true;
  }

  void scan(Content& content, char separator, const CsvPart& part) {
    CsvRows rows(content, part);
    if (options_.has_header && part.begin == 0) rows.next();
    const std::vector<Use> uses = uses_of_columns();
    const bool may_be_plain = labels_.size() == 1 && std::ranges::none_of(uses, &Use::is_named);
    std::string scratch;
    const auto place = [&] { return content.path().string() + ":" + std::to_string(rows.line()); };
    while (rows.next()) {
      const std::string_view row = rows.row();
      if (is_blank(row, separator)) continue;
      if (may_be_plain && take_plain(row, separator, uses, place)) continue;
      const auto fail = [&](const std::string& reason) {
        throw DataError(place() + ": " + reason, mend_line);
      };
      const auto take = [&](std::size_t at, std::string_view text) {
        if (at >= uses.size()) return;
        const Use& use = uses[at];
        if (use.labels != nullptr) return add_label(*use.labels, text, place);
        if (!use.is_skipped) add(use, text, place);
      };
      const std::size_t fields = split_csv(row, separator, scratch, take, fail);
      if (fields != order_.size()) {
        fail(std::to_string(fields) + " fields, but the " +
             (options_.has_header ? "header names " : "first line has ") +
             std::to_string(order_.size()));
      }
      ++records_;
    }
  }

  /// All that scan() found.
  std::string findings() const {
    Packer findings;
    findings.add(records_);
    for (const Found& found : found_) found.add_to(findings);
    for (const FoundLabels& labels : labels_) labels.add_to(findings);
    return findings.take();
  }

  /// Adds what was found in a part that follows those that were added before.
  void add(std::string_view part) {
    Unpacker findings(part);
    records_ += findings.number();
    for (std::size_t i = 0; i < found_.size(); ++i) {
      found_[i].add(findings, most_texts(contains(options_.categories, names_[i])));
    }
    for (FoundLabels& labels : labels_) labels.add(findings);
  }

  void begin(const CsvHeader& header, const std::string& place) {
    names_ = header.names;
    place_ = place;
    found_.resize(names_.size());
    if (options_.has_header && looks_like_a_record(names_)) refuse_header();
    for (const std::string& wanted : options_.label_columns) {
      const std::size_t column = find_label(header, options_, wanted, place);
      if (is_label(column)) {
        throw ConfigError("`label_column` names the column " + in_quotes(names_[column]) + " twice",
                          "name each column once");
      }
      labels_.emplace_back().column = column;
      are_labels_named_ = are_labels_named_ && contains(names_, wanted) && !parse_float(wanted);
    }
    if (labels_.empty()) {
      throw ConfigError("`label_column` names no column", "name the column that has the labels");
    }
    const auto require_feature = [&](const std::string& name, const char* option) {
      require_column(name, option);
      refuse_if(has_labels(name), option, name, "has the labels",
                std::string("leave it out of `") + option + "`, or name another column of labels");
    };
    for (const std::string& name : options_.ignored) require_feature(name, "ignore_columns");
    for (const std::string& name : options_.categories) {
      require_feature(name, "category_columns");
      refuse_if(contains(options_.ignored, name), "category_columns", name,
                "`ignore_columns` leaves out", "name it in one of them");
    }
    require_weight_column();
  }

  void require_column(const std::string& name, const char* setting) const {
    if (contains(names_, name)) return;
    throw ConfigError(place_ + ": no column is named " + in_quotes(name) + ", as in `" + setting +
                          "`; the columns are " + listed(names_),
                      did_you_mean(nearest(name, names_), "name one of them"));
  }

  void require_weight_column() const {
    const std::string& name = options_.weight_column;
    if (name.empty()) return;
    require_column(name, "weight_column");
    const auto refuse = [&](bool is_wrong, const char* which) {
      refuse_if(is_wrong, "weight_column", name, which, "name a column of weights alone");
    };
    refuse(has_labels(name), "has the labels");
    refuse(contains(options_.ignored, name), "`ignore_columns` leaves out");
    refuse(contains(options_.categories, name), "`category_columns` takes as words");
  }

  void refuse_if(bool is_wrong, const char* setting, const std::string& name, const char* which,
                 const std::string& remedy) const {
    if (!is_wrong) return;
    throw ConfigError(
        place_ + ": `" + setting + "` names the column " + in_quotes(name) + ", which " + which,
        remedy);
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

  static std::size_t most_texts(bool is_named) {
    return is_named ? max_named_categories : max_categories;
  }

  static void require_text(const std::string& text, const std::string& place) {
    if (text.find('\0') != std::string::npos || text.ends_with('\r')) {
      throw DataError(place + ": " + in_quotes(text) + " has a NUL or ends with a carriage return",
                      "write the file as text, with lines that end with LF or CRLF");
    }
    if (is_utf8(text)) return;
    throw DataError(place + ": " + in_quotes(text) + " is not UTF-8",
                    "write the file as UTF-8: in pandas, to_csv(..., encoding='utf-8')");
  }

  template <class Place>
  void add(const Use& use, std::string_view text, const Place& place) {
    Found& found = *use.found;
    if (!use.is_named && parse_float(text)) {
      found.spread.add(text);
      ++found.numbers;
      return;
    }
    if (is_missing(text)) return;
    text = trimmed(text);
    found.has_long_word = found.has_long_word || text.size() > max_word;
    if (found.words++ == 0) {
      found.place = place();
      found.first_word = text;
    }
    if (text.size() > max_word) return;  // not one of few, and memory would grow with it
    if (found.texts.size() > most_texts(use.is_named) || found.texts.contains(text)) return;
    found.texts.emplace(text);
    require_text(std::string(text), place());
  }

  bool is_label(std::size_t column) const {
    return std::any_of(labels_.begin(), labels_.end(),
                       [&](const FoundLabels& labels) { return labels.column == column; });
  }

  bool has_labels(const std::string& name) const {
    return std::any_of(labels_.begin(), labels_.end(),
                       [&](const FoundLabels& labels) { return names_[labels.column] == name; });
  }

  bool is_weight(std::size_t column) const {
    return !options_.weight_column.empty() && names_[column] == options_.weight_column;
  }

  std::string in_column(const FoundLabels& labels) const {
    return ": column " + in_quotes(names_[labels.column]) + ": ";
  }

  template <class Place>
  void add_label(FoundLabels& labels, std::string_view text, const Place& place) {
    const auto fail = [&](const std::string& reason, const std::string& remedy) {
      throw DataError(place() + in_column(labels) + reason, remedy);
    };
    if (is_missing(text)) {
      fail(in_quotes(text) + " is not a label",
           "remove records without a label from the training set");
    }
    text = trimmed(text);
    if (text.size() > max_word) {
      fail("a label of " + counted(text.size(), "byte"),
           "look whether another column has the labels");
    }
    if (const auto number = parse_integral(text)) {
      if (*number > labels.greatest) labels.place_of_greatest = place();
      labels.least = std::min(labels.least, *number);
      labels.greatest = std::max(labels.greatest, *number);
      if (!parse_whole(text)) ++labels.floats;
    } else if (parse_float(text)) {
      ++(text.find_first_of(".eE") == text.npos ? labels.huge : labels.fractions);
    } else if (labels.word.empty()) {
      labels.word = text;
      labels.place_of_word = place();
    }
    if (labels_.size() > 1 || labels.is_full()) return;  // several are no classes
    const auto [name, is_new] = labels.texts.emplace(text);
    if (is_new) require_text(*name, place());
  }

  /// The task that is given, or found. Throws DataError for labels that are numbers and words.
  Task task() const {
    if (options_.task) return *options_.task;
    if (labels_.size() > 1) {
      const bool are_flags = std::all_of(labels_.begin(), labels_.end(),
                                         [](const auto& labels) { return labels.are_flags(); });
      return are_flags ? Task::multi_label : Task::regression;
    }
    const FoundLabels& labels = labels_.front();
    if (labels.fractions > 0 && !labels.are_numbers()) {
      throw DataError(labels.place_of_word + in_column(labels) + in_quotes(labels.word) +
                          why_no_number(labels.word) + ", but other labels have fractions",
                      "mend the line; or, if each is a class, `task=classification`");
    }
    refuse_decimal_comma(labels.place_of_word + in_column(labels), labels.word,
                         "or, if each is a class, `task=classification`");
    if (!labels.are_numbers()) return Task::classification;
    const bool is_regression =
        labels.fractions > 0 || (labels.floats > 0 && labels.classes().size() > max_float_classes);
    return is_regression ? Task::regression : Task::classification;
  }

  std::vector<TableColumn> targets() const {
    if (classes_) {
      const char* const what = task() == Task::regression ? "a regression" : "several labels";
      throw ConfigError("`classes=" + std::to_string(*classes_) + "` with " + what,
                        "leave `classes` out; or, if labels are classes, `task=classification`");
    }
    std::vector<TableColumn> targets;
    for (const FoundLabels& labels : labels_) {
      if (!labels.are_numbers()) {
        throw DataError(labels.place_of_word + in_column(labels) + in_quotes(labels.word) +
                            (task() == Task::regression
                                 ? why_no_number(labels.word) + std::string("; a regression needs "
                                                                            "numbers")
                                 : " is neither 0 nor 1"),
                        "mend the line, or name other columns: `label_column=NAME,...`");
      }
      targets.push_back({.name = names_[labels.column]});
    }
    return targets;
  }

  std::vector<std::string> classes(const FoundLabels& labels) const {
    if (labels_.size() > 1) {
      throw ConfigError("`label_column` names " + counted(labels_.size(), "column") +
                            ", but a classification has one",
                        "name one; or `task=multi-label`, or `task=regression`");
    }
    if (labels.is_full()) {
      throw DataError(place_ + in_column(labels) + "more than " + grouped(max_found_classes) +
                          " different labels",
                      labels.are_numbers() ? "if they are quantities, `task=regression`"
                                           : "look whether another column has the labels");
    }
    std::vector<std::string> classes;
    const bool are_whole = labels.are_whole();
    if (classes_) {
      if (*classes_ > max_found_classes) {
        throw ConfigError("`classes=" + std::to_string(*classes_) + "`: a table has at most " +
                              grouped(max_found_classes) + " classes",
                          "leave `classes` out");
      }
      if (!are_whole || labels.least < 0 || labels.greatest >= *classes_) {
        const bool is_above = are_whole && labels.greatest >= *classes_;
        throw DataError((is_above ? labels.place_of_greatest : place_) + in_column(labels) +
                            (are_whole ? "labels go from " + std::to_string(labels.least) + " to " +
                                             std::to_string(labels.greatest)
                             : labels.word.empty() ? "not all labels are whole numbers"
                                                   : "labels are words") +
                            ", but are to be in [0, " + std::to_string(*classes_) + ")",
                        "leave `classes` out: it is found from the labels");
      }
      for (int i = 0; i < *classes_; ++i) classes.push_back(std::to_string(i));
      return classes;
    }
    const auto found = labels.classes();
    classes.assign(found.begin(), found.end());
    if (are_whole) std::ranges::sort(classes, {}, parse_whole);
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
    if (found.words == 0) {
      if (!found.spread.is_lost || found.spread.differs) return "";
      throw DataError(place_ + ": column " + in_quotes(name) + ": its numbers are all " +
                          in_quotes(found.spread.first) + " in the 24 bits of float32",
                      "subtract an offset from them, or leave the column out: `ignore_columns`");
    }
    const std::string place = found.place + ": column " + in_quotes(name) + ": ";
    const bool is_named = contains(options_.categories, name);
    const std::string own = "_columns=" + csv_field(name) + "`";
    if (!is_named) {
      refuse_decimal_comma(place, found.first_word, "or, if these are words, `category" + own);
    }
    const bool are_huge = !is_named && !found.has_long_word &&
                          std::all_of(found.texts.begin(), found.texts.end(), is_beyond_float32);
    if (found.numbers > 0 || are_huge) {
      std::string problem = place + in_quotes(found.first_word) + why_no_number(found.first_word);
      if (found.numbers > 0) {
        problem += ", but " + counted(found.numbers, "other field") + " of the column " +
                   (found.numbers == 1 ? "is a number" : "are numbers");
      }
      throw DataError(problem, "mend the column; or, if its numbers are categories, `category" +
                                   own + "; or leave it out, `ignore" + own);
    }
    if (found.has_long_word) return "words, one of more than " + counted(max_word, "byte");
    if (is_named) {
      if (found.texts.size() <= max_named_categories) return "";
      throw DataError(place + "more than " + grouped(max_named_categories) + " categories",
                      "leave the column out: `ignore_columns=" + csv_field(name) + "`");
    }
    if (found.texts.size() > max_categories) {
      return "words, more than " + std::to_string(max_categories) + " different ones";
    }
    return "";
  }

  const TableOptions& options_;
  std::optional<int> classes_;
  const OpeningRanks* ranks_;
  std::vector<std::string> names_;  // of the columns of the first file
  std::string place_;               // of its header
  bool are_labels_named_ = true;
  std::vector<Found> found_;
  std::vector<std::size_t> order_;
  std::vector<FoundLabels> labels_;
  std::uint64_t records_ = 0;
};

}  // namespace

TableSchema find_schema(std::span<const std::string> paths, const TableOptions& options,
                        std::optional<int> classes, const OpeningRanks* ranks) {
  return SchemaFinder(paths, options, classes, ranks).schema();
}

TableSchema find_classes(const std::string& path, const TableOptions& options) {
  return SchemaFinder({&path, 1}, options, std::nullopt, nullptr).classes();
}

}  // namespace lockstep::data
