// Numbers as data files write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

/// The finite float32 nearest to the decimal text, or none. Blanks around it are ignored; what is
/// too small is 0.
std::optional<float> parse_float(std::string_view text) noexcept;

/// A whole number, or none.
std::optional<std::int64_t> parse_whole(std::string_view text) noexcept;

/// `text` as an error shows it: at most 32 bytes, anything unprintable as '?'.
std::string shown(std::string_view text);

}  // namespace lockstep::data
