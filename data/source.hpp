// Source: the interface of all record readers, with shared code for file formats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/file.hpp"

namespace lockstep::data {
// Scaling of stored values to features.

/// `divide_by`, or `otherwise` if not set. Throws ConfigError unless it is positive and finite.
float checked_divisor(std::optional<float> divide_by, float otherwise);

/// A table of float(v) / divisor for every byte v, computed in float32.
class ByteScale {
 public:
  /// Default 255. Throws ConfigError unless the divisor is positive and finite.
  explicit ByteScale(std::optional<float> divide_by);

  float divisor() const noexcept { return divisor_; }

  /// Writes one feature per byte; `features` is at least as long as `bytes`.
  void apply(std::span<const std::uint8_t> bytes, std::span<float> features) const noexcept;

 private:
  float divisor_;
  std::array<float, 256> table_{};
};

/// Divides each value, in float32.
void divide(std::span<float> values, float divisor) noexcept;

// File formats and their detection by file name.

class Source;
struct ReadOptions;

enum class Format : std::uint8_t { idx, csv, npy, tfrecord };

inline constexpr std::array all_formats{Format::idx, Format::csv, Format::npy, Format::tfrecord};

/// "idx", "csv", "npy", "tfrecord": the values of the setting `format`.
const char* name_of(Format format) noexcept;

/// The inverse of name_of; empty for any other name, such as auto.
std::optional<Format> format_named(std::string_view name) noexcept;

/// True if features and labels are in separate files, *images* and *labels*.
bool is_paired(Format format) noexcept;

/// The format indicated by a file name without `.gz`; empty if it is not a data file.
std::optional<Format> format_of_file(std::string_view name) noexcept;

/// A file of records, or a pair of files.
struct RecordFiles {
  std::filesystem::path records;  ///< of a pair: the images
  std::filesystem::path labels;   ///< of a pair: the labels; else empty
};

/// Opens `files`. Throws what the format's source throws.
std::unique_ptr<Source> open_files(Format format, const RecordFiles& files,
                                   const ReadOptions& options);

/// Read options, common to all formats.
struct ReadOptions {
  /// Use only the first `limit` records, before shuffling; none: all records.
  std::optional<std::uint64_t> limit;
  /// Divisor of the features, in float32; none: 255 for bytes, 1 for numbers.
  std::optional<float> divide_by;
  /// A label outside [0, classes) is a DataError.
  int classes = 10;
  /// Blocks of 4 KiB of each file that Source::identity() hashes; at least 2.
  std::uint64_t sampled_blocks = 64;
};

/// The stored element type of features.
enum class Element { byte, number };

/// Records in global order; each is a row of features and a label.
///
/// Created once per rank; not thread-safe. `identity()` is equal on ranks that opened equal data,
/// in any folder. A source has at least one record.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  /// At least 1.
  virtual std::uint64_t records() const noexcept = 0;

  /// Features per record.
  virtual std::size_t features() const noexcept = 0;

  /// The divisor of the features, in float32.
  virtual float divisor() const noexcept = 0;

  /// Records of each file in use, in global order; empty if the data does not come from files.
  /// Default: one file.
  virtual std::vector<std::uint64_t> file_records() const { return {records()}; }

  /// The stored element type: bytes (integers in [0, 255]) or arbitrary numbers.
  virtual Element element() const noexcept { return Element::number; }

  /// The shape of a record, whose product is features(): {rows, columns} or {rows, columns,
  /// channels} for images if the data gives it, else {features()}.
  virtual std::vector<std::uint64_t> shape() const { return {features()}; }

  /// Names of the features, in order, if the files contain them; else empty.
  virtual std::vector<std::string> columns() const { return {}; }

  /// Bytes of stored records fetched by read calls so far; excludes opening.
  virtual std::uint64_t bytes_read() const noexcept { return 0; }

  /// A text that identifies the data, for comparison between ranks.
  ///
  /// For files it covers name, number of records, shape, all labels, and a sample of the bytes
  /// (Content::add_sample), which bounds the time.
  virtual std::string identity() const = 0;

  /// Reads the records `ids`, in that order.
  ///
  /// Shapes   x [ids.size(), features()] row-major, divided by divisor(); labels [ids.size()].
  /// Errors   throws std::out_of_range for an id outside [0, records()); std::invalid_argument for
  ///          other shapes; DataError if reading fails or the file has changed since it was opened.
  /// Ranks    local.
  virtual void read(std::span<const std::uint64_t> ids, std::span<float> x,
                    std::span<std::int32_t> labels) = 0;

  /// Like read(), but returns features as stored: undivided bytes. float(byte) / divisor(), in
  /// float32, equals the result of read() bit for bit.
  ///
  /// Errors   throws std::logic_error unless element() is Element::byte and the source overrides
  ///          this (all byte sources in data/ do); else what read() throws.
  virtual void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                          std::span<std::int32_t> labels);
};

/// The two parts of a data set. The values are DrawingId::part.
enum class Part : std::uint8_t { train = 0, test = 1 };

/// A training set and a test set with the same number of features.
struct DataSet {
  std::unique_ptr<Source> train;
  std::unique_ptr<Source> test;
};

/// Options of the two parts: limits and shared options.
struct DataSetOptions {
  std::optional<std::uint64_t> train_limit = {};  ///< see ReadOptions, also for the next ones
  std::optional<std::uint64_t> test_limit = {};
  std::optional<float> divide_by = {};
  int classes = 10;
  std::optional<Format> format = {};  ///< none: detected from the file names

  /// The options for reading one part.
  ReadOptions of(Part part) const noexcept {
    return {part == Part::train ? train_limit : test_limit, divide_by, classes};
  }
};

/// Opens `synthetic`, the data folder at `path`, or the files that the pattern `path` matches (see
/// data/README.md).
///
/// A folder named synthetic is opened as `./synthetic`. A pattern contains `*`, `?` or `[`, and no
/// file has exactly that name.
///
/// Errors   throws DataError with file, location and remedy; ConfigError for options that cannot
///          be applied.
/// Ranks    local; every rank opens the same path.
DataSet open_data_set(const std::string& path, const DataSetOptions& options);

/// Opens only one part. Ignores the files of the other part; they need not exist.
///
/// Errors   same as open_data_set.
/// Ranks    local.
std::unique_ptr<Source> open_data_part(const std::string& path, Part part,
                                       const DataSetOptions& options);

/// Base class for formats with consecutive records in one file. All labels are kept in memory;
/// features are read on request, by position.
///
/// The constructor of a format calls `describe` and fills `labels_`; `offset` then gives the
/// position of a record, and `decode` its features. Local; not thread-safe.
class StoredSource : public Source {
 public:
  std::uint64_t records() const noexcept override { return labels_.size(); }
  std::size_t features() const noexcept override { return features_; }
  float divisor() const noexcept override { return divisor_; }
  Element element() const noexcept override { return element_; }
  std::vector<std::uint64_t> shape() const override { return shape_; }
  std::uint64_t bytes_read() const noexcept override { return bytes_read_; }
  std::string identity() const override;
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

  const std::filesystem::path& path() const noexcept { return content_.path(); }

 protected:
  /// `format` is the prefix of identity(). Throws what Content, checked_limit and checked_divisor
  /// throw.
  StoredSource(const char* format, std::filesystem::path path, const ReadOptions& options);

  /// The begin of record `index`; for index records(), the end of the last record.
  virtual std::uint64_t offset(std::uint64_t index) const noexcept = 0;

  /// Decodes `bytes`, the records [first, first + count), and writes their divided features to `x`.
  virtual void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                      std::span<float> x) = 0;

  /// Like decode(), but undivided; called for byte formats only. Default: `bytes` contains only
  /// features.
  virtual void decode_bytes(std::uint64_t first, std::size_t count,
                            std::span<const std::uint8_t> bytes, std::span<std::uint8_t> x);

  /// Sets element type and shape of a record. The product of `shape` must not overflow.
  void describe(Element element, std::vector<std::uint64_t> shape);

  void scale_bytes(std::span<const std::uint8_t> bytes, std::span<float> x) const noexcept;
  void divide(std::span<float> x) const noexcept;

  Content content_;
  std::optional<std::uint64_t> limit_;
  int classes_;
  std::uint64_t sampled_blocks_;
  std::string labels_name_;  // name of the labels file of a pair
  std::vector<std::int32_t> labels_;

 private:
  /// Reads the labels of the records `ids`, and their bytes by runs of consecutive ids. Calls
  /// `take(row, first, run, bytes)` for ids[row + i] == first + i, i < run.
  template <class Take>
  void each_run(std::span<const std::uint64_t> ids, std::span<std::int32_t> labels, Take take);

  const char* format_;
  std::optional<float> divide_by_;
  std::optional<ByteScale> scale_;  // for bytes
  Element element_ = Element::number;
  std::vector<std::uint64_t> shape_;
  std::size_t features_ = 0;
  float divisor_ = 1.0F;
  std::uint64_t bytes_read_ = 0;
  std::vector<std::uint8_t> scratch_;
};

// Concatenation of sources.

/// Concatenates sources: record 0 of the second follows the last record of the first.
///
/// Owns the sources. Local; not thread-safe.
class ConcatSource final : public Source {
 public:
  /// Throws std::invalid_argument for no parts, or if the parts differ in number of features or in
  /// divisor.
  explicit ConcatSource(std::vector<std::unique_ptr<Source>> parts);

  std::uint64_t records() const noexcept override { return ends_.back(); }
  std::size_t features() const noexcept override { return parts_.front()->features(); }
  float divisor() const noexcept override { return parts_.front()->divisor(); }
  std::vector<std::uint64_t> file_records() const override;
  /// Element::byte if all parts store bytes.
  Element element() const noexcept override { return element_; }
  std::vector<std::uint64_t> shape() const override { return parts_.front()->shape(); }
  std::vector<std::string> columns() const override { return parts_.front()->columns(); }
  std::uint64_t bytes_read() const noexcept override;
  std::string identity() const override;
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  /// Calls `read(part, row, count)` for each run ids[row, row + count) within one part, with the
  /// run's ids relative to that part in local_ids_.
  template <class Read>
  void each_run(std::span<const std::uint64_t> ids, Read read);

  Element element_ = Element::byte;
  std::vector<std::unique_ptr<Source>> parts_;
  std::vector<std::uint64_t> ends_;  // ends_[i]: records of parts 0 to i, inclusive
  std::vector<std::uint64_t> local_ids_;
};

// Shared checks, with the same messages for every source.

/// `options.limit`. Throws ConfigError if it is 0, or `options.classes` is below 1.
std::optional<std::uint64_t> checked_limit(const ReadOptions& options);

/// `label` as a class. Throws DataError, with `place` and the record, unless it is in [0, classes).
std::int32_t checked_label(std::int64_t label, int classes, std::uint64_t record,
                           const std::string& place);

/// a * b; empty on overflow.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) noexcept;

/// "28x28"; "1" for no dimensions.
std::string shape_text(std::span<const std::uint64_t> dims);

/// The file name without folder and `.gz`: equal on all ranks.
std::string bare_name(const std::filesystem::path& path);

/// Throws std::out_of_range for an id outside [0, source.records()), and std::invalid_argument if
/// the buffer sizes `features` and `labels` are not those that Source::read requires.
void check_read(const Source& source, std::span<const std::uint64_t> ids, std::size_t features,
                std::size_t labels);

/// The same for Source::read_bytes. Throws std::logic_error unless features are bytes.
void check_read_bytes(const Source& source, std::span<const std::uint64_t> ids,
                      std::size_t features, std::size_t labels);

}  // namespace lockstep::data
