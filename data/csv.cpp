#include "data/csv.hpp"

#include <algorithm>
#include <cstring>

#include "data/checks.hpp"
#include "data/csv_rows.hpp"
#include "data/number_text.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

const char* const mend = "mend the line, or write the file again";

bool is_blank(std::string_view row) {
  return row.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The text of a quoted field that begins at `at`, which ends up behind its closing quote.
std::string_view quoted_field(std::string_view record, std::size_t& at, std::string& scratch,
                              const std::function<void(const std::string&)>& fail) {
  scratch.clear();
  ++at;
  for (;;) {
    const std::size_t quote = record.find('"', at);
    if (quote == std::string_view::npos) {
      fail("a quote is opened and never closed");
      return {};
    }
    scratch += record.substr(at, quote - at);
    at = quote + 1;
    if (at >= record.size() || record[at] != '"') return scratch;
    scratch += '"';
    ++at;
  }
}

/// Four zeros and their commas are eight bytes: most of what images are made of.
bool are_four_zeros(const char* text) noexcept { return std::memcmp(text, "0,0,0,0,", 8) == 0; }

/// Parses the unquoted fields at `at` as x.size() numbers and goes behind the last one's comma, or
/// one beyond the record's end. False where one is missing, quoted or no number.
bool plain_floats(std::string_view record, std::size_t& at, std::span<float> x) noexcept {
  for (std::size_t i = 0; i < x.size();) {
    if (i + 4 <= x.size() && at + 8 <= record.size() && are_four_zeros(record.data() + at)) {
      std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(i), 4, 0.0F);
      i += 4;
      at += 8;
      continue;
    }
    if (at >= record.size()) return false;
    std::size_t end = at;
    int whole = 0;
    for (; end < record.size() && end < at + 3 && record[end] >= '0' && record[end] <= '9'; ++end) {
      whole = 10 * whole + (record[end] - '0');
    }
    x[i] = static_cast<float>(whole);
    if (end == at || (end < record.size() && record[end] != ',')) {
      end = std::min(record.find(',', at), record.size());
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

std::size_t split_csv(std::string_view record, std::string& scratch, const CsvField& field,
                      const std::function<void(const std::string&)>& fail) {
  std::size_t column = 0;
  for (std::size_t at = 0;; ++at, ++column) {
    if (at < record.size() && record[at] == '"') {
      const std::string_view text = quoted_field(record, at, scratch, fail);
      if (at < record.size() && record[at] != ',') fail("text follows a closing quote");
      field(column, text);
    } else {
      const std::size_t end = std::min(record.find(',', at), record.size());
      const std::string_view text = record.substr(at, end - at);
      if (text.find('"') != std::string_view::npos) fail("a quote stands inside an unquoted field");
      field(column, text);
      at = end;
    }
    if (at >= record.size()) return column + 1;
  }
}

CsvSource::CsvSource(const std::filesystem::path& path, const ReadOptions& options)
    : StoredSource("csv", path, options) {
  content_.finish();
  scan();
}

void CsvSource::parse_header(std::string_view row) {
  const std::string place = path().string() + ":1";
  const auto fail = [&](const std::string& reason) {
    throw DataError(place + ": " + reason, mend);
  };
  split_csv(
      row, scratch_text_, [&](std::size_t, std::string_view text) { columns_.emplace_back(text); },
      fail);
  const auto labels = std::count(columns_.begin(), columns_.end(), "label");
  if (labels != 1) {
    throw DataError(place + ": " + (labels == 0 ? "no column" : "more than one column") +
                        " of the header is named 'label'; it begins with '" +
                        shown(columns_.front()) + "'",
                    "give the file a header line in which one column is named label");
  }
  if (columns_.size() == 1) fail("the header names no column besides 'label'");
  label_column_ = static_cast<std::size_t>(std::find(columns_.begin(), columns_.end(), "label") -
                                           columns_.begin());
  describe(Element::number, {columns_.size() - 1});
}

std::optional<std::int64_t> CsvSource::parse_plain_row(std::string_view row,
                                                       std::span<float> x) const noexcept {
  std::size_t at = 0;
  if (!plain_floats(row, at, x.first(label_column_)) || at > row.size()) return std::nullopt;
  const std::size_t end = std::min(row.find(',', at), row.size());
  const auto label = parse_whole(row.substr(at, end - at));
  at = end + 1;
  if (!label || !plain_floats(row, at, x.subspan(label_column_))) return std::nullopt;
  return at == row.size() + 1 ? label : std::nullopt;
}

std::vector<std::string> CsvSource::columns() const {
  std::vector<std::string> names = columns_;
  names.erase(names.begin() + static_cast<std::ptrdiff_t>(label_column_));
  return names;
}

std::int64_t CsvSource::parse_row(std::string_view row, std::span<float> x,
                                  const std::function<std::string()>& place) {
  if (const auto plain = parse_plain_row(row, x)) return *plain;
  std::int64_t label = 0;
  std::size_t feature = 0;
  const auto fail = [&](const std::string& reason) {
    throw DataError(place() + ": " + reason, mend);
  };
  const auto take = [&](std::size_t column, std::string_view text) {
    if (column >= columns_.size()) return;
    const bool of_label = column == label_column_;
    if (of_label) {
      const auto number = parse_whole(text);
      if (!number) fail("column 'label': '" + shown(text) + "' is not a whole number");
      label = *number;
      return;
    }
    const auto number = parse_float(text);
    if (!number) {
      fail("column '" + shown(columns_[column]) + "': '" + shown(text) +
           "' is not a finite number (in float32)");
    }
    x[feature++] = *number;
  };
  const std::size_t fields = split_csv(row, scratch_text_, take, fail);
  if (fields != columns_.size()) {
    fail(std::to_string(fields) + " fields, but the header names " +
         std::to_string(columns_.size()));
  }
  return label;
}

void CsvSource::scan() {
  CsvRows rows(content_);
  if (!rows.next() || is_blank(rows.row())) {
    throw DataError(path().string() + ":1: the header line is missing or empty",
                    "give the file a header line in which one column is named label");
  }
  parse_header(rows.row());
  std::vector<float> x(features());
  const auto place = [&] { return path().string() + ":" + std::to_string(rows.line()); };
  std::uint64_t blank_line = 0;
  offsets_.push_back(rows.end());
  while ((!limit_ || records() < *limit_) && rows.next()) {
    if (is_blank(rows.row())) {
      if (blank_line == 0) blank_line = rows.line();
      continue;
    }
    if (blank_line != 0) {
      throw DataError(
          path().string() + ":" + std::to_string(blank_line) + ": an empty line between records",
          mend);
    }
    const std::int64_t label = parse_row(rows.row(), x, place);
    labels_.push_back(label >= 0 && label < classes_ ? static_cast<std::int32_t>(label)
                                                     : checked_label(label, classes_, records(),
                                                                     place() + ": column 'label'"));
    offsets_.push_back(rows.end());
  }
  if (records() > 0) return;
  throw DataError(path().string() + ":2: no record follows the header", "give it at least one");
}

void CsvSource::decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                       std::span<float> x) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint64_t begin = offsets_[first + k] - offsets_[first];
    const std::uint64_t end = offsets_[first + k + 1] - offsets_[first];
    std::string_view row = text.substr(begin, end - begin);
    if (row.ends_with('\n')) row.remove_suffix(1);
    if (row.ends_with('\r')) row.remove_suffix(1);
    const auto place = [&] {
      return content_.place(offsets_[first + k]) + ": record " + std::to_string(first + k) +
             " has changed since the file was opened";
    };
    parse_row(row, x.subspan(k * features(), features()), place);
  }
  divide(x);
}

}  // namespace lockstep::data
