// The formats that files of records may have, and how their names are told apart.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

class Source;
struct ReadOptions;

enum class Format : std::uint8_t { idx, csv, npy, tfrecord };

inline constexpr std::array all_formats{Format::idx, Format::csv, Format::npy, Format::tfrecord};

/// "idx", "csv", "npy", "tfrecord": as --format says it.
const char* name_of(Format format) noexcept;

/// The format of that name; none for any other name, such as auto.
std::optional<Format> format_named(std::string_view name) noexcept;

/// Whether features and labels stand in two files, *images* and *labels*.
bool is_paired(Format format) noexcept;

/// The format that a file's name, without `.gz`, speaks of; none for a file that is no data.
std::optional<Format> format_of_file(std::string_view name) noexcept;

/// The files that hold one run of records.
struct RecordFiles {
  std::filesystem::path records;  ///< or the images of a pair
  std::filesystem::path labels;   ///< of a pair
};

/// Opens them. Throws what the format's source throws.
std::unique_ptr<Source> open_files(Format format, const RecordFiles& files,
                                   const ReadOptions& options);

}  // namespace lockstep::data
