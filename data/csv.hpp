// CSV: a header line with the column names, then one record per line.
//
// The column `label` holds integers, all other columns the features, in order, as decimal numbers.
// Fields may be in double quotes, where "" is one quote and commas and newlines are text. Lines end
// with LF or CR LF; the last line may lack it, and empty lines may follow. A byte order mark may
// precede the header. Blanks around an unquoted number are ignored. A number is rounded to the
// nearest float32. The file may be gzip-compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/file.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
/// Callback for one field: its column, from 0, and its text without quotes.
using CsvField = std::function<void(std::size_t column, std::string_view text)>;

/// Splits one record, without its line ending, into fields; returns the number of fields.
/// If quotes do not match, calls `fail` with the reason; `fail` must throw.
std::size_t split_csv(std::string_view record, std::string& scratch, const CsvField& field,
                      const std::function<void(const std::string&)>& fail);

/// The records of one CSV file.
///
/// The constructor reads the whole file, checks every field and stores the offset of each record (8
/// bytes each); read() then reads only the requested records. Local; not thread-safe.
class CsvSource final : public StoredSource {
 public:
  /// Throws DataError, with FILE:LINE and the column, for: no column `label` or two, no features,
  /// more than 1,000,000 columns, no records, a number of fields different from the header's, an
  /// invalid number or label, unmatched quotes, a line longer than 64 MiB.
  CsvSource(const std::filesystem::path& path, const ReadOptions& options);

  /// The names in the header, without the label.
  std::vector<std::string> columns() const override;

 private:
  /// Fast path: parses a row without quotes and errors; empty for any other row.
  std::optional<std::int64_t> parse_plain_row(std::string_view row,
                                              std::span<float> x) const noexcept;

  /// Parses a row; `place` returns the row's location for error messages.
  std::int64_t parse_row(std::string_view row, std::span<float> x,
                         const std::function<std::string()>& place);
  void parse_header(std::string_view row);
  void scan();
  std::uint64_t offset(std::uint64_t index) const noexcept override { return offsets_[index]; }
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;

  std::vector<std::string> columns_;
  std::size_t label_column_ = 0;
  std::vector<std::uint64_t> offsets_;  // begin of each record, and end of the last
  std::string scratch_text_;
};

// Sequential reading of a CSV file's records.

/// Splits a file into records at line endings outside quotes.
///
/// Memory: one record plus at most 256 kB. A record above 64 MiB is a DataError.
class CsvRows {
 public:
  /// `content` must be finished (Content::finish) and outlive this object.
  explicit CsvRows(Content& content);

  /// Reads the next record without its line ending; false at the end of the file. Throws DataError.
  bool next();

  std::string_view row() const noexcept;                 ///< valid until next()
  std::uint64_t line() const noexcept { return line_; }  ///< its first line, from 1

  /// The file offset after the record and its line ending.
  std::uint64_t end() const noexcept { return loaded_ - (buffer_.size() - at_); }

 private:
  bool load();
  bool find_end(std::size_t& length, bool& quoted);

  Content& content_;
  std::vector<std::uint8_t> buffer_;  // ends at file offset loaded_
  std::uint64_t loaded_ = 0;
  std::size_t at_ = 0;     // buffer index after the current record
  std::size_t begin_ = 0;  // buffer index of the current record
  std::size_t length_ = 0;
  bool has_quotes_ = false;
  std::uint64_t line_ = 0;
  std::uint64_t next_line_ = 1;
};

// Parsing of numbers.

/// The finite float32 nearest to the decimal text; empty if invalid. Blanks around it are ignored;
/// underflow gives 0.
std::optional<float> parse_float(std::string_view text) noexcept;

/// Parses an integer; empty if invalid.
std::optional<std::int64_t> parse_whole(std::string_view text) noexcept;

}  // namespace lockstep::data
