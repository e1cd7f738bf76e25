// What sources of files share: scaling of stored values, sources of one file, of several, and of
// some records of another, and checks with the same messages.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/file.hpp"
#include "lockstep/data/source.hpp"

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

  /// Gives each of `records` records in the file, up to the limit, the label 0.
  void lack_labels(std::uint64_t records);

  /// Begins bytes_read() again: what was read before belongs to opening.
  void forget_bytes_read() noexcept { bytes_read_ = 0; }

  void scale_bytes(std::span<const std::uint8_t> bytes, std::span<float> x) const noexcept;
  void divide(std::span<float> x) const noexcept;

  Content content_;
  std::optional<std::uint64_t> limit_;
  std::optional<int> given_classes_;
  int classes_;  ///< those given, or the most that may be found
  std::uint64_t sampled_blocks_;
  std::filesystem::path labels_path_;  // of a pair; empty: the labels are in the file itself
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
  /// Throws std::invalid_argument for no parts, or if the parts differ in number of features, in
  /// divisor or in number of values to predict.
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
  /// True if some parts have weights; the records of the others weigh 1.
  bool has_weights() const noexcept override {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->has_weights(); });
  }
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

/// A subset of the records of a source. Subsets in several threads may share the source: each read
/// holds its Source::reading().
///
/// Record i is record ids[i] of the whole source. Local.
class SubsetSource final : public Source {
 public:
  /// `ids` ascend; at least one. `name` tells the subset from others in identity().
  SubsetSource(std::shared_ptr<Source> whole, std::vector<std::uint64_t> ids, std::string name);

  /// The index in the whole source of each record.
  const std::vector<std::uint64_t>& ids() const noexcept { return ids_; }

  std::uint64_t records() const noexcept override { return ids_.size(); }
  std::size_t features() const noexcept override { return whole_->features(); }
  float divisor() const noexcept override { return whole_->divisor(); }
  std::vector<std::uint64_t> file_records() const override;
  Element element() const noexcept override { return whole_->element(); }
  std::vector<std::uint64_t> shape() const override { return whole_->shape(); }
  std::vector<std::string> columns() const override { return whole_->columns(); }
  std::uint64_t classes() const noexcept override { return whole_->classes(); }
  std::optional<std::int32_t> known_label(std::uint64_t id) const noexcept override {
    return whole_->known_label(ids_[id]);
  }
  std::size_t targets() const noexcept override { return whole_->targets(); }
  void target_values(std::uint64_t id, std::span<float> values) const noexcept override {
    whole_->target_values(ids_[id], values);
  }
  bool has_weights() const noexcept override { return whole_->has_weights(); }
  float weight(std::uint64_t id) const noexcept override { return whole_->weight(ids_[id]); }
  std::string place_of(std::uint64_t id) const override { return whole_->place_of(ids_[id]); }
  std::shared_ptr<const TableSchema> table() const override { return whole_->table(); }
  std::shared_ptr<const PictureSchema> pictures() const override { return whole_->pictures(); }
  void set_moments(const std::shared_ptr<const TableSchema>& table) override {
    whole_->set_moments(table);
    bytes_read_ = 0;
  }
  std::vector<std::string> warnings() const override { return whole_->warnings(); }
  std::uint64_t bytes_read() const noexcept override { return bytes_read_; }
  std::string identity() const override { return name_ + " of " + whole_->identity(); }
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  /// Calls `read(whole, ids)` with the ids of the whole source, while no other subset reads.
  template <class Read>
  void read_whole(std::span<const std::uint64_t> ids, Read read);

  std::shared_ptr<Source> whole_;
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

/// Throws DataError for a label that is not in [0, classes).
[[noreturn]] void refuse_label(std::int64_t label, int classes, std::uint64_t record,
                               const std::string& place);

/// `label` as a class. Throws DataError, with the text that `place()` returns and the record,
/// unless it is in [0, classes).
template <class Place>
std::int32_t checked_label(std::int64_t label, int classes, std::uint64_t record,
                           const Place& place) {
  if (label >= 0 && label < classes) return static_cast<std::int32_t>(label);
  refuse_label(label, classes, record, place());
}

/// "28x28"; "1" for no dimensions.
std::string shape_text(std::span<const std::uint64_t> dims);

/// Bytes of a record of shape `dims`; nullopt if `records` of them are more than max_stored_bytes.
std::optional<std::uint64_t> record_bytes(std::uint64_t records,
                                          std::span<const std::uint64_t> dims,
                                          std::uint64_t element_bytes) noexcept;

/// Throws DataError unless the content, decompressed to its end, has `expected` bytes: those of a
/// header and of the array that it describes. The first `keep` bytes can be read afterwards.
///
/// `array_makes`  begins the message about another size: "2 records of 3x4 bytes make".
/// `too_short`    the message about a compressed file that is too small for `expected` bytes.
void finish_array(Content& content, std::uint64_t expected, std::uint64_t keep,
                  const std::string& array_makes, const std::string& too_short);

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
