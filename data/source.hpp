// What every reader of records offers, whatever the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/format.hpp"

namespace lockstep::data {

/// How records are read; the same for every format.
struct ReadOptions {
  /// The first N records are used, before any shuffling; none: all of them.
  std::optional<std::uint64_t> limit;
  /// Features are divided by this in float32; none: 255 for bytes, 1 for numbers.
  std::optional<float> divide_by;
  /// Labels outside [0, classes) are bad data.
  int classes = 10;
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

/// A data set's two parts.
enum class Part : std::uint8_t { train, test };

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

}  // namespace lockstep::data
