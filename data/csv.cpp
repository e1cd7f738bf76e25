#include "lockstep/data/csv.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <system_error>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
namespace {

const char* const mend = "mend the line, or write the file again";

constexpr std::size_t max_columns = 1'000'000;

bool is_blank(std::string_view row) {
  return row.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The text of the quoted field at `at`; moves `at` past its closing quote.
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

/// Fast path: compares eight bytes. Four zeros with commas are the most common text in images.
bool are_four_zeros(const char* text) noexcept { return std::memcmp(text, "0,0,0,0,", 8) == 0; }

/// Parses the unquoted fields at `at` as x.size() numbers; moves `at` past the last one's comma, or
/// one past the end of the record. False if a field is missing, quoted or not a number.
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
  const auto take = [&](std::size_t column, std::string_view text) {
    if (column >= max_columns) {
      fail("the header names more than " + std::to_string(max_columns) + " columns");
    }
    columns_.emplace_back(text);
  };
  split_csv(row, scratch_text_, take, fail);
  const auto labels = std::count(columns_.begin(), columns_.end(), "label");
  if (labels != 1) {
    throw DataError(place + ": " + (labels == 0 ? "no column" : "more than one column") +
                        " of the header is named 'label'; it begins with '" +
                        printable(columns_.front()) + "'",
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
      if (!number) fail("column 'label': '" + printable(text) + "' is not a whole number");
      label = *number;
      return;
    }
    const auto number = parse_float(text);
    if (!number) {
      fail("column '" + printable(columns_[column]) + "': '" + printable(text) +
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

namespace {

constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 18;
constexpr std::size_t max_row_bytes = std::size_t{1} << 26;

}  // namespace

CsvRows::CsvRows(Content& content) : content_(content) {
  if (load() && buffer_.size() >= 3 && std::memcmp(buffer_.data(), "\xEF\xBB\xBF", 3) == 0) at_ = 3;
}

std::string_view CsvRows::row() const noexcept {
  return {reinterpret_cast<const char*>(buffer_.data()) + begin_, length_};
}

/// Appends the next chunk to the unused bytes; false at the end of the file.
bool CsvRows::load() {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at_));
  at_ = 0;
  if (buffer_.size() > max_row_bytes) {
    throw DataError(content_.path().string() + ":" + std::to_string(next_line_) +
                        ": a record of more than 64 MiB",
                    "look for a quote that is never closed, or a file that is no CSV");
  }
  const std::uint64_t count = std::min(chunk_bytes, content_.size() - loaded_);
  if (count == 0) return false;
  const std::size_t used = buffer_.size();
  buffer_.resize(used + static_cast<std::size_t>(count));
  content_.read_at(loaded_, std::span(buffer_).subspan(used));
  loaded_ += count;
  return true;
}

/// Finds the end of the line at at_; continues at `length`, where the previous call stopped, and
/// there inside quotes if `quoted`.
bool CsvRows::find_end(std::size_t& length, bool& quoted) {
  std::size_t from = length;
  const std::uint8_t* const data = buffer_.data() + at_;
  const std::size_t size = buffer_.size() - at_;
  const auto find = [&](char wanted, std::size_t first, std::size_t last) {
    const void* const at = std::memchr(data + first, wanted, last - first);
    return at == nullptr ? last
                         : static_cast<std::size_t>(static_cast<const std::uint8_t*>(at) - data);
  };
  std::size_t line_end = 0;  // found once, and again if the newline was quoted
  while (from < size) {
    if (!quoted && line_end <= from) line_end = find('\n', from, size);
    const std::size_t end = quoted ? size : line_end;
    const std::size_t quote = find('"', from, end);
    if (quote == end) {
      length = end;
      return end < size;
    }
    quoted = !quoted;
    has_quotes_ = true;
    from = quote + 1;
  }
  length = size;
  return false;
}

bool CsvRows::next() {
  std::size_t length = 0;
  bool quoted = false;
  has_quotes_ = false;
  bool ended = find_end(length, quoted);
  while (!ended && load()) ended = find_end(length, quoted);
  if (!ended && length == 0) return false;
  begin_ = at_;
  length_ = length;
  line_ = next_line_;
  ++next_line_;
  if (has_quotes_) {  // only quoted records contain newlines
    next_line_ += static_cast<std::uint64_t>(std::count(row().begin(), row().end(), '\n'));
  }
  at_ += length + (ended ? 1 : 0);
  if (length_ > 0 && row().back() == '\r') --length_;
  return true;
}

namespace {

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <class Number>
std::optional<Number> parse(std::string_view text, std::errc& error) noexcept {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  error = result.ec;
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return number;
}

/// Parses a typical pixel value; faster than from_chars.
std::optional<int> small_whole(std::string_view text) noexcept {
  if (text.empty() || text.size() > 3) return std::nullopt;
  int number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = 10 * number + (c - '0');
  }
  return number;
}

}  // namespace

std::optional<float> parse_float(std::string_view text) noexcept {
  if (const auto small = small_whole(text)) return static_cast<float>(*small);
  text = trimmed(text);
  std::errc error{};
  auto number = parse<float>(text, error);
  if (error == std::errc::result_out_of_range) {  // overflow, or underflow to 0
    const auto wide = parse<double>(text, error);
    const bool small =
        wide ? std::abs(*wide) < 1.0 : text.find("e-") != text.npos || text.find("E-") != text.npos;
    if (!small) return std::nullopt;
    number = wide ? static_cast<float>(*wide) : 0.0F;
  }
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<std::int64_t> parse_whole(std::string_view text) noexcept {
  std::errc error{};
  return parse<std::int64_t>(trimmed(text), error);
}

}  // namespace lockstep::data
