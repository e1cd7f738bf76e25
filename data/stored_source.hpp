// What all sources that read files have in common.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/byte_scale.hpp"
#include "data/content.hpp"
#include "data/source.hpp"

namespace lockstep::data {

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

}  // namespace lockstep::data
