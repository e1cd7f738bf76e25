#include "data/number_text.hpp"

#include <charconv>
#include <cmath>
#include <system_error>

namespace lockstep::data {
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

/// The usual pixel, faster than from_chars.
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
  if (error == std::errc::result_out_of_range) {  // too large, or so small that it is 0
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

std::string shown(std::string_view text) {
  constexpr std::size_t most = 32;
  std::string result;
  for (const char c : text.substr(0, most)) result += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > most ? result + "..." : result;
}

}  // namespace lockstep::data
