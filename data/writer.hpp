// Writes records in any supported format, to one or more files (or pairs).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/files.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
/// True for idx, csv, npy and tfrecord; the others are only read.
constexpr bool is_writable(Format format) noexcept { return format <= Format::tfrecord; }

/// Number and shape of the records to write; features are undivided.
struct RecordShape {
  std::uint64_t records = 0;
  std::vector<std::uint64_t> dims;  ///< shape of one record, e.g. {28, 28}
  Element element = Element::byte;

  std::uint64_t features() const noexcept;
};

/// Output files: FOLDER/train.csv, or FOLDER/train-00000-of-00016.csv and so on.
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

/// Complete files under temporary names; the destructor deletes them unless published.
class FinishedFiles {
 public:
  explicit FinishedFiles(std::vector<std::unique_ptr<NewFile>> files) : files_(std::move(files)) {}

  /// Renames the files to their final names, one by one. Throws OutputError.
  void publish();

 private:
  std::vector<std::unique_ptr<NewFile>> files_;
};

/// Writes `shape.records` records. Calls `record` in order; each file holds a contiguous run, and
/// runs differ by at most one record.
///
/// Formats  bytes stay bytes in IDX, NPY (|u1) and TFRecord (one bytes value); numbers are float32
///          in NPY and TFRecord. CSV writes the shortest decimal text that reads back as the same
///          float32. IDX can store only integers of 0 to 255.
/// Streams  holds about 1 MB and a few records for the files that are being written, for any number
///          of `files`. On return all are complete and synced to disk; FinishedFiles::publish
///          renames them. On an earlier failure, including exceptions of `record`, existing files
///          are unchanged and temporary files are deleted.
/// Errors   throws OutputError with the path and the system's reason; ConfigError for records that
///          the format cannot store, and what require_files throws.
FinishedFiles finish_records(const Target& target, const RecordShape& shape,
                             const RecordAt& record);

/// The fields of record `index` of a table, valid until the next call.
using TextsAt = std::function<const std::vector<std::string>&(std::uint64_t index)>;

/// Like finish_records(), but writes texts; `target.format` must be csv. `header`: the first line
/// of each file; empty: there is none.
FinishedFiles finish_texts(const Target& target, std::uint64_t records,
                           const std::vector<std::string>& header, const TextsAt& record);

/// Throws ConfigError for no files, or more files than records.
void require_files(const Target& target, std::uint64_t records);

}  // namespace lockstep::data
