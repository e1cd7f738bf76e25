// Writes records in any format that can be read, into one file (or pair) or many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/format.hpp"
#include "data/source.hpp"

namespace lockstep::data {

/// What the records are, before any division.
struct RecordShape {
  std::uint64_t records = 0;
  std::vector<std::uint64_t> dims;  ///< of one record: {28, 28}
  Element element = Element::byte;

  std::uint64_t features() const noexcept;
};

/// Where records go: FOLDER/train.csv, or FOLDER/train-00000-of-00016.csv and so on.
struct Target {
  std::filesystem::path folder;
  std::string stem;  ///< "train", "test", "t10k"
  Format format = Format::idx;
  std::uint64_t files = 1;
};

/// The files of a target, in the order of their records.
std::vector<RecordFiles> files_of(const Target& target);

/// Fills `features` with record `index`, undivided, and returns its label.
using RecordAt = std::function<std::int32_t(std::uint64_t index, std::span<float> features)>;

/// Writes `shape.records` records, asked for in order, each file a contiguous run of them; runs
/// differ by at most one record.
///
/// Formats  bytes stay bytes in IDX, NPY (|u1) and TFRecord (one bytes value); numbers are float32
///          in NPY and TFRecord. CSV writes the shortest decimal text that reads back as the same
///          float32. IDX holds nothing but whole numbers of 0 to 255.
/// Streams  memory for about 1 MB. All files are complete and on the disk before the first one
///          takes its name; where anything fails, whatever `record` throws included, no name is
///          touched and nothing else remains.
/// Errors   throws OutputError with the path and the system's reason; ConfigError for what the
///          format cannot hold, more files than records, or no records.
void write_records(const Target& target, const RecordShape& shape, const RecordAt& record);

}  // namespace lockstep::data
