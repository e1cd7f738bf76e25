// The records of a CSV file, one after the other, from front to back.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/content.hpp"

namespace lockstep::data {

/// Cuts a file into records at the line ends outside quotes.
///
/// Holds one record and at most 256 kB besides. A record of more than 64 MiB is a DataError.
class CsvRows {
 public:
  /// `content` is finished and outlives this.
  explicit CsvRows(Content& content);

  /// The next record, without its line's end; false at the end of the file. Throws DataError.
  bool next();

  std::string_view row() const noexcept;                     ///< valid until next()
  std::uint64_t line() const noexcept { return line_; }      ///< where it begins, from 1
  std::uint64_t offset() const noexcept { return offset_; }  ///< its first byte
  std::uint64_t end() const noexcept {
    return loaded_ - (buffer_.size() - at_);
  }  ///< behind its line's end

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
  std::uint64_t offset_ = 0;
  std::uint64_t line_ = 0;
  std::uint64_t next_line_ = 1;
};

}  // namespace lockstep::data
