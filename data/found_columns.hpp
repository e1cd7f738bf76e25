// What is found in the columns of a table, in all files, or in a part of one (find_schema.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "lockstep/data/opening.hpp"

namespace lockstep::data {

/// Writes their number, and each.
template <class Texts>
void add_texts(const Texts& texts, Findings& findings) {
  findings.add(std::uint64_t{texts.size()});
  for (const std::string& text : texts) findings.add(std::string_view(text));
}

/// What is found in a column, in all files.
struct Found {
  std::uint64_t numbers = 0;
  std::uint64_t words = 0;
  bool has_long_word = false;
  std::set<std::string, std::less<>> texts;  // at most as many as may be categories, and one
  std::string place;                         // of the first word
  std::string first_word;

  void add_to(Findings& findings) const {
    findings.add(numbers);
    findings.add(words);
    findings.add(std::uint64_t{has_long_word});
    findings.add(std::string_view(place));
    findings.add(std::string_view(first_word));
    add_texts(texts, findings);
  }

  /// Adds what was found behind; `most`: of texts, beyond which one more is enough.
  void add(FindingsReader& findings, std::size_t most) {
    const bool has_word = words > 0;
    numbers += findings.number();
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
  std::string word = {};        // the first that is not a number
  std::string place_of_word = {};

  bool are_numbers() const noexcept { return word.empty(); }
  bool are_whole() const noexcept { return are_numbers() && fractions == 0; }
  bool are_flags() const noexcept { return are_whole() && least >= 0 && greatest <= 1; }
  bool is_full() const noexcept {
    return texts.size() > static_cast<std::size_t>(max_found_classes);
  }

  void add_to(Findings& findings) const {
    const std::array<std::int64_t, 2> range{least, greatest};
    findings.add(std::span<const std::int64_t>(range));
    findings.add(std::string_view(place_of_greatest));
    findings.add(floats);
    findings.add(fractions);
    findings.add(std::string_view(word));
    findings.add(std::string_view(place_of_word));
    add_texts(texts, findings);
  }

  /// Adds what was found behind.
  void add(FindingsReader& findings) {
    std::vector<std::int64_t> range;
    findings.append_to(range);
    least = std::min(least, range[0]);
    const std::string_view place = findings.text();
    if (range[1] > greatest) place_of_greatest = place;
    greatest = std::max(greatest, range[1]);
    floats += findings.number();
    fractions += findings.number();
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
