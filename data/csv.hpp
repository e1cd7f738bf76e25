// CSV: a header line with the columns' names, then one record a line.
//
// The column `label` holds whole numbers, all others features, in their order, as decimal numbers.
// Fields may stand in double quotes, in which "" is one quote and a comma or a new line is text;
// lines end with LF or CR LF, the last one perhaps with nothing; empty lines may follow it, and a
// byte order mark may come first. Blanks around an unquoted number are ignored. Every number is the
// float32 nearest to its decimal text. The file may be gzip-compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/file.hpp"
#include "data/source.hpp"

namespace lockstep::data {
/// Takes one field: its number in the line, from 0, and its text, without quotes.
using CsvField = std::function<void(std::size_t column, std::string_view text)>;

/// Splits one record, without its line's end, into fields, and returns how many there were.
/// `fail` is called with the reason, and must throw, where quotes do not match.
std::size_t split_csv(std::string_view record, std::string& scratch, const CsvField& field,
                      const std::function<void(const std::string&)>& fail);

/// The records of one CSV file.
///
/// Opened by one pass over the file, which checks every field and remembers where records begin (8
/// bytes each); afterwards only the records asked for are read. Local; not thread-safe.
class CsvSource final : public StoredSource {
 public:
  /// Throws DataError that begins with FILE:LINE and names the column: no column `label` or two, no
  /// features, no records, another number of fields than the header, a number or label that is
  /// none, quotes that do not match, a line longer than 64 MiB.
  CsvSource(const std::filesystem::path& path, const ReadOptions& options);

  /// The header's, without the label.
  std::vector<std::string> columns() const override;

 private:
  /// A row's numbers, quickly, where nothing is quoted and nothing wrong; else none.
  std::optional<std::int64_t> parse_plain_row(std::string_view row,
                                              std::span<float> x) const noexcept;

  /// A row's numbers; `place` names the row in errors.
  std::int64_t parse_row(std::string_view row, std::span<float> x,
                         const std::function<std::string()>& place);
  void parse_header(std::string_view row);
  void scan();
  std::uint64_t offset(std::uint64_t index) const noexcept override { return offsets_[index]; }
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;

  std::vector<std::string> columns_;
  std::size_t label_column_ = 0;
  std::vector<std::uint64_t> offsets_;  // of every record, and the end of the last
  std::string scratch_text_;
};

// The records of a CSV file, one after the other, from front to back.

/// Cuts a file into records at the line ends outside quotes.
///
/// Holds one record and at most 256 kB besides. A record of more than 64 MiB is a DataError.
class CsvRows {
 public:
  /// `content` is finished and outlives this.
  explicit CsvRows(Content& content);

  /// The next record, without its line's end; false at the end of the file. Throws DataError.
  bool next();

  std::string_view row() const noexcept;                 ///< valid until next()
  std::uint64_t line() const noexcept { return line_; }  ///< where it begins, from 1

  /// The offset in the file behind the record and its line's end.
  std::uint64_t end() const noexcept { return loaded_ - (buffer_.size() - at_); }

 private:
  bool load();
  bool find_end(std::size_t& length);

  Content& content_;
  std::vector<std::uint8_t> buffer_;  // bytes up to loaded_
  std::uint64_t loaded_ = 0;
  std::size_t at_ = 0;     // in the buffer: behind the current record
  std::size_t begin_ = 0;  // in the buffer: the current record
  std::size_t length_ = 0;
  bool has_quotes_ = false;
  std::uint64_t line_ = 0;
  std::uint64_t next_line_ = 1;
};

// Numbers as data files write them.

/// The finite float32 nearest to the decimal text, or none. Blanks around it are ignored; what is
/// too small is 0.
std::optional<float> parse_float(std::string_view text) noexcept;

/// A whole number, or none.
std::optional<std::int64_t> parse_whole(std::string_view text) noexcept;

/// `text` as an error shows it: at most 32 bytes, anything unprintable as '?'.
std::string shown(std::string_view text);

}  // namespace lockstep::data
