#include "lockstep/base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/base/errors.hpp"

namespace lockstep {
namespace {

/// Optimal string alignment distance: Levenshtein's, with a swap of two neighbours as one edit.
/// Computed one row of the table at a time.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);  // the row before `last`
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = last[j] + (a[i] == b[j] ? 0 : 1);
      row[j + 1] = std::min({replaced, row[j] + 1, last[j + 1] + 1});
      const bool is_swap = i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j];
      if (is_swap) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

template <class Number>
std::string shortest_text(Number value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  std::string result(text.data(), end);
  if (result.find_first_of(".en") == std::string::npos) result += ".0";
  return result;
}

template <class Number, class... Base>
std::optional<Number> parsed(std::string_view text, Base... base) noexcept {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

std::string grouped(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string count_text(double number) {
  if (number < 1e18) return grouped(static_cast<std::uint64_t>(std::llround(number)));
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", number);
  return text.data();
}

std::string counted(std::uint64_t number, std::string_view noun) {
  return grouped(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

std::string zero_padded(std::uint64_t number, std::size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width - std::min(width, digits.size()), '0') + digits;
}

std::string bytes_text(double bytes) {
  constexpr std::array units = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < units.size(); ++unit) bytes /= 1000;
  return with_decimals(bytes, unit == 0 ? 0 : 1) + " " + units[unit];
}

std::string shortest(float value) { return shortest_text(value); }
std::string shortest(double value) { return shortest_text(value); }

double shortest_double(float value) { return *parsed<double>(shortest(value)); }

std::string with_decimals(double value, int decimals) {
  std::array<char, 400> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::fixed, decimals);
  return {text.data(), end.ptr};
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

std::string_view trimmed(std::string_view text) noexcept {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> pieces;
  if (trimmed(text).empty()) return pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    pieces.emplace_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return pieces;
}

std::string printable(std::string_view text, std::size_t max) {
  std::string result;
  for (const char c : text.substr(0, max)) result += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > max ? result + "..." : result;
}

namespace {

/// `line` with its middle left out, not within a character of UTF-8.
std::string shortened(std::string_view line, std::size_t max) {
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(line[at]) & 0xC0U) == 0x80U;
  };
  std::size_t head = max / 4 * 3;
  std::size_t tail = line.size() - max / 4;
  while (head > 0 && continues(head)) --head;
  while (tail < line.size() && continues(tail)) ++tail;
  return std::string(line.substr(0, head)) + " ... (" + grouped(line.size()) + " bytes) ... " +
         std::string(line.substr(tail));
}

/// Replaces control characters by '?'.
std::string without_controls(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xC2U && i + 1 < text.size() &&  // U+0080 to U+009F
                    static_cast<unsigned char>(text[i + 1]) < 0xA0U;
    if (c1) text.replace(i, 2, "?");
    if (byte < ' ' || byte == 0x7FU) text[i] = '?';
  }
  return text;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t max = 64;
  std::size_t length = std::min(text.size(), max);
  while (length < text.size() && length > 0 &&
         (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;  // not within a character of UTF-8
  }
  std::string shown(text.substr(0, length));
  if (!is_utf8(shown)) return "'" + printable(text, max) + "'";
  return "'" + without_controls(std::move(shown)) + (length < text.size() ? "...'" : "'");
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
  return true;
}

std::string listed(std::span<const std::string> names) {
  constexpr std::size_t max_named = 12;
  std::string text = joined(names.first(std::min(names.size(), max_named)), ", ", in_quotes);
  if (names.size() > max_named)
    text += " and " + std::to_string(names.size() - max_named) + " more";
  return text;
}

std::string ranges_text(std::span<const int> numbers) {
  constexpr std::size_t max_ranges = 8;
  std::vector<std::string> ranges;
  std::size_t begin = 0;
  while (begin < numbers.size() && ranges.size() < max_ranges) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    ranges.push_back(std::to_string(numbers[begin]));
    if (end > begin + 1) ranges.back() += "-" + std::to_string(numbers[end - 1]);
    begin = end;
  }
  if (begin == numbers.size()) return joined(ranges);
  return joined(ranges) + ", ... (" + std::to_string(numbers.size()) + " in all)";
}

std::string ranks_text(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
}

std::string presentable(std::string_view text, std::size_t max_line) {
  std::string result;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    std::string shown = line.size() > max_line ? shortened(line, max_line) : std::string(line);
    result += without_controls(std::move(shown));
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

std::optional<std::uint64_t> whole_number(std::string_view text, int base) noexcept {
  return parsed<std::uint64_t>(text, base);
}

template <class T>
std::optional<T> number_in(std::string_view text) noexcept {
  return parsed<T>(text);
}
template std::optional<float> number_in(std::string_view text) noexcept;
template std::optional<double> number_in(std::string_view text) noexcept;

std::uint64_t parse_count(std::string_view text, std::uint64_t min, std::uint64_t max) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range || (error == std::errc() && number > max)) {
    throw ConfigError(std::string(text) + " is more than " + std::to_string(max),
                      "use " + std::to_string(max) + " or less");
  }
  if (error != std::errc() || stop != end) {
    throw ConfigError(
        "'" + std::string(text) + "' is not a whole number of at least " + std::to_string(min),
        "write it in digits alone, without sign, point or exponent");
  }
  if (number < min) {
    throw ConfigError(std::string(text) + " is less than " + std::to_string(min),
                      "use " + std::to_string(min) + " or more");
  }
  return number;
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  std::optional<std::string> best;
  const std::size_t most = word.size() <= 4 ? 1 : std::max<std::size_t>(2, word.size() / 3);
  std::size_t fewest = most + 1;
  const std::string lower = lower_case(word);
  for (const auto& candidate : candidates) {
    if (const auto distance = edits(lower, lower_case(candidate)); distance < fewest) {
      fewest = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(const std::optional<std::string>& guess, const std::string& otherwise) {
  return guess ? "did you mean " + in_quotes(*guess) + "?" : otherwise;
}

}  // namespace lockstep
