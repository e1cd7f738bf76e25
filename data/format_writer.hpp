// How each format puts records into its files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/file.hpp"
#include "data/writer.hpp"

namespace lockstep::data {

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
