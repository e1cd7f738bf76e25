#include "lockstep/data/csv.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
namespace {

char frequent_separator(std::string_view line) {
  constexpr std::array<char, 3> separators{'\t', ';', ','};  // as many: a decimal comma
  std::array<std::size_t, 3> counts{};
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    for (std::size_t i = 0; i < separators.size(); ++i) counts[i] += !quoted && c == separators[i];
  }
  const auto most = std::max_element(counts.begin(), counts.end());
  return *most == 0 ? ',' : separators[static_cast<std::size_t>(most - counts.begin())];
}

}  // namespace

std::string csv_field(const std::string& text) {
  // Also the separators that frequent_separator() counts.
  if (text.find_first_of(",;\t\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

bool is_blank(std::string_view row, char separator) noexcept {
  return row.find_first_not_of(separator == '\t' ? " \r" : " \t\r") == std::string_view::npos;
}

bool looks_like_a_record(std::span<const std::string> names) {
  std::vector<std::int64_t> whole;
  bool is_count = true;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    if (!parse_float(name)) return false;
    const auto number = parse_whole(name);
    is_count = is_count && number &&
               (whole.empty() ? *number == 0 || *number == 1 : *number == whole.back() + 1);
    whole.push_back(number.value_or(0));
  }
  return !whole.empty() && !is_count;
}

void require_unique(std::span<const std::string> names, std::span<const std::string> used,
                    const std::string& place) {
  std::unordered_map<std::string_view, std::size_t> first;
  std::unordered_map<std::string_view, std::size_t> second;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!first.emplace(names[i], i).second) second.emplace(names[i], i);
  }
  for (const std::string& name : used) {
    const auto again = second.find(name);
    if (again == second.end()) continue;
    throw DataError(place + ": columns " + std::to_string(first[name] + 1) + " and " +
                        std::to_string(again->second + 1) + " are both named " + in_quotes(name),
                    "rename one of them");
  }
}

void throw_no_header(const std::string& place, const std::string& first_name,
                     const std::string& remedy) {
  throw DataError(place +
                      ": the first line is a record, not the names of columns: it begins with " +
                      in_quotes(first_name),
                  remedy);
}

namespace {

/// Throws DataError for the first line of a file that is UTF-16, or whose lines end otherwise than
/// in LF or CRLF. `line` is without that.
void require_text(std::string_view line, const std::string& place) {
  if (line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF") ||
      line.find('\0') != std::string_view::npos) {
    throw DataError(place + ": is UTF-16, or no text",
                    "save it as UTF-8: `iconv -f UTF-16 -t UTF-8 OLD > NEW`");
  }
  if (line.ends_with('\r') && line.find('\r') + 1 == line.size()) {
    throw DataError(place + ": lines end in CR CR LF",
                    "end them in LF: `tr -d '\\r' < OLD > NEW`; Python's csv module needs "
                    "open(..., newline='')");
  }
  if (line.find('\r') != std::string_view::npos && line.find('"') == std::string_view::npos) {
    throw DataError(place + ": lines end in CR alone",
                    "end them in LF: `tr '\\r' '\\n' < OLD > NEW`");
  }
}

}  // namespace

CsvHeader read_header(Content& content, bool has_header, char separator) {
  CsvRows rows(content);
  const std::string place = content.path().string() + ":1";
  const auto fail = [&](const std::string& reason) {
    throw DataError(place + ": " + reason, mend_line);
  };
  if (!rows.next() || is_blank(rows.row(), separator)) {
    throw DataError(place + (has_header ? ": the header line is missing or empty"
                                        : ": no record: the line is missing or empty"),
                    "give the file a line with the names of its columns, and records after it");
  }
  require_text(rows.row(), place);
  CsvHeader header;
  header.separator = separator == '\0' ? frequent_separator(rows.row()) : separator;
  std::string scratch;
  const auto take = [&](std::size_t column, std::string_view text) {
    if (column >= max_csv_columns) {
      fail("the header names more than " + std::to_string(max_csv_columns) + " columns");
    }
    header.names.emplace_back(has_header ? std::string(trimmed(text)) : std::to_string(column + 1));
  };
  split_csv(rows.row(), header.separator, scratch, take, fail);
  return header;
}

namespace {

constexpr std::uint64_t csv_chunk_bytes = std::uint64_t{1} << 18;
constexpr std::size_t max_row_bytes = std::size_t{1} << 26;

}  // namespace

CsvRows::CsvRows(Content& content, const CsvPart& part)
    : content_(content), end_(part.end), loaded_(part.begin), next_line_(part.line) {
  if (part.begin >= part.end || !load() || part.begin > 0) return;
  if (buffer_.size() >= 3 && std::memcmp(buffer_.data(), "\xEF\xBB\xBF", 3) == 0) at_ = 3;
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
                    "look for a quote that is never closed, or a file that is not a CSV");
  }
  // Chunks end at the same offsets in any part, and so does a record that is too long.
  const std::uint64_t end = loaded_ + csv_chunk_bytes - loaded_ % csv_chunk_bytes;
  const std::uint64_t count = content_.available(end) - loaded_;
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
  if (end() >= end_) return false;
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

CsvTexts::CsvTexts(const std::filesystem::path& path, bool has_header, char separator)
    : content_(path), header_(read_header(content_, has_header, separator)) {
  rows_.emplace(content_);
  if (has_header) rows_->next();
}

const std::vector<std::string>& CsvTexts::next() {
  fields_.clear();
  do {
    if (!rows_->next()) return fields_;
  } while (is_blank(rows_->row(), header_.separator));
  const auto fail = [&](const std::string& reason) {
    throw DataError(place() + ": " + reason, mend_line);
  };
  const auto take = [&](std::size_t, std::string_view text) { fields_.emplace_back(text); };
  if (split_csv(rows_->row(), header_.separator, scratch_, take, fail) != names().size()) {
    fail("another number of fields than in the first line");
  }
  return fields_;
}

std::string CsvTexts::place() const {
  return content_.path().string() + ":" + std::to_string(rows_->line());
}

namespace {

/// `text` without blanks and tabs around it, and without a plus sign.
std::string_view number_text(std::string_view text) noexcept {
  text = trimmed(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <class Number>
std::optional<Number> parse(std::string_view text, std::errc& error) noexcept {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  error = result.ptr == end ? result.ec : std::errc::invalid_argument;
  return error == std::errc() ? std::optional(number) : std::nullopt;
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

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Adds the digits of `text` from `at` on to `digits`; returns their end. Overflows after 19.
std::size_t scan_digits(std::string_view text, std::size_t at, std::uint64_t& digits) noexcept {
  for (; at < text.size() && is_digit(text[at]); ++at) {
    digits = 10 * digits + static_cast<std::uint64_t>(text[at] - '0');
  }
  return at;
}

/// The same, eight at once. Source   the digits of the simdjson parser: G. Langdale, D. Lemire,
/// "Parsing gigabytes of JSON per second", 2019.
std::size_t scan_many_digits(std::string_view text, std::size_t at,
                             std::uint64_t& digits) noexcept {
  constexpr std::array<std::uint64_t, 9> powers{1,      10,      100,      1000,     10000,
                                                100000, 1000000, 10000000, 100000000};
  constexpr std::uint64_t bytes = 0x0101010101010101;
  while (at + 8 <= text.size()) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, text.data() + at, sizeof eight);
    std::uint64_t values = eight - '0' * bytes;
    const std::uint64_t others = (values | (eight + ('\x7F' - '9') * bytes)) & 0x80 * bytes;
    const auto count = static_cast<std::size_t>(std::countr_zero(others)) / 8;  // 8 if none
    if (count == 0) return at;
    values <<= 8 * (8 - count);
    values = 10 * values + (values >> 8);  // in every second byte
    constexpr std::uint64_t every_fourth = 0x000000FF000000FF;
    values = ((values & every_fourth) * 0x000F424000000064 +
              ((values >> 16) & every_fourth) * 0x0000271000000001) >>
             32;
    digits = powers[count] * digits + values;
    at += count;
    if (count < 8) return at;
  }
  return scan_digits(text, at, digits);
}

}  // namespace

std::size_t scan_decimal(std::string_view text, float& number) noexcept {
  constexpr std::array<double, 16> powers{1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                          1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  std::uint64_t digits = 0;
  std::size_t end = scan_digits(text, sign, digits);
  const std::size_t whole = end - sign;
  std::size_t decimals = 0;
  if (end < text.size() && text[end] == '.') {
    const std::size_t begin = end + 1;
    end = scan_many_digits(text, begin, digits);
    decimals = end - begin;
    if (decimals == 0) return 0;
  }
  if (whole == 0 || whole + decimals >= powers.size()) return 0;
  // Both are exact in double, so the quotient is the nearest double; and the float nearest to that
  // is nearest to the decimal, unless it is half way between two floats: then the decimal may be on
  // either side of it.
  auto value = static_cast<double>(digits);
  if (decimals > 0) value /= powers[decimals];
  constexpr std::uint64_t beyond_float = (std::uint64_t{1} << 29) - 1;
  constexpr std::uint64_t half = std::uint64_t{1} << 28;
  if ((std::bit_cast<std::uint64_t>(value) & beyond_float) == half) return 0;
  constexpr std::array<double, 2> signs{1, -1};  // branchless: signs are unpredictable
  number = static_cast<float>(signs[sign] * value);
  return end;
}

std::optional<float> parse_float(std::string_view text) noexcept {
  if (const auto small = small_whole(text)) return static_cast<float>(*small);
  if (float decimal = 0; !text.empty() && scan_decimal(text, decimal) == text.size()) {
    return decimal;
  }
  text = number_text(text);
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

std::optional<double> parse_double(std::string_view text) noexcept {
  std::errc error{};
  return parse<double>(number_text(text), error);
}

std::optional<std::int64_t> parse_whole(std::string_view text) noexcept {
  std::errc error{};
  return parse<std::int64_t>(number_text(text), error);
}

std::optional<std::int64_t> parse_integral(std::string_view text) noexcept {
  if (const auto whole = parse_whole(text)) return whole;
  constexpr double exact = 9007199254740992.0;  // 2^53
  const auto number = parse_double(text);
  if (!number || std::abs(*number) >= exact || *number != std::floor(*number)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

}  // namespace lockstep::data
