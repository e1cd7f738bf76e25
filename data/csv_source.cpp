// CsvSource: records of a CSV file by position. Its rows and quotes are parsed in csv.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/packing.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
namespace {

/// Fast path: compares eight bytes. Four zeros with commas are the most common text in images.
bool are_four_zeros(const char* text) noexcept { return std::memcmp(text, "0,0,0,0,", 8) == 0; }

/// True if a field of one to three characters, such as a pixel's, and its separator are at `at`.
/// The same in most fields of a file, so the branch on it is predictable.
bool is_short(std::string_view record, char separator, std::size_t at) noexcept {
  if (at + 3 >= record.size()) return false;
  const auto is_end = [&](std::size_t i) { return record[i] == separator ? 1U : 0U; };
  return (is_end(at + 1) | is_end(at + 2) | is_end(at + 3)) != 0;
}

/// Parses the unquoted fields at `at` as x.size() numbers; moves `at` past the last one's
/// separator, or one past the end of the record. False if a field is missing, quoted or not a
/// number.
bool plain_floats(std::string_view record, char separator, std::size_t& at,
                  std::span<float> x) noexcept {
  for (std::size_t i = 0; i < x.size();) {
    if (separator == ',' && i + 4 <= x.size() && at + 8 <= record.size() &&
        are_four_zeros(record.data() + at)) {
      std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(i), 4, 0.0F);
      i += 4;
      at += 8;
      continue;
    }
    if (at >= record.size()) return false;
    std::size_t end = at;
    if (is_short(record, separator, at)) {
      int whole = 0;
      for (; record[end] >= '0' && record[end] <= '9'; ++end) {
        whole = 10 * whole + (record[end] - '0');
      }
      x[i] = static_cast<float>(whole);
    } else {
      end += scan_decimal(record.substr(at), x[i]);
    }
    if (end == at || (end < record.size() && record[end] != separator)) {
      end = std::min(record.find(separator, at), record.size());
      const auto number = parse_float(record.substr(at, end - at));
      if (!number) return false;
      x[i] = *number;
    }
    ++i;
    at = end + 1;
  }
  return true;
}

}  // namespace

CsvSource::CsvSource(const std::filesystem::path& path, const ReadOptions& options)
    : StoredSource("csv", path, options),
      schema_(options.schema),
      has_header_(schema_ == nullptr || schema_->has_header),
      needs_labels_(options.needs_labels) {
  content_.finish();
  header_ = read_header(content_, has_header_, options.table ? options.table->separator : '\0');
  if (schema_ == nullptr && options.features) require_features(*options.features);
  assign_roles(options.needs_labels);
  scan(options.ranks);
  is_scanning_ = false;
  check_targets();
}

namespace {

/// Where a column of the training set is missing: throws DataError if the header looks like a
/// record.
void require_header(const std::string& place, const std::vector<std::string>& names) {
  if (!looks_like_a_record(names)) return;
  throw_no_header(place, names.front(), "give the file the header line of the training set");
}

void throw_missing_columns(const std::string& place, const std::vector<std::string>& missing,
                           const std::vector<std::string>& names,
                           const std::vector<std::string>& unused) {
  require_header(place, names);
  const auto similar = nearest(missing.front(), unused);
  throw DataError(place + ": no column of the header is named " + listed(missing) +
                      ", which the network takes; the columns are " + listed(names),
                  similar ? "rename the column " + in_quotes(*similar) + " to " +
                                in_quotes(missing.front()) + ", if that is it"
                          : "give data with the columns that the network was trained on");
}

}  // namespace

void CsvSource::name_columns(std::size_t all, std::vector<std::vector<std::string>> lacking,
                             const std::string& place) {
  auto& names = header_.names;
  std::sort(lacking.begin(), lacking.end());
  lacking.erase(std::unique(lacking.begin(), lacking.end()), lacking.end());
  std::erase_if(lacking, [&](const auto& columns) { return all - columns.size() != names.size(); });
  if (lacking.empty()) {
    throw DataError(place + ": " + counted(names.size(), "field") + ", but the training set has " +
                        counted(all, "column"),
                    "give data with the columns of the training set, in the same order");
  }
  if (lacking.size() > 1) {
    throw DataError(place + ": " + counted(names.size(), "field") + " of the training set's " +
                        counted(all, "column") + ": the column of labels (" +
                        in_quotes(schema_->label_names().front()) + ") or that of weights (" +
                        in_quotes(schema_->weight) + ") is missing, without a header line to tell",
                    "give both of these columns, or neither");
  }
  names.clear();  // "1", "2", ..., as in the training set
  for (std::size_t i = 1; i <= all; ++i) {
    const auto& missing = lacking.front();
    auto name = std::to_string(i);
    if (!contains(missing, name)) {
      names.push_back(std::move(name));
    }
  }
}

void CsvSource::require_features(std::size_t features) const {
  const auto& names = header_.names;
  const bool has_label = needs_labels_ || contains(names, "label");
  const std::size_t found = names.size() - (has_label ? 1 : 0);
  if (found == features) return;
  throw DataError(path().string() + ":1: a table of " + counted(found, "column") +
                      (has_label ? " besides the labels" : "") + ", but the network takes " +
                      counted(features, "feature"),
                  "give data of the kind that the network was trained on");
}

void CsvSource::assign_roles(bool needs_labels) {
  auto& names = header_.names;
  const std::string place = path().string() + ":1";
  const std::vector<std::string> labels =
      schema_ == nullptr ? std::vector<std::string>{"label"} : schema_->label_names();
  const std::size_t others =
      schema_ == nullptr ? 0 : schema_->columns.size() + schema_->left_out.size();
  const bool has_weight = schema_ != nullptr && !schema_->weight.empty();
  if (!has_header_) {
    auto all = labels;
    if (has_weight) all.push_back(schema_->weight);
    const std::vector<std::string> weight(all.begin() + labels.size(), all.end());
    std::vector<std::vector<std::string>> lacking = {{}};  // columns that the file may lack
    if (!needs_labels) lacking = {{}, all, labels, weight};
    name_columns(others + all.size(), std::move(lacking), place);
  }
  require_unique(names, schema_ == nullptr ? labels : schema_->used_columns(), place);
  roles_.resize(names.size());
  label_column_ = names.size();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (const auto found = index_of(names, labels[i])) {
      const bool is_class = schema_ == nullptr || schema_->targets.empty();
      label_column_ = *found;
      roles_[label_column_] = {.kind = is_class ? Role::Kind::label : Role::Kind::target,
                               .feature = i};
    } else if (needs_labels) {
      if (schema_ != nullptr) require_header(place, names);
      throw DataError(place + ": no column of the header is named " + in_quotes(labels[i]) +
                          "; it begins with " + in_quotes(names.front()),
                      schema_ == nullptr
                          ? "give the file a header line in which one column is named label"
                          : "give data with labels; `lockstep predict` needs none");
    }
  }
  is_plain_ = labels.size() == 1 && !has_weight;
  if (has_weight) assign_weight(place);
  if (schema_ != nullptr) return assign_columns(place);
  if (names.size() == 1 && label_column_ == 0)
    throw DataError(place + ": the header names no column besides " + in_quotes(names.front()),
                    mend_line);
  std::size_t feature = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i != label_column_) roles_[i] = {.kind = Role::Kind::number, .feature = feature++};
  }
  describe(Element::number, {feature});
}

void CsvSource::assign_weight(const std::string& place) {
  if (const auto found = index_of(header_.names, schema_->weight)) {
    roles_[*found].kind = Role::Kind::weight;
  } else if (needs_labels_) {
    throw DataError(place + ": no column of the header is named " + in_quotes(schema_->weight) +
                        ", which has the weights of the training set",
                    "give the data this column; 1 in each line weighs all records alike");
  }
}

void CsvSource::assign_columns(const std::string& place) {
  const auto& names = header_.names;
  std::unordered_map<std::string_view, std::size_t> columns;  // names of the schema are unique
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (roles_[i].kind == Role::Kind::ignored) columns.emplace(names[i], i);
  }
  std::vector<std::string> missing;
  std::size_t feature = 0;
  std::size_t previous = 0;
  for (std::size_t s = 0; s < schema_->columns.size(); ++s) {
    const TableColumn& column = schema_->columns[s];
    auto& words = category_of_.emplace_back();
    for (std::size_t i = 0; i < column.categories.size(); ++i) words[column.categories[i]] = i;
    const auto found = columns.extract(column.name);
    if (found.empty()) {
      missing.push_back(column.name);
      continue;
    }
    const std::size_t at = found.mapped();
    const bool is_number = column.categories.empty();
    roles_[at] = {.kind = is_number ? Role::Kind::number : Role::Kind::category,
                  .feature = feature,
                  .of_schema = s};
    is_plain_ = is_plain_ && is_number && at >= previous;
    previous = at;
    feature += column.features();
  }
  if (!missing.empty()) {
    std::vector<std::string> unused;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!names[i].empty() && roles_[i].kind == Role::Kind::ignored) unused.push_back(names[i]);
    }
    throw_missing_columns(place, missing, names, unused);
  }
  for (std::size_t i = 0; i < schema_->classes.size(); ++i) {
    class_of_[schema_->classes[i]] = static_cast<std::int32_t>(i);
  }
  are_whole_ = are_whole(schema_->classes);
  is_plain_ = is_plain_ && std::none_of(roles_.begin(), roles_.end(), [](const Role& role) {
                return role.kind == Role::Kind::ignored;
              });
  describe(Element::number, {feature});
}

std::optional<std::string_view> CsvSource::parse_plain_row(std::string_view row,
                                                           std::span<float> x) const noexcept {
  const char separator = header_.separator;
  const std::size_t before = std::min(label_column_, x.size());
  std::size_t at = 0;
  std::string_view label;
  if (!plain_floats(row, separator, at, x.first(before)) || at > row.size() + 1)
    return std::nullopt;
  if (label_column_ < roles_.size()) {
    if (at > row.size()) return std::nullopt;
    const std::size_t end = std::min(row.find(separator, at), row.size());
    label = row.substr(at, end - at);
    if (label.find('"') != label.npos) return std::nullopt;
    at = end + 1;
  }
  if (!plain_floats(row, separator, at, x.subspan(before))) return std::nullopt;
  return at == row.size() + 1 ? std::optional(label) : std::nullopt;
}

std::vector<std::string> CsvSource::columns() const {
  if (schema_ != nullptr) return schema_->feature_names();
  std::vector<std::string> names = header_.names;
  if (label_column_ < names.size()) {
    names.erase(names.begin() + static_cast<std::ptrdiff_t>(label_column_));
  }
  return names;
}

std::int32_t CsvSource::label_of(std::string_view text, const Where& place) const {
  const auto fail = [&](const std::string& reason, const char* remedy) {
    throw DataError(place() + ": column " + in_quotes(header_.names[label_column_]) + ": " + reason,
                    remedy);
  };
  if (schema_ == nullptr) {
    const auto number = parse_whole(text);
    if (!number) fail(in_quotes(text) + " is not a whole number", no_words);
    return checked_label(*number, classes_, records(),
                         [&] { return place() + ": column 'label'"; });
  }
  const auto found = class_of_.find(class_text(text, are_whole_));
  if (found == class_of_.end() && !needs_labels_) return 0;
  if (found == class_of_.end()) {
    const bool is_number = are_whole_ && parse_integral(text).value_or(-1) >= 0;
    fail(in_quotes(text) + " is none of the " + grouped(class_of_.size()) +
             (class_of_.size() == 1 ? " class " : " classes ") +
             "of the training set: " + listed(schema_->classes),
         is_number ? "mend the line; or, if labels are numbers from 0 on, train with `classes=N`"
                   : mend_line);
  }
  return found->second;
}

std::int32_t CsvSource::take_label(const Role& role, std::string_view text, const Where& place) {
  if (!is_scanning_) return 0;  // kept since
  if (role.kind == Role::Kind::label) return label_of(text, place);
  const auto number = parse_float(text);
  const bool is_flag = schema_->is_multi_label();
  if (needs_labels_ && (!number || (is_flag && *number != 0 && *number != 1))) {
    const auto column = static_cast<std::size_t>(&role - roles_.data());
    throw DataError(
        place() + ": column " + in_quotes(header_.names[column]) + ": " + in_quotes(text) +
            (is_flag ? " is neither 0 nor 1" : " is not a finite number (in float32)"),
        is_flag ? "write 1 for a record that has the label, else 0; a column of classes is named "
                  "alone: `label_column=NAME`"
                : mend_line);
  }
  values_[values_.size() - targets() + role.feature] = number.value_or(0);
  return 0;
}

void CsvSource::take_weight(std::string_view text, const Where& place) {
  if (!is_scanning_ || !needs_labels_) return;
  const auto number = parse_float(text);
  if (!number || *number < 0) {
    throw DataError(place() + ": column " + in_quotes(schema_->weight) + ": " + in_quotes(text) +
                        " is not a finite number of at least 0, as a weight has to be",
                    mend_line);
  }
  weights_.push_back(*number);
}

void CsvSource::take_feature(Role& role, std::string_view text, std::span<float> x,
                             const Where& place) {
  const auto column = static_cast<std::size_t>(&role - roles_.data());
  const auto refuse = [&](const std::string& problem) {
    throw DataError(
        place() + ": column " + in_quotes(header_.names[column]) + ": " + in_quotes(text) + problem,
        schema_ == nullptr ? no_words : mend_line);
  };
  const bool is_number = role.kind == Role::Kind::number;
  if (is_number) {
    if (const auto number = parse_float(text)) {
      x[role.feature] = *number;
      return;
    }
  } else {
    const auto& words = category_of_[role.of_schema];
    std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(role.feature), words.size(), 0.0F);
    if (const auto word = words.find(std::string(trimmed(text))); word != words.end()) {
      x[role.feature + word->second] = 1;
      return;
    }
  }
  const bool is_given = schema_ == nullptr || !is_missing(text);
  if (is_number && is_given) refuse(" is not a finite number (in float32)");
  if (schema_->missing == Missing::error) {
    refuse(is_given ? " is not a category of the training set" : ": a missing value");
  }
  if (is_number) x[role.feature] = std::numeric_limits<float>::quiet_NaN();
  if (!is_scanning_) return;
  if (is_given && role.unknown++ == 0) role.example = text;
  has_missing_ = true;
}

std::int32_t CsvSource::parse_row(std::string_view row, std::span<float> x, const Where& place) {
  const auto fail = [&](const std::string& reason) {
    throw DataError(place() + ": " + reason, mend_line);
  };
  const bool has_labels = label_column_ < roles_.size();
  if (is_plain_) {
    if (const auto label = parse_plain_row(row, x)) {
      return has_labels ? take_label(roles_[label_column_], *label, place) : 0;
    }
  }
  std::int32_t label = 0;
  const auto take = [&](std::size_t column, std::string_view text) {
    if (column >= roles_.size()) return;
    Role& role = roles_[column];
    if (role.kind == Role::Kind::label || role.kind == Role::Kind::target) {
      label = take_label(role, text, place);
    } else if (role.kind == Role::Kind::weight) {
      take_weight(text, place);
    } else if (role.kind != Role::Kind::ignored) {
      take_feature(role, text, x, place);
    }
  };
  const std::size_t fields = split_csv(row, header_.separator, scratch_text_, take, fail);
  if (fields != roles_.size()) {
    fail(std::to_string(fields) + " fields, but the " +
         (has_header_ ? "header names " : "first line has ") + std::to_string(roles_.size()));
  }
  return label;
}

void CsvSource::scan(const OpeningRanks* ranks) {
  std::optional<std::vector<std::string_view>> parts;
  if (!limit_) {  // with a limit most of the file is not read
    const std::string schema = schema_ == nullptr ? "" : " " + to_hex(hash_of(*schema_));
    parts = scan_parts(content_, "records" + schema, ranks, [&](const CsvPart& part) {
      scan(part);
      return findings();
    });
    forget_records();
  }
  if (!parts || !take_parts(*parts)) {
    forget_records();
    scan(CsvPart());
  }
  if (records() > 0) return;
  throw DataError(path().string() + ":2: no record follows the header", "give it at least one");
}

/// The squares of standardized numbers to predict, and sums over columns, have to be in float32. A
/// record of weight 0 is in no sum.
void CsvSource::check_targets() {
  if (!needs_labels_ || targets() == 0 || !schema_->has_moments) return;
  std::vector<float> values(targets());
  for (std::uint64_t id = 0; id < records(); ++id) {
    target_values(id, values);
    const auto found = std::find_if(values.begin(), values.end(),
                                    [](float value) { return !(std::abs(value) <= 1e18F); });
    if (found == values.end() || weight(id) == 0) continue;
    const auto column = static_cast<std::size_t>(found - values.begin());
    CsvRows rows(content_);
    while (rows.next() && rows.end() < offsets_[id + 1]) {
    }
    throw DataError(path().string() + ":" + std::to_string(rows.line()) + ": column " +
                        in_quotes(schema_->targets[column].name) + ": " +
                        shortest(values_[id * values.size() + column]) +
                        " is more than 1e18 standard deviations from the mean of the training set",
                    mend_line);
  }
}

void CsvSource::forget_records() {
  labels_.clear();
  offsets_.clear();
  values_.clear();
  weights_.clear();
  has_missing_ = false;
  for (Role& role : roles_) {
    role.unknown = 0;
    role.example.clear();
  }
}

void CsvSource::scan(const CsvPart& part) {
  CsvRows rows(content_, part);
  if (has_header_ && part.begin == 0) rows.next();
  std::vector<float> x(features());
  const auto place = [&] { return path().string() + ":" + std::to_string(rows.line()); };
  std::uint64_t blank_line = 0;
  offsets_.push_back(rows.end());
  while ((!limit_ || records() < *limit_) && rows.next()) {
    if (is_blank(rows.row(), header_.separator)) {
      if (blank_line == 0) blank_line = rows.line();
      continue;
    }
    if (blank_line != 0) {
      throw DataError(
          path().string() + ":" + std::to_string(blank_line) + ": an empty line between records",
          mend_line);
    }
    values_.resize(values_.size() + targets());
    labels_.push_back(parse_row(rows.row(), x, place));
    offsets_.push_back(rows.end());
  }
}

/// What scan() found, as take_parts() reads it.
std::string CsvSource::findings() const {
  Packer findings;
  std::vector<std::uint32_t> lengths(records());  // a record has at most 64 MiB
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<std::uint32_t>(offsets_[i + 1] - offsets_[i]);
  }
  findings.add(offsets_.front());
  findings.add(std::span<const std::uint32_t>(lengths));
  findings.add(std::span<const std::int32_t>(labels_));
  findings.add(std::span<const float>(values_));
  findings.add(std::span<const float>(weights_));
  findings.add(std::uint64_t{has_missing_});
  for (const Role& role : roles_) {
    findings.add(role.unknown);
    findings.add(std::string_view(role.example));
  }
  return findings.take();
}

/// Appends the records of all parts; false if empty lines lie between them.
bool CsvSource::take_parts(std::span<const std::string_view> parts) {
  std::vector<std::uint32_t> lengths;
  for (const std::string_view part : parts) {
    Unpacker found(part);
    const std::uint64_t begin = found.number();
    lengths.clear();
    found.append_to(lengths);
    if (offsets_.empty()) offsets_.push_back(begin);
    if (!lengths.empty() && offsets_.back() != begin) return false;
    for (const std::uint32_t length : lengths) offsets_.push_back(offsets_.back() + length);
    found.append_to(labels_);
    found.append_to(values_);
    found.append_to(weights_);
    has_missing_ = found.number() != 0 || has_missing_;
    for (Role& role : roles_) {
      const std::uint64_t unknown = found.number();
      const std::string_view example = found.text();
      if (role.unknown == 0) role.example = example;
      role.unknown += unknown;
    }
  }
  return true;
}

void CsvSource::decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                       std::span<float> x) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::size_t k = 0;
  const Where place = [&] {  // made once: it may allocate
    return content_.place(offsets_[first + k]) + ": record " + std::to_string(first + k) +
           " has changed since the file was opened";
  };
  for (; k < count; ++k) {
    const std::uint64_t begin = offsets_[first + k] - offsets_[first];
    const std::uint64_t end = offsets_[first + k + 1] - offsets_[first];
    std::string_view row = text.substr(begin, end - begin);
    if (row.ends_with('\n')) row.remove_suffix(1);
    if (row.ends_with('\r')) row.remove_suffix(1);
    const auto record = x.subspan(k * features(), features());
    parse_row(row, record, place);
    if (schema_ == nullptr) continue;
    divide_numbers(record);
    if (schema_->has_moments) apply_moments(record);
  }
  if (schema_ == nullptr) divide(x);
}

void CsvSource::divide_numbers(std::span<float> x) const noexcept {
  if (divisor() == 1.0F) return;
  for (const Role& role : roles_) {
    if (role.kind == Role::Kind::number) x[role.feature] /= divisor();
  }
}

void CsvSource::apply_moments(std::span<float> x) const noexcept {
  if (!schema_->standardized && !has_missing_) return;
  std::size_t feature = 0;
  for (const TableColumn& column : schema_->columns) {
    const std::size_t at = feature;
    feature += column.features();
    if (!column.categories.empty()) continue;
    x[at] = feature_of(*schema_, column, static_cast<double>(x[at]));
  }
}

std::vector<std::string> CsvSource::warnings() const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    const Role& role = roles_[i];
    if (role.unknown == 0) continue;
    texts.push_back(path().string() + ": column " + in_quotes(header_.names[i]) + ": " +
                    counted(role.unknown, "value") +
                    " of no category of the training set, such as " + in_quotes(role.example) +
                    ", read as missing");
  }
  return texts;
}

std::uint64_t CsvSource::classes() const noexcept {
  return schema_ == nullptr ? StoredSource::classes() : schema_->classes.size();
}

std::size_t CsvSource::targets() const noexcept {
  return schema_ == nullptr ? 0 : schema_->targets.size();
}

void CsvSource::target_values(std::uint64_t id, std::span<float> values) const noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const TableColumn& target = schema_->targets[i];
    const auto value = static_cast<double>(values_[id * values.size() + i]);
    values[i] = static_cast<float>((value - target.mean) / target.deviation);
  }
}

std::string CsvSource::identity() const {
  std::string text = StoredSource::identity();
  if (schema_ == nullptr) return text;
  text += ", columns " + to_hex(hash_of(*schema_));
  const auto add = [&](const char* what, std::span<const float> numbers) {
    if (!numbers.empty()) text += what + to_hex(lockstep::hash_of(std::as_bytes(numbers)));
  };
  add(", values ", values_);
  add(", weights ", weights_);
  return text;
}

}  // namespace lockstep::data
