// What every reader of records offers, whatever the format.
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

#include "data/file.hpp"

namespace lockstep::data {
// From stored bytes to features.

/// `divide_by`, or `otherwise` where there is none. Throws ConfigError unless it is positive and
/// finite.
float checked_divisor(std::optional<float> divide_by, float otherwise);

/// float(v) / divisor for every byte v, divided once, in float32.
class ByteScale {
 public:
  /// None means 255. Throws ConfigError unless the divisor is positive and finite.
  explicit ByteScale(std::optional<float> divide_by);

  float divisor() const noexcept { return divisor_; }

  /// Writes one feature a byte; `features` is at least as long as `bytes`.
  void apply(std::span<const std::uint8_t> bytes, std::span<float> features) const noexcept;

 private:
  float divisor_;
  std::array<float, 256> table_{};
};

/// Divides each value, in float32.
void divide(std::span<float> values, float divisor) noexcept;

// The formats that files of records may have, and how their names are told apart.

class Source;
struct ReadOptions;

enum class Format : std::uint8_t { idx, csv, npy, tfrecord };

inline constexpr std::array all_formats{Format::idx, Format::csv, Format::npy, Format::tfrecord};

/// "idx", "csv", "npy", "tfrecord": as the setting `format` has it.
const char* name_of(Format format) noexcept;

/// The format of that name; none for any other name, such as auto.
std::optional<Format> format_named(std::string_view name) noexcept;

/// Whether features and labels stand in two files, *images* and *labels*.
bool is_paired(Format format) noexcept;

/// The format that a file name, without `.gz`, indicates; none for a file that is no data.
std::optional<Format> format_of_file(std::string_view name) noexcept;

/// The files that hold one run of records.
struct RecordFiles {
  std::filesystem::path records;  ///< or the images of a pair
  std::filesystem::path labels;   ///< of a pair
};

/// Opens them. Throws what the format's source throws.
std::unique_ptr<Source> open_files(Format format, const RecordFiles& files,
                                   const ReadOptions& options);

/// How records are read; the same for every format.
struct ReadOptions {
  /// The first N records are used, before any shuffling; none: all of them.
  std::optional<std::uint64_t> limit;
  /// Features are divided by this in float32; none: 255 for bytes, 1 for numbers.
  std::optional<float> divide_by;
  /// Labels outside [0, classes) are bad data.
  int classes = 10;
  /// Blocks of 4 KiB of each file that Source::identity() hashes; at least 2.
  std::uint64_t sampled_blocks = 64;
};

/// What a data set's features are, as they are stored.
enum class Element { byte, number };

/// Records in global order; each one is a row of features and a label.
///
/// Made once per rank; not thread-safe. Two ranks that opened the same data have the same
/// `identity()`, wherever their copies stand. A source never holds fewer than one record.
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

  /// What the features were divided by, in float32.
  virtual float divisor() const noexcept = 0;

  /// Records of each file in use, in global order; empty where the data does not come from files.
  /// Unless overridden, the source is one file.
  virtual std::vector<std::uint64_t> file_records() const { return {records()}; }

  /// Whether features are stored as bytes, whole numbers in [0, 255], or as any numbers.
  virtual Element element() const noexcept { return Element::number; }

  /// How a record's features are arranged: {rows, columns} or {rows, columns, channels} for
  /// images, as far as the data says so. Their product is features().
  virtual std::vector<std::uint64_t> shape() const { return {features()}; }

  /// Names of the features, in their order, where files give them; else empty.
  virtual std::vector<std::string> columns() const { return {}; }

  /// Bytes of stored records that reading has fetched so far; what opening took does not count.
  virtual std::uint64_t bytes_read() const noexcept { return 0; }

  /// What distinguishes this data from other data, in words: compared between ranks.
  ///
  /// Files are told apart by their names, number of records, shape, all labels, and a sample of
  /// their bytes (Content::add_sample), so that it takes a bounded time.
  virtual std::string identity() const = 0;

  /// Reads the records `ids`, in that order.
  ///
  /// Shapes   x [ids.size(), features()] row-major, divided already; labels [ids.size()].
  /// Errors   throws std::out_of_range for an id outside [0, records()); std::invalid_argument for
  ///          other shapes; DataError where the medium fails or has changed since it was opened.
  /// Ranks    local.
  virtual void read(std::span<const std::uint64_t> ids, std::span<float> x,
                    std::span<std::int32_t> labels) = 0;

  /// As read(), with the features as they are stored: bytes, undivided. float(byte) / divisor(), in
  /// float32, is bit for bit what read() gives.
  ///
  /// Errors   throws std::logic_error unless element() is Element::byte and the source overrides
  ///          this, as all sources of bytes in data/ do; else what read() throws.
  virtual void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                          std::span<std::int32_t> labels);
};

/// A data set's two parts. The numbers are those of the built-in digits.
enum class Part : std::uint8_t { train = 0, test = 1 };

/// A training set and a test set with the same number of features.
struct DataSet {
  std::unique_ptr<Source> train;
  std::unique_ptr<Source> test;
};

/// Limits of the two parts, and what they share.
struct DataSetOptions {
  std::optional<std::uint64_t> train_limit = {};  ///< see ReadOptions, also for what follows
  std::optional<std::uint64_t> test_limit = {};
  std::optional<float> divide_by = {};
  int classes = 10;
  std::optional<Format> format = {};  ///< none: the one whose files are there

  /// What one part is read with.
  ReadOptions of(Part part) const noexcept {
    return {part == Part::train ? train_limit : test_limit, divide_by, classes};
  }
};

/// Opens `synthetic`, the data folder at `path`, or the files that the pattern `path` matches (see
/// data/README.md).
///
/// A folder of that name is `./synthetic`. A pattern holds `*`, `?` or `[` and names nothing
/// itself.
///
/// Errors   throws DataError that names file, place and remedy; ConfigError for options that
///          cannot be honoured.
/// Ranks    local; every rank opens the same path.
DataSet open_data_set(const std::string& path, const DataSetOptions& options);

/// Opens one part of it alone. Files of the other part need not be there, and are not looked at.
///
/// Errors   as open_data_set.
/// Ranks    local.
std::unique_ptr<Source> open_data_part(const std::string& path, Part part,
                                       const DataSetOptions& options);

/// Records that stand one after the other in one file, read by position: labels are kept in memory
/// from the start, features are read when they are asked for, and no others.
///
/// A format's constructor calls `describe` and fills `labels_`; then `offset` and `decode` say
/// where records are and what they mean. Local; not thread-safe.
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
  /// `format` begins the identity. Throws what Content, checked_limit and checked_divisor throw.
  StoredSource(const char* format, std::filesystem::path path, const ReadOptions& options);

  /// Where record `index` begins; for records(), where the last one ends.
  virtual std::uint64_t offset(std::uint64_t index) const noexcept = 0;

  /// Features of `count` records from `first` on, whose bytes are `bytes`, into `x`, divided.
  virtual void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                      std::span<float> x) = 0;

  /// The same features as stored; asked of byte formats alone. Unless overridden, `bytes` are
  /// features and nothing else.
  virtual void decode_bytes(std::uint64_t first, std::size_t count,
                            std::span<const std::uint8_t> bytes, std::span<std::uint8_t> x);

  /// What the records are. `shape` has a product that fits.
  void describe(Element element, std::vector<std::uint64_t> shape);

  void scale_bytes(std::span<const std::uint8_t> bytes, std::span<float> x) const noexcept;
  void divide(std::span<float> x) const noexcept;

  Content content_;
  std::optional<std::uint64_t> limit_;
  int classes_;
  std::uint64_t sampled_blocks_;
  std::string labels_name_;  // of a second file, where there is one
  std::vector<std::int32_t> labels_;

 private:
  /// Reads the records `ids`: their labels, and run by run their bytes. Calls `take(row, first,
  /// run, bytes)` for ids[row] == first and those after it that follow one another.
  template <class Take>
  void each_run(std::span<const std::uint64_t> ids, std::span<std::int32_t> labels, Take take);

  const char* format_;
  std::optional<float> divide_by_;
  std::optional<ByteScale> scale_;  // of bytes
  Element element_ = Element::number;
  std::vector<std::uint64_t> shape_;
  std::size_t features_ = 0;
  float divisor_ = 1.0F;
  std::uint64_t bytes_read_ = 0;
  std::vector<std::uint8_t> scratch_;
};

// Several sources one after the other.

/// Sources one after the other as one: record 0 of the second follows the last of the first.
///
/// Owns them. Local; not thread-safe.
class ConcatSource final : public Source {
 public:
  /// Throws std::invalid_argument for no parts, or parts with different numbers of features or
  /// different divisors.
  explicit ConcatSource(std::vector<std::unique_ptr<Source>> parts);

  std::uint64_t records() const noexcept override { return ends_.back(); }
  std::size_t features() const noexcept override { return parts_.front()->features(); }
  float divisor() const noexcept override { return parts_.front()->divisor(); }
  std::vector<std::uint64_t> file_records() const override;
  /// Bytes where all parts are.
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
  /// Calls `read(part, row, count)` for ids[row, row + count), which are local_ids_ of one part.
  template <class Read>
  void each_run(std::span<const std::uint64_t> ids, Read read);

  Element element_ = Element::byte;
  std::vector<std::unique_ptr<Source>> parts_;
  std::vector<std::uint64_t> ends_;  // ends_[i]: records of parts 0 to i
  std::vector<std::uint64_t> local_ids_;
};

// Checks that every source makes in the same words.

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
