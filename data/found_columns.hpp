// What is found in the columns of a table, in all files, or in a part of one (find_schema.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "lockstep/base/packing.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/table.hpp"

namespace lockstep::data {

/// True for a number, or an infinity, that is no float32.
inline bool is_beyond_float32(const std::string& field) {
  double number = 0;
  const char* const end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, number);
  return error != std::errc::invalid_argument && stop == end && !std::isnan(number);
}

inline const char* why_no_number(const std::string& field) {
  return is_beyond_float32(field) ? " is beyond the numbers of float32" : " is not a number";
}

/// Throws DataError for a number with a decimal comma. `where` begins the message; `else_remedy`:
/// what to do if it is a word.
inline void refuse_decimal_comma(const std::string& where, const std::string& field,
                                 const std::string& else_remedy) {
  std::string number = field;
  const auto comma = number.find(',');
  if (comma == std::string::npos) return;
  number[comma] = '.';
  if (!parse_float(number)) return;
  const bool may_be_thousands = field.size() == comma + 4;
  throw DataError(
      where + in_quotes(field) +
          (may_be_thousands ? " has a comma, of thousands or decimals" : " has a decimal comma"),
      "write numbers with a decimal point" +
          std::string(may_be_thousands ? " and thousands without a comma" : "") +
          ": in pandas, to_csv(..., decimal='.')" +
          (may_be_thousands ? " of what read_csv(..., thousands=',') has read" : "") + "; " +
          else_remedy);
}

/// Writes their number, and each.
template <class Texts>
void add_texts(const Texts& texts, Packer& findings) {
  findings.add(std::uint64_t{texts.size()});
  for (const std::string& text : texts) findings.add(std::string_view(text));
}

/// Whether the numbers of a column differ, and whether they still do in float32.
struct Spread {
  std::string first;     // number; empty: none so far
  bool differs = false;  // in float32
  bool is_lost = false;  // some differ in double, from least_offset on

  void add(std::string_view text) {
    if (differs || text == first) return;
    if (first.empty()) {
      first = text;
    } else if (parse_float(text) != parse_float(first)) {
      differs = true;
    } else {
      const auto number = parse_double(text);
      is_lost = is_lost ||
                (number != parse_double(first) && std::abs(number.value_or(0)) >= least_offset);
    }
  }
};

/// What is found in a column, in all files.
struct Found {
  std::uint64_t numbers = 0;
  Spread spread;
  std::uint64_t words = 0;
  bool has_long_word = false;
  std::set<std::string, std::less<>> texts;  // at most as many as may be categories, and one
  std::string place;                         // of the first word
  std::string first_word;

  void add_to(Packer& findings) const {
    findings.add(numbers);
    findings.add(std::string_view(spread.first));
    findings.add(std::uint64_t{spread.differs});
    findings.add(std::uint64_t{spread.is_lost});
    findings.add(words);
    findings.add(std::uint64_t{has_long_word});
    findings.add(std::string_view(place));
    findings.add(std::string_view(first_word));
    add_texts(texts, findings);
  }

  /// Adds what was found in the next part of the file; keeps at most `most` + 1 texts.
  void add(Unpacker& findings, std::size_t most) {
    const bool has_word = words > 0;
    numbers += findings.number();
    if (const std::string_view number = findings.text(); !number.empty()) spread.add(number);
    spread.differs = findings.number() != 0 || spread.differs;
    spread.is_lost = findings.number() != 0 || spread.is_lost;
    words += findings.number();
    has_long_word = findings.number() != 0 || has_long_word;
    const std::string_view first_place = findings.text();
    const std::string_view word = findings.text();
    if (!has_word) {
      place = first_place;
      first_word = word;
    }
    for (std::uint64_t left = findings.number(); left > 0; --left) {
      const std::string_view text = findings.text();
      if (texts.size() <= most) texts.emplace(text);
    }
  }
};

/// What is found in a column to predict, in all files.
struct FoundLabels {
  std::size_t column = 0;
  std::unordered_set<std::string> texts = {};  // at most as many as may be classes, and one
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t greatest = std::numeric_limits<std::int64_t>::min();
  std::string place_of_greatest = {};
  std::uint64_t floats = 0;     // whole numbers that are written as floats
  std::uint64_t fractions = 0;  // numbers that are not whole
  std::uint64_t huge = 0;       // whole numbers of more than 64 bits
  std::string word = {};        // the first that is not a number
  std::string place_of_word = {};

  bool are_numbers() const noexcept { return word.empty(); }
  bool are_whole() const noexcept { return are_numbers() && fractions == 0 && huge == 0; }
  bool are_flags() const noexcept { return are_whole() && least >= 0 && greatest <= 1; }

  /// The texts of the classes.
  std::set<std::string> classes() const {
    std::set<std::string> classes;
    for (const std::string& text : texts) classes.insert(class_text(text, are_whole()));
    return classes;
  }

  bool is_full() const noexcept {
    return texts.size() > static_cast<std::size_t>(max_found_classes);
  }

  void add_to(Packer& findings) const {
    const std::array<std::int64_t, 2> range{least, greatest};
    findings.add(std::span<const std::int64_t>(range));
    findings.add(std::string_view(place_of_greatest));
    findings.add(floats);
    findings.add(fractions);
    findings.add(huge);
    findings.add(std::string_view(word));
    findings.add(std::string_view(place_of_word));
    add_texts(texts, findings);
  }

  /// Adds what was found in the next part of the file.
  void add(Unpacker& findings) {
    std::vector<std::int64_t> range;
    findings.append_to(range);
    least = std::min(least, range[0]);
    const std::string_view place = findings.text();
    if (range[1] > greatest) place_of_greatest = place;
    greatest = std::max(greatest, range[1]);
    floats += findings.number();
    fractions += findings.number();
    huge += findings.number();
    const std::string_view first_word = findings.text();
    const std::string_view place_of_first = findings.text();
    if (word.empty()) {
      word = first_word;
      place_of_word = place_of_first;
    }
    for (std::uint64_t left = findings.number(); left > 0; --left) {
      const std::string_view text = findings.text();
      if (!is_full()) texts.emplace(text);
    }
  }
};

}  // namespace lockstep::data
