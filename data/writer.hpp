// Writes records in any format that can be read, into one file (or pair) or many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/file.hpp"
#include "data/source.hpp"

namespace lockstep::data {
class FormatWriter;

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

/// Files that lack nothing but their names; without those, nothing of them remains.
class FinishedFiles {
 public:
  explicit FinishedFiles(std::vector<std::unique_ptr<FormatWriter>> writers);
  FinishedFiles(FinishedFiles&& other) noexcept;
  FinishedFiles& operator=(FinishedFiles&&) = delete;
  ~FinishedFiles();

  /// Gives them their names, one after the other. Throws OutputError.
  void publish();

 private:
  std::vector<std::unique_ptr<FormatWriter>> writers_;
};

/// Writes `shape.records` records, asked for in order, each file a contiguous run of them; runs
/// differ by at most one record.
///
/// Formats  bytes stay bytes in IDX, NPY (|u1) and TFRecord (one bytes value); numbers are float32
///          in NPY and TFRecord. CSV writes the shortest decimal text that reads back as the same
///          float32. IDX holds nothing but whole numbers of 0 to 255.
/// Streams  memory for about 1 MB. All files are complete and on the disk when this returns, and
///          take their names in FinishedFiles::publish; where anything fails before that, whatever
///          `record` throws included, no name is touched and nothing else remains.
/// Errors   throws OutputError with the path and the system's reason; ConfigError for what the
///          format cannot hold, and what require_files refuses.
FinishedFiles finish_records(const Target& target, const RecordShape& shape,
                             const RecordAt& record);

/// The same, and gives the files their names.
void write_records(const Target& target, const RecordShape& shape, const RecordAt& record);

/// Throws ConfigError for no files, or more of them than records.
void require_files(const Target& target, std::uint64_t records);

/// A file that is being written, a megabyte at a time.
class BufferedFile {
 public:
  explicit BufferedFile(const std::filesystem::path& path) : file_(path) {}

  std::vector<std::uint8_t>& buffer() noexcept { return buffer_; }

  /// Writes what is buffered, once there is enough of it. Throws OutputError, as all members do.
  void flush_some();

  /// Brings everything to the disk, and closes.
  void finish();
  void publish() { file_.publish(); }

 private:
  NewFile file_;
  std::vector<std::uint8_t> buffer_;
};

/// Writes one file or pair: a header where the format has one, then record after record.
class FormatWriter {
 public:
  /// `shape.records` is what this file will hold.
  FormatWriter(const RecordFiles& files, RecordShape shape);
  FormatWriter(const FormatWriter&) = delete;
  FormatWriter& operator=(const FormatWriter&) = delete;
  virtual ~FormatWriter() = default;

  /// Throws ConfigError where the format cannot hold the record, which is number `index`.
  virtual void add(std::uint64_t index, std::span<const float> features, std::int32_t label) = 0;

  void flush_some();
  void finish();
  void publish();

 protected:
  const RecordShape& shape() const noexcept { return shape_; }
  std::vector<std::uint8_t>& records() noexcept { return records_.buffer(); }
  std::vector<std::uint8_t>& labels() noexcept { return labels_->buffer(); }

 private:
  RecordShape shape_;
  BufferedFile records_;
  std::optional<BufferedFile> labels_;
};

/// Throws ConfigError for a shape that the format cannot hold.
std::unique_ptr<FormatWriter> new_format_writer(Format format, const RecordFiles& files,
                                                const RecordShape& shape);

}  // namespace lockstep::data
