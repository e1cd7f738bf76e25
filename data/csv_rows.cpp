#include "data/csv_rows.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 18;
constexpr std::size_t most_row_bytes = std::size_t{1} << 26;

}  // namespace

CsvRows::CsvRows(Content& content) : content_(content) {
  if (load() && buffer_.size() >= 3 && std::memcmp(buffer_.data(), "\xEF\xBB\xBF", 3) == 0) at_ = 3;
}

std::string_view CsvRows::row() const noexcept {
  return {reinterpret_cast<const char*>(buffer_.data()) + begin_, length_};
}

/// Adds the next chunk behind what is not used yet; false at the end of the file.
bool CsvRows::load() {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at_));
  at_ = 0;
  if (buffer_.size() > most_row_bytes) {
    throw DataError(content_.path().string() + ":" + std::to_string(next_line_) +
                        ": a record of more than 64 MiB",
                    "look for a quote that is never closed, or a file that is no CSV");
  }
  const std::uint64_t count = std::min(chunk_bytes, content_.size() - loaded_);
  if (count == 0) return false;
  const std::size_t used = buffer_.size();
  buffer_.resize(used + static_cast<std::size_t>(count));
  content_.read_at(loaded_, std::span(buffer_).subspan(used));
  loaded_ += count;
  return true;
}

/// Finds the end of the line that begins at at_; `length` goes on where the last call stopped.
bool CsvRows::find_end(std::size_t& length) {
  bool quoted = false;
  std::size_t from = 0;
  if (length > 0) {  // how many quotes there were is counted anew: long records are rare
    quoted = std::count(buffer_.begin() + static_cast<std::ptrdiff_t>(at_),
                        buffer_.begin() + static_cast<std::ptrdiff_t>(at_ + length), '"') %
                 2 !=
             0;
    from = length;
  }
  const std::uint8_t* const data = buffer_.data() + at_;
  const std::size_t size = buffer_.size() - at_;
  const auto find = [&](char wanted, std::size_t first, std::size_t last) {
    const void* const at = std::memchr(data + first, wanted, last - first);
    return at == nullptr ? last
                         : static_cast<std::size_t>(static_cast<const std::uint8_t*>(at) - data);
  };
  std::size_t line_end = 0;  // looked for once, and again where it turned out to be quoted
  while (from < size) {
    if (!quoted && line_end <= from) line_end = find('\n', from, size);
    const std::size_t end = quoted ? size : line_end;
    const std::size_t quote = find('"', from, end);
    if (quote == end) {
      length = end;
      return end < size;
    }
    quoted = !quoted;
    has_quotes_ = true;
    from = quote + 1;
  }
  length = size;
  return false;
}

bool CsvRows::next() {
  std::size_t length = 0;
  has_quotes_ = false;
  bool ended = find_end(length);
  while (!ended && load()) ended = find_end(length);
  if (!ended && length == 0) return false;
  offset_ = end();
  begin_ = at_;
  length_ = length;
  line_ = next_line_;
  ++next_line_;
  if (has_quotes_) {  // else no line ends within it
    next_line_ += static_cast<std::uint64_t>(std::count(row().begin(), row().end(), '\n'));
  }
  at_ += length + (ended ? 1 : 0);
  if (length_ > 0 && row().back() == '\r') --length_;
  return true;
}

}  // namespace lockstep::data
