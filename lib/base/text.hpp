// Helpers for words and numbers in messages and settings.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep {

/// 905010 -> "905,010".
std::string grouped(std::uint64_t number);

/// The whole number nearest to `number`, at least 0, grouped; from 1e18 on three digits of it.
std::string count_text(double number);

/// 1 -> "1 step", 1407 -> "1,407 steps".
std::string counted(std::uint64_t number, std::string_view noun);

/// 7 -> "007" of width 3; a longer number as it is.
std::string zero_padded(std::uint64_t number, std::size_t width);

/// 3,140,608 -> "3.1 MB"; in powers of 1000.
std::string bytes_text(double bytes);

/// The shortest decimal text that parses to the same number; always with a point or exponent.
std::string shortest(float value);
std::string shortest(double value);

/// The double of which the shortest text is that of `value`: 0.2 for 0.2F.
double shortest_double(float value);

/// `value` with `decimals` digits after the point.
std::string with_decimals(double value, int decimals);

/// `text` with A to Z as a to z; all other bytes as they are.
std::string lower_case(std::string_view text);

/// `text` without the blanks and tabs around it.
std::string_view trimmed(std::string_view text) noexcept;

/// "a, b, c" -> {"a", "b", "c"}: pieces between commas without surrounding blanks.
std::vector<std::string> split_list(std::string_view text);

/// `text` for messages: at most `max` bytes of it, unprintable ones as '?'.
std::string printable(std::string_view text, std::size_t max = 32);

/// "'text'" for messages: at most 64 bytes of it, control characters as '?'; UTF-8 stays as it is.
std::string in_quotes(std::string_view text);

/// "a, b, c": the elements, or `project` of each one, which are texts or whole numbers.
template <class Elements, class Project = std::identity>
std::string joined(const Elements& elements, std::string_view separator = ", ",
                   Project project = {}) {
  std::string text;
  bool is_first = true;
  for (const auto& element : elements) {
    if (!is_first) text += separator;
    is_first = false;
    const auto& piece = std::invoke(project, element);
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(piece)>>) {
      text += std::to_string(piece);
    } else {
      text += piece;
    }
  }
  return text;
}

/// The index of the first of `elements` that is `value`; nullopt if none is.
template <class Elements, class Value>
std::optional<std::size_t> index_of(const Elements& elements, const Value& value) {
  const auto found = std::find(std::begin(elements), std::end(elements), value);
  if (found == std::end(elements)) return std::nullopt;
  return static_cast<std::size_t>(found - std::begin(elements));
}

/// True if one of `elements` is `value`.
template <class Elements, class Value>
requires requires(const Elements& elements, const Value& value) { *std::begin(elements) == value; }
bool contains(const Elements& elements, const Value& value) {
  return index_of(elements, value).has_value();
}

/// The value of an enumeration whose values 0, 1, ... are called names[0], names[1], ...
template <class Enum, std::size_t N>
std::optional<Enum> named(const std::array<const char*, N>& names, std::string_view name) noexcept {
  const auto index = index_of(names, name);
  if (!index) return std::nullopt;
  return static_cast<Enum>(*index);
}

/// "'a', 'b' and 3 more": the first 12 names in quotes.
std::string listed(std::span<const std::string> names);

/// "0-2, 5"; of more than 8 ranges the first ones, and how many numbers there are in all.
std::string ranges_text(std::span<const int> numbers);

/// "rank 3", "ranks 0-2, 5".
std::string ranks_text(std::span<const int> ranks);

/// `text` for a terminal: control characters other than newlines as '?', and the middle of lines of
/// more than `max_line` bytes left out, with their length. UTF-8 stays as it is.
std::string presentable(std::string_view text, std::size_t max_line = 1000);

/// True if `text` is UTF-8, as JSON and TOML must be.
bool is_utf8(const std::string& text);

/// All of `text` as a number without a sign; nullopt for anything else, or more than 64 bits.
std::optional<std::uint64_t> whole_number(std::string_view text, int base = 10) noexcept;

/// All of `text` as a decimal number, infinities and NaN included; nullopt for anything else, or
/// out of range. T is float or double.
template <class T>
std::optional<T> number_in(std::string_view text) noexcept;

/// A whole number in [min, max]; `max` is at most 2^63 - 1, which is also TOML's limit.
///
/// Errors   throws ConfigError with the reason and the remedy; the caller adds the place.
std::uint64_t parse_count(std::string_view text, std::uint64_t min,
                          std::uint64_t max = std::numeric_limits<std::int64_t>::max());

/// The candidate with the fewest edits from `word`, in lower case: the likely intended word. At
/// most one edit for up to four letters, two for up to eight, else a third of the length. An edit
/// inserts, deletes or replaces a letter, or swaps two neighbours.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

/// The remedy for an unknown word: "did you mean 'guess'?"; without a guess, `otherwise`.
std::string did_you_mean(const std::optional<std::string>& guess,
                         const std::string& otherwise = "");

}  // namespace lockstep
