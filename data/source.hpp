// Source: the interface of all record readers, with shared code for file formats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/file.hpp"
#include "lockstep/data/table.hpp"

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

enum class Format : std::uint8_t { idx, csv, npy, tfrecord, cifar, picture };

inline constexpr std::array all_formats{Format::idx,      Format::csv,   Format::npy,
                                        Format::tfrecord, Format::cifar, Format::picture};

/// "idx", "csv", ...: the values of the setting `format`.
const char* name_of(Format format) noexcept;

/// The inverse of name_of; empty for any other name, such as auto.
std::optional<Format> format_named(std::string_view name) noexcept;

/// True if features and labels are in separate files, *images* and *labels*.
bool is_paired(Format format) noexcept;

/// The format indicated by a file name without `.gz`; empty if it is not a data file.
std::optional<Format> format_of_file(std::string_view name) noexcept;

/// A file of records, a pair of files, or a folder of pictures.
struct RecordFiles {
  std::filesystem::path records;  ///< of a pair: the images
  std::filesystem::path labels;   ///< of a pair: the labels; else empty
};

/// Opens `files`. Throws what the format's source throws.
std::unique_ptr<Source> open_files(Format format, const RecordFiles& files,
                                   const ReadOptions& options);

/// Rows and columns of an image.
struct ImageSize {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;

  bool operator==(const ImageSize&) const = default;
};

struct PictureSchema;  // picture_source.hpp

/// How pictures are read. What is not given is found in the training set.
struct PictureOptions {
  std::optional<ImageSize> size = {};        ///< nullopt: that of all pictures, which must be equal
  std::optional<std::size_t> channels = {};  ///< 1: gray, 3: RGB; nullopt: 1 if all are gray
  std::optional<TableOptions> table = {};    ///< of a table that names pictures and their labels
  /// To which paths in a table are relative; nullopt: its folder.
  std::optional<std::filesystem::path> folder = {};
};

/// Read options, common to all formats.
struct ReadOptions {
  /// Use only the first `limit` records, before shuffling; none: all records.
  std::optional<std::uint64_t> limit;
  /// Divisor of the features, in float32; none: 255 for bytes, 1 for numbers.
  std::optional<float> divide_by;
  /// A label outside [0, classes) is a DataError. nullopt: as many as the labels say, at most
  /// max_found_classes.
  std::optional<int> classes = 10;
  /// Blocks of 4 KiB of each file that Source::identity() hashes; at least 2.
  std::uint64_t sampled_blocks = 64;
  /// Of CSV: what the columns mean, which replaces `classes`. Null: `label`, and numbers.
  std::shared_ptr<const TableSchema> table = nullptr;
  char separator = '\0';  ///< of CSV: see TableOptions
  /// False: a CSV file with a table, and a folder of pictures, may lack labels, which are 0 then.
  bool needs_labels = true;
  PictureOptions pictures = {};
  /// Size, channels and classes of pictures, which replace `pictures` and `classes`; null: found.
  std::shared_ptr<const PictureSchema> picture_schema = nullptr;
  /// A picture of another size than that of `picture_schema` is a DataError; false: it is resized.
  bool exact_size = false;
  int threads = 1;  ///< that decode pictures; at least 1
};

/// The most classes that are taken from the labels: more are given by ReadOptions::classes.
inline constexpr int max_found_classes = 65'536;

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

  /// The number of classes: that of ReadOptions, of the table, or the greatest label + 1; 0:
  /// unknown.
  virtual std::uint64_t classes() const noexcept { return 0; }

  /// The label of record `id`, if labels are in memory; else empty.
  virtual std::optional<std::int32_t> known_label(std::uint64_t /*id*/) const noexcept {
    return std::nullopt;
  }

  /// The number of values to predict for each record, which are in memory; 0: it has a label.
  virtual std::size_t targets() const noexcept { return 0; }

  /// Writes the values to predict of record `id` of [0, records()) to `values`, [targets()]:
  /// standardized, if the table has moments.
  virtual void target_values(std::uint64_t /*id*/, std::span<float> /*values*/) const noexcept {}

  /// True if records have weights of their own in losses, which are in memory.
  virtual bool has_weights() const noexcept { return false; }

  /// The weight of record `id`, finite and at least 0; 1 without weights.
  virtual float weight(std::uint64_t /*id*/) const noexcept { return 1; }

  /// Where record `id` has its label, for messages: "FILE: record 17".
  virtual std::string place_of(std::uint64_t id) const { return "record " + std::to_string(id); }

  /// What the columns mean, if the records come from a table; else null.
  virtual std::shared_ptr<const TableSchema> table() const { return nullptr; }

  /// Size, channels and classes, if the records are pictures; else null.
  virtual std::shared_ptr<const PictureSchema> pictures() const { return nullptr; }

  /// Replaces the table by the same with means and deviations. Only for sources with a table.
  virtual void set_moments(const std::shared_ptr<const TableSchema>& /*table*/) {}

  /// What was unusual when the data was opened, for the user. Default: nothing.
  virtual std::vector<std::string> warnings() const { return {}; }

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
  std::unique_ptr<Source> test;  ///< null: there is none, and DataSetOptions::may_lack_test
  std::unique_ptr<Source> validation = nullptr;  ///< null: DataSetOptions::validation is not given
};

/// Options of the two parts: limits and shared options.
struct DataSetOptions {
  std::optional<std::uint64_t> train_limit = {};  ///< see ReadOptions, also for the next ones
  std::optional<std::uint64_t> test_limit = {};
  std::optional<float> divide_by = {};
  std::optional<int> classes = 10;
  std::optional<Format> format = {};  ///< none: detected from the file names
  /// How CSV files are read; nullopt: with a column `label`, and numbers.
  std::optional<TableOptions> table = {};
  /// What their columns mean, if that is known; null: found in the training set.
  std::shared_ptr<const TableSchema> schema = nullptr;
  bool needs_labels = true;  ///< see ReadOptions, also for the next ones
  PictureOptions pictures = {};
  std::shared_ptr<const PictureSchema> picture_schema = nullptr;
  int threads = 1;
  /// The share of the training records that is the test set, in (0, 1); nullopt: it has files of
  /// its own.
  std::optional<double> test_split = {};
  /// The share of the training records, after limit and split, that is the validation set instead,
  /// in (0, 1); nullopt: none.
  std::optional<double> validation = {};
  std::uint64_t seed = 0;  ///< of split and validation set
  /// Without test files and split, DataSet::test is null; false: that is a DataError.
  bool may_lack_test = false;

  /// The options for reading one part.
  ReadOptions of(Part part) const {
    ReadOptions read = {.limit = part == Part::train ? train_limit : test_limit,
                        .divide_by = divide_by,
                        .classes = classes,
                        .table = schema,
                        .separator = table ? table->separator : '\0',
                        .needs_labels = needs_labels,
                        .pictures = pictures,
                        .picture_schema = picture_schema,
                        .threads = threads};
    if (table) read.pictures.table = table;
    return read;
  }
};

/// Opens the built-in data set `path` (synthetic.hpp), the data folder at `path`, the table in the
/// file `path`, or the files that the pattern `path` matches (see data/README.md).
///
/// A folder named synthetic is opened as `./synthetic`. A pattern contains `*`, `?` or `[`, and no
/// file has exactly that name.
///
/// Errors   throws DataError with file, location and remedy; ConfigError for options that cannot
///          be applied.
/// Ranks    local; every rank opens the same path.
DataSet open_data_set(const std::string& path, const DataSetOptions& options);

/// The number of records of each label, as far as the greatest; empty if labels are not in memory,
/// or if there are values to predict.
/// Local.
std::vector<std::uint64_t> label_counts(const Source& source);

/// Opens only one part. Ignores the files of the other part; they need not exist. Without
/// `test_split` all records of a single file are this part.
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
  std::uint64_t classes() const noexcept override;
  std::optional<std::int32_t> known_label(std::uint64_t id) const noexcept override {
    return labels_[id];
  }
  std::string place_of(std::uint64_t id) const override;
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

  /// Begins bytes_read() again: what was read before belongs to opening.
  void forget_bytes_read() noexcept { bytes_read_ = 0; }

  void scale_bytes(std::span<const std::uint8_t> bytes, std::span<float> x) const noexcept;
  void divide(std::span<float> x) const noexcept;

  Content content_;
  std::optional<std::uint64_t> limit_;
  std::optional<int> given_classes_;
  int classes_;  ///< those given, or the most that may be found
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
  std::uint64_t classes() const noexcept override;
  std::optional<std::int32_t> known_label(std::uint64_t id) const noexcept override;
  std::size_t targets() const noexcept override { return parts_.front()->targets(); }
  void target_values(std::uint64_t id, std::span<float> values) const noexcept override;
  bool has_weights() const noexcept override { return parts_.front()->has_weights(); }
  float weight(std::uint64_t id) const noexcept override {
    const auto [part, record] = part_of(id);
    return part->weight(record);
  }
  std::string place_of(std::uint64_t id) const override;
  std::shared_ptr<const TableSchema> table() const override { return parts_.front()->table(); }
  std::shared_ptr<const PictureSchema> pictures() const override {
    return parts_.front()->pictures();
  }
  void set_moments(const std::shared_ptr<const TableSchema>& table) override;
  std::vector<std::string> warnings() const override;
  std::uint64_t bytes_read() const noexcept override;
  std::string identity() const override;
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  /// The part with record `id`, and the record in that part.
  std::pair<const Source*, std::uint64_t> part_of(std::uint64_t id) const noexcept;

  /// Calls `read(part, row, count)` for each run ids[row, row + count) within one part, with the
  /// run's ids relative to that part in local_ids_.
  template <class Read>
  void each_run(std::span<const std::uint64_t> ids, Read read);

  Element element_ = Element::byte;
  std::vector<std::unique_ptr<Source>> parts_;
  std::vector<std::uint64_t> ends_;  // ends_[i]: records of parts 0 to i, inclusive
  std::vector<std::uint64_t> local_ids_;
};

// Division of one source in two parts.

/// What is taken from a training set.
enum class Split { test, validation };

/// The records of both parts of a split, in ascending order.
struct SplitRecords {
  std::vector<std::uint64_t> taken;
  std::vector<std::uint64_t> others;
};

/// Takes the records at the first ceil(share * records) positions of a random order, a function of
/// `split`, `seed` and `records`.
///
/// Errors   throws ConfigError unless `share` is in (0, 1) and both parts have a record.
/// Ranks    local.
SplitRecords split_records(std::uint64_t records, double share, std::uint64_t seed, Split split);

/// Some records of a source, of which others are read by another thread: reading locks.
///
/// Record i is record ids[i] of the whole source. Local.
class SubsetSource final : public Source {
 public:
  /// A source that several subsets share.
  struct Whole {
    std::unique_ptr<Source> source;
    std::mutex reading;
  };

  /// `ids` ascend; at least one. `name` tells the subset from others in identity().
  SubsetSource(std::shared_ptr<Whole> whole, std::vector<std::uint64_t> ids, std::string name);

  std::uint64_t records() const noexcept override { return ids_.size(); }
  std::size_t features() const noexcept override { return whole_->source->features(); }
  float divisor() const noexcept override { return whole_->source->divisor(); }
  std::vector<std::uint64_t> file_records() const override;
  Element element() const noexcept override { return whole_->source->element(); }
  std::vector<std::uint64_t> shape() const override { return whole_->source->shape(); }
  std::vector<std::string> columns() const override { return whole_->source->columns(); }
  std::uint64_t classes() const noexcept override { return whole_->source->classes(); }
  std::optional<std::int32_t> known_label(std::uint64_t id) const noexcept override {
    return whole_->source->known_label(ids_[id]);
  }
  std::size_t targets() const noexcept override { return whole_->source->targets(); }
  void target_values(std::uint64_t id, std::span<float> values) const noexcept override {
    whole_->source->target_values(ids_[id], values);
  }
  bool has_weights() const noexcept override { return whole_->source->has_weights(); }
  float weight(std::uint64_t id) const noexcept override {
    return whole_->source->weight(ids_[id]);
  }
  std::string place_of(std::uint64_t id) const override {
    return whole_->source->place_of(ids_[id]);
  }
  std::shared_ptr<const TableSchema> table() const override { return whole_->source->table(); }
  std::shared_ptr<const PictureSchema> pictures() const override {
    return whole_->source->pictures();
  }
  void set_moments(const std::shared_ptr<const TableSchema>& table) override {
    whole_->source->set_moments(table);
    bytes_read_ = 0;
  }
  std::vector<std::string> warnings() const override { return whole_->source->warnings(); }
  std::uint64_t bytes_read() const noexcept override { return bytes_read_; }
  std::string identity() const override { return name_ + " of " + whole_->source->identity(); }
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  /// Calls `read(whole, ids)` with the ids of the whole source, while no other subset reads.
  template <class Read>
  void read_whole(std::span<const std::uint64_t> ids, Read read);

  std::shared_ptr<Whole> whole_;
  std::vector<std::uint64_t> ids_;
  std::string name_;
  std::uint64_t bytes_read_ = 0;
  std::vector<std::uint64_t> asked_;
};

/// Moves the records of the validation set from set.train to set.validation, if `options` ask for
/// one. Throws what split_records() throws. Local.
void take_validation(DataSet& set, const DataSetOptions& options);

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
