// Source: the interface of all record readers; the options of files and data sets, and functions
// that open them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/data/table.hpp"

namespace lockstep::data {
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
  std::string records;  ///< of a pair: the images
  std::string labels;   ///< of a pair: the labels; else empty
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

struct PictureSchema;

/// How pictures are read. What is not given is found in the training set.
struct PictureOptions {
  std::optional<ImageSize> size = {};        ///< nullopt: that of all pictures, which must be equal
  std::optional<std::size_t> channels = {};  ///< 1: gray, 3: RGB; nullopt: 1 if all are gray
  /// To which paths in a table are relative; nullopt: its folder.
  std::optional<std::string> folder = {};
};

/// Consecutive records of a table in one file.
struct CsvPart {
  std::uint64_t begin = 0;  ///< the file offset of its first record
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();  ///< after its last one
  std::uint64_t line = 1;                                         ///< of its first record
};

/// The ranks of a job that open the same data, in the same order and with the same options: each
/// scans a part of a large table, and they exchange what they found. What is found, and every
/// error, is what one rank alone finds.
struct OpeningRanks {
  /// The texts of all ranks, of any bytes, in rank order, valid until the next call; nullopt, on
  /// all ranks and for good, once one of them has failed or ended. See comm::Exchange. Collective.
  using Gather = std::function<std::optional<std::vector<std::string_view>>(std::string_view mine)>;

  int rank = 0;
  int ranks = 1;
  Gather gather = {};
  std::uint64_t least_bytes = std::uint64_t{1} << 20;   ///< of a table: a smaller one is not shared
  mutable std::map<std::uint64_t, CsvPart> parts = {};  ///< this rank's, by a hash of path and file
};

/// Read options, common to all formats.
struct ReadOptions {
  /// Use only the first `limit` records, before shuffling; none: all records.
  std::optional<std::uint64_t> limit;
  /// Divisor of the features, in float32; none: 255 for bytes, 1 for numbers.
  std::optional<float> divide_by;
  /// A label outside [0, classes) is a DataError. nullopt: the greatest label + 1, at most
  /// max_found_classes.
  std::optional<int> classes = 10;
  /// Blocks of 4 KiB of each file that Source::identity() hashes; at least 2.
  std::uint64_t sampled_blocks = 64;
  /// How a table is read; nullopt: TableOptions(). CSV uses the separator only: all else is in
  /// `schema`.
  std::optional<TableOptions> table = {};
  /// Of CSV: what the columns mean, which replaces `classes`. Null: `label`, and numbers.
  std::shared_ptr<const TableSchema> schema = nullptr;
  /// Of CSV without a table: the features that a network takes; another number is a DataError.
  std::optional<std::size_t> features = {};
  /// False: a CSV file with a table, and a folder of pictures, may lack labels, which are 0 then;
  /// those of IDX and NPY are not read, and all are 0.
  bool needs_labels = true;
  PictureOptions pictures = {};
  /// Size, channels and classes of pictures, which replace `pictures` and `classes`; null: found.
  std::shared_ptr<const PictureSchema> picture_schema = nullptr;
  /// A picture of another size than that of `picture_schema` is a DataError; false: it is resized.
  bool exact_size = false;
  int threads = 1;  ///< that decode pictures; at least 1
  /// The ranks that open a table together, a collective call; null: this rank opens it alone. Used
  /// only while the table is opened.
  const OpeningRanks* ranks = nullptr;
};

/// The most classes that are taken from the labels: more are given by ReadOptions::classes.
inline constexpr int max_found_classes = 65'536;

/// The stored element type of features.
enum class Element { byte, number };

/// Records in global order; each is a row of features and a label.
///
/// Created once per rank. Functions that read are not thread-safe: BatchReader, and data sets of
/// from_source(), hold reading() for each call, so that any number of them may read from one
/// source. `identity()` is equal on ranks that opened equal data, in any folder. A source has at
/// least one record.
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

  /// Where record `id` is stored, for messages: "FILE: record 17"; default: "record 17".
  virtual std::string place_of(std::uint64_t id) const { return "record " + std::to_string(id); }

  /// What the columns mean, if the records come from a table; else null.
  virtual std::shared_ptr<const TableSchema> table() const { return nullptr; }

  /// Size, channels and classes, if the records are pictures; else null.
  virtual std::shared_ptr<const PictureSchema> pictures() const { return nullptr; }

  /// Replaces table() by `table`, the same columns with means and deviations. Only for sources with
  /// a table.
  virtual void set_moments(const std::shared_ptr<const TableSchema>& /*table*/) {}

  /// What was unusual when the data was opened, for the user. Default: nothing.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// Bytes of stored records fetched by read calls so far; excludes opening.
  virtual std::uint64_t bytes_read() const noexcept { return 0; }

  /// A text that identifies the data, for comparison between ranks.
  ///
  /// For files it covers name, number of records, shape, all labels, and a sample of the bytes
  /// of the files (ReadOptions::sampled_blocks), which bounds the time.
  virtual std::string identity() const = 0;

  /// Reads the records `ids`, in that order.
  ///
  /// Shapes   x [ids.size(), features()] row-major, divided by divisor(); labels [ids.size()].
  /// Errors   throws std::out_of_range for an id outside [0, records()); std::invalid_argument for
  ///          other shapes; DataError if reading fails, as where a file has become shorter.
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

  /// Held during each read, where several readers share the source.
  std::mutex& reading() noexcept { return reading_; }

 private:
  std::mutex reading_;
};

/// The two parts of a data set. Built-in drawings are functions of these values.
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
  std::optional<std::size_t> features = {};
  PictureOptions pictures = {};
  std::shared_ptr<const PictureSchema> picture_schema = nullptr;
  int threads = 1;
  const OpeningRanks* ranks = nullptr;
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
    return {.limit = part == Part::train ? train_limit : test_limit,
            .divide_by = divide_by,
            .classes = classes,
            .table = table,
            .schema = schema,
            .features = features,
            .needs_labels = needs_labels,
            .pictures = pictures,
            .picture_schema = picture_schema,
            .threads = threads,
            .ranks = ranks};
  }
};

/// Opens the built-in data set `path` ("synthetic", "synthetic-rgb"), the data folder at `path`,
/// the table in the file `path`, or the files that the pattern `path` matches (see data/README.md).
///
/// A folder named synthetic is opened as `./synthetic`. A pattern contains `*`, `?` or `[`, and no
/// file has exactly that name.
///
/// Errors   throws DataError with file, location and remedy; ConfigError for options that cannot
///          be applied.
/// Ranks    local, and every rank opens the same path; collective with `options.ranks`.
DataSet open_data_set(const std::string& path, const DataSetOptions& options);

/// The number of records of each label from 0 to the greatest that occurs; empty if labels are not
/// in memory, or if there are values to predict. Local.
std::vector<std::uint64_t> label_counts(const Source& source);

/// Opens only one part. Ignores the files of the other part; they need not exist. Without
/// `test_split` all records of a single file are this part.
///
/// Errors   same as open_data_set.
/// Ranks    same as open_data_set.
std::unique_ptr<Source> open_data_part(const std::string& path, Part part,
                                       const DataSetOptions& options);

// Features by a specification, as tf.io.parse_single_example reads them.

/// The type of a feature's list: tf.float32, tf.int64 or tf.string.
enum class FeatureType : std::uint8_t { float32, int64, bytes };

/// The values of a feature, in the order of FeatureType.
using FeatureValues =
    std::variant<std::vector<float>, std::vector<std::int64_t>, std::vector<std::string>>;

/// A feature of fixed shape, {} for one value: tf.io.FixedLenFeature; or of any number of values:
/// tf.io.VarLenFeature.
struct FeatureSpec {
  FeatureType type = FeatureType::float32;
  std::vector<std::size_t> shape = {};
  /// For examples without the feature: one value, repeated, or one for each place of the shape.
  std::optional<FeatureValues> default_value = std::nullopt;
  /// A list of any length, [n]; 0 for examples without the feature. It has no shape and no default
  /// value. Give all lists of a batch one length, by map, before batch.
  bool any_length = false;
};

/// The features to read, by name; an example's others are ignored.
///
///   {{"image", {FeatureType::float32, {28, 28}}},
///    {"label", {FeatureType::int64}},
///    {"weight", {FeatureType::float32, {}, std::vector<float>{1}}},
///    {"words", {.type = FeatureType::bytes, .any_length = true}}}
using FeatureSpecs = std::map<std::string, FeatureSpec>;

}  // namespace lockstep::data
