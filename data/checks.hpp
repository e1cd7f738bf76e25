// Checks that every source makes in the same words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "data/source.hpp"

namespace lockstep::data {

/// `options.limit`. Throws ConfigError where it is 0, or `options.classes` is below 1.
std::optional<std::uint64_t> checked_limit(const ReadOptions& options);

/// `label` as a class. Throws DataError that names `place` and the record unless it is in
/// [0, classes).
std::int32_t checked_label(std::int64_t label, int classes, std::uint64_t record,
                           const std::string& place);

/// a * b, or none where that does not fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) noexcept;

/// "28x28"; "1" for no dimensions.
std::string shape_text(std::span<const std::uint64_t> dims);

/// The file's name as every rank sees it, wherever it stands and however it is compressed.
std::string bare_name(const std::filesystem::path& path);

/// Throws std::out_of_range for an id that `source` does not hold, and std::invalid_argument where
/// there is room for other numbers of `features` or `labels` than Source::read says.
void check_read(const Source& source, std::span<const std::uint64_t> ids, std::size_t features,
                std::size_t labels);

/// The same for Source::read_bytes. Throws std::logic_error where features are no bytes.
void check_read_bytes(const Source& source, std::span<const std::uint64_t> ids,
                      std::size_t features, std::size_t labels);

}  // namespace lockstep::data
