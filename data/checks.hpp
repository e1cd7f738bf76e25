// Checks that every source makes in the same words.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/source.hpp"

namespace lockstep::data {

/// `options.limit`. Throws ConfigError where it is 0, or `options.classes` is below 1.
std::optional<std::uint64_t> checked_limit(const ReadOptions& options);

/// Throws std::out_of_range for an id that `source` does not hold, and std::invalid_argument where
/// `x` or `labels` has another length than Source::read says.
void check_read(const Source& source, std::span<const std::uint64_t> ids, std::span<float> x,
                std::span<std::int32_t> labels);

}  // namespace lockstep::data
