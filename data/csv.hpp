// CSV: delimited text, a record per line, usually after a header line with the column names.
//
// Fields are separated by commas, semicolons or tabs. A field may be in double quotes, where "" is
// one quote and separators and newlines are text. Lines end with LF or CR LF; the last line may
// lack it, and empty lines may follow. A byte order mark may precede the first line. Blanks around
// an unquoted number are ignored. A number is rounded to the nearest float32. The file may be
// gzip-compressed.
//
// A table's schema (table.hpp) defines what the columns mean. Without one, the column `label` holds
// integers, and all other columns are features, in order, as numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/data/file.hpp"
#include "lockstep/data/opening.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/table.hpp"

namespace lockstep::data {
/// Calls `take(column, text)` for every field of one record without its line ending, with its
/// column, from 0, and its text without quotes; returns the number of fields. If quotes do not
/// match, calls `fail` with the reason; `fail` must throw.
template <class Take, class Fail>
std::size_t split_csv(std::string_view record, char separator, std::string& scratch, Take take,
                      Fail fail);

/// `text` as a field of a comma-separated line: in quotes where it needs them.
std::string csv_field(const std::string& text);

/// More are refused.
inline constexpr std::size_t max_csv_columns = 1'000'000;

/// The first line of a file.
struct CsvHeader {
  char separator = ',';
  std::vector<std::string> names;  ///< of the columns; "1", "2", ... if there is no header
};

/// Reads the first line. `separator`: NUL for the one that is most frequent outside of quotes,
/// a comma if there is none.
///
/// Errors   throws DataError: the line is missing or empty, unmatched quotes, more than 1,000,000
///          columns.
/// Ranks    local.
CsvHeader read_header(Content& content, bool has_header, char separator);

/// The remedy of most errors.
inline constexpr const char* mend_line = "mend the line, or write the file again";

/// The remedy for a word where there is no schema.
inline constexpr const char* no_words =
    "mend the line; or, in a column of words, write numbers: networks that were not trained on a "
    "table take numbers alone";

/// True for a line of blanks; a tab is none where it is the separator.
bool is_blank(std::string_view row, char separator) noexcept;

/// True if all names are numbers, but not 0, 1, 2, ... or 1, 2, 3, ..., as pandas names columns. A
/// name may be empty.
bool looks_like_a_record(std::span<const std::string> names);

/// Throws DataError if several of a header's `names` are one of those in `used`.
void require_unique(std::span<const std::string> names, std::span<const std::string> used,
                    const std::string& place);

/// Throws DataError: the first line, at `place`, has a record where names should be.
[[noreturn]] void throw_no_header(const std::string& place, const std::string& first_name,
                                  const std::string& remedy);

/// The records of one CSV file.
///
/// The constructor reads the file up to the last record in use (ReadOptions::limit), of several
/// ranks each a part (ReadOptions::ranks), checks every field and stores the offset of each record
/// (8 bytes each); read() then reads only the requested records. Local, but for the constructor
/// with ReadOptions::ranks; not thread-safe.
class CsvSource final : public StoredSource {
 public:
  /// Columns are matched with options.schema by name, in any order; surplus columns are ignored. A
  /// category that the schema does not have is read as a missing value.
  ///
  /// Errors   throws DataError, with FILE:LINE and the column, for: a missing column, a label that
  ///          the schema does not have, a weight below 0, a number to predict as in set_moments(),
  ///          no features, no records, a number of fields different from the header's, an invalid
  ///          number, a missing value with Missing::error, unmatched quotes, a line longer than 64
  ///          MiB; and what read_header() throws.
  CsvSource(const std::filesystem::path& path, const ReadOptions& options);

  /// The names in the header, without the label; with a table, those of its features.
  std::vector<std::string> columns() const override;

  std::shared_ptr<const TableSchema> table() const override { return schema_; }
  std::vector<std::string> warnings() const override;
  std::uint64_t classes() const noexcept override;
  std::size_t targets() const noexcept override;
  void target_values(std::uint64_t id, std::span<float> values) const noexcept override;
  bool has_weights() const noexcept override { return !weights_.empty(); }
  float weight(std::uint64_t id) const noexcept override {
    return weights_.empty() ? 1.0F : weights_[id];
  }
  std::string identity() const override;

  /// Replaces the schema by the same with moments. Until a schema has them, numbers are read as
  /// they are, and missing ones as NaN. Throws DataError, with FILE:LINE, for a number to
  /// predict that is more than 1e18 deviations from the mean. Local.
  void set_moments(const std::shared_ptr<const TableSchema>& schema) override {
    schema_ = schema;
    check_targets();
    forget_bytes_read();
  }

 private:
  /// What the fields of a column are.
  struct Role {
    enum class Kind : std::uint8_t {
      ignored,
      label,
      target,
      weight,
      number,
      category
    } kind = Kind::ignored;
    std::size_t feature = 0;    ///< of a number, or the first of a category; the index of a target
    std::size_t of_schema = 0;  ///< index in TableSchema::columns
    std::uint64_t unknown = 0;  ///< number of fields of no known category
    std::string example = {};   ///< the first of them
  };

  using Where = std::function<std::string()>;  ///< a row's place, for error messages

  void require_features(std::size_t features) const;
  void assign_roles(bool needs_labels);
  /// Names the columns of a file without a header line, which has all columns of the training set
  /// but for one of the sets in `lacking`. Throws DataError if that is none or not clear.
  void name_columns(std::size_t all, std::vector<std::vector<std::string>> lacking,
                    const std::string& place);
  void assign_weight(const std::string& place);
  void assign_columns(const std::string& place);
  void scan(const OpeningRanks* ranks);
  void scan(const CsvPart& part);
  void check_targets();
  void forget_records();
  std::string findings() const;
  bool take_parts(std::span<const std::string_view> parts);

  /// Fast path: parses a row without quotes and errors, and returns the text of its label; empty
  /// for any other row.
  std::optional<std::string_view> parse_plain_row(std::string_view row,
                                                  std::span<float> x) const noexcept;
  std::int32_t parse_row(std::string_view row, std::span<float> x, const Where& place);
  std::int32_t label_of(std::string_view text, const Where& place) const;
  void take_weight(std::string_view text, const Where& place);
  /// The class of a label; 0 for a target, which is put in values_ when scanning.
  std::int32_t take_label(const Role& role, std::string_view text, const Where& place);
  void take_feature(Role& role, std::string_view text, std::span<float> x, const Where& place);
  void divide_numbers(std::span<float> x) const noexcept;
  void apply_moments(std::span<float> x) const noexcept;

  std::uint64_t offset(std::uint64_t index) const noexcept override { return offsets_[index]; }
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;

  std::shared_ptr<const TableSchema> schema_;  // null: plain numbers
  bool has_header_;
  bool needs_labels_;
  CsvHeader header_;
  std::vector<Role> roles_;       // of each column
  std::size_t label_column_ = 0;  // of several the last; the number of columns if there is none
  bool is_plain_ = true;          // all columns but one label are numbers, in the schema's order
  bool is_scanning_ = true;       // in the constructor
  bool has_missing_ = false;
  std::unordered_map<std::string, std::int32_t> class_of_;
  bool are_whole_ = true;                                                  // the classes
  std::vector<std::unordered_map<std::string, std::size_t>> category_of_;  // by schema column
  std::vector<std::uint64_t> offsets_;  // begin of each record, and end of the last
  std::vector<float> values_;           // of targets [records, targets], as they are in the file
  std::vector<float> weights_;          // of records; empty: the data has none
  std::string scratch_text_;
};

// Sequential reading of a CSV file's records.

/// Splits a file into records at line endings outside quotes.
///
/// Memory: one record plus at most 256 kB. A record above 64 MiB is a DataError.
class CsvRows {
 public:
  /// `content` must outlive this object.
  explicit CsvRows(Content& content, const CsvPart& part = {});

  /// Reads the next record without its line ending; false at the end of the part. Throws DataError.
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
  std::uint64_t end_;                 // of the part
  std::uint64_t loaded_;
  std::size_t at_ = 0;     // buffer index after the current record
  std::size_t begin_ = 0;  // buffer index of the current record
  std::size_t length_ = 0;
  bool has_quotes_ = false;
  std::uint64_t line_ = 0;
  std::uint64_t next_line_;
};

/// The texts of a CSV file's records, one after the other. Local; not thread-safe.
class CsvTexts {
 public:
  /// See TableOptions. Throws what read_header() throws.
  CsvTexts(const std::filesystem::path& path, bool has_header, char separator);

  const std::vector<std::string>& names() const noexcept { return header_.names; }

  /// The fields of the next record, [names().size()], valid until the next call; empty at the end.
  /// Throws DataError as CsvSource does.
  const std::vector<std::string>& next();

  /// "FILE:LINE" of the record that next() returned.
  std::string place() const;

 private:
  Content content_;
  CsvHeader header_;
  std::optional<CsvRows> rows_;
  std::vector<std::string> fields_;
  std::string scratch_;
};

// Parsing of numbers.

/// The finite float32 nearest to the decimal text; empty if invalid. Blanks around it are ignored;
/// underflow gives 0.
std::optional<float> parse_float(std::string_view text) noexcept;

/// The float32 nearest to the decimal at the begin of `text`, and its length; 0, and no number, for
/// one that is not as simple as "-12.5", or has more than 15 digits: parse_float() takes them all.
std::size_t scan_decimal(std::string_view text, float& number) noexcept;

/// Parses an integer; empty if invalid.
std::optional<std::int64_t> parse_whole(std::string_view text) noexcept;

/// A number, as parse_float() takes it, in double.
std::optional<double> parse_double(std::string_view text) noexcept;

/// Parses an integer that may be written as a float, "7.0"; empty if it is none.
std::optional<std::int64_t> parse_integral(std::string_view text) noexcept;

template <class Take, class Fail>
std::size_t split_csv(std::string_view record, char separator, std::string& scratch, Take take,
                      Fail fail) {
  std::size_t column = 0;
  for (std::size_t at = 0;; ++at, ++column) {
    if (at < record.size() && record[at] == '"') {
      scratch.clear();
      for (++at;; ++at) {
        const std::size_t quote = record.find('"', at);
        if (quote == std::string_view::npos) {
          fail("a quote is opened and never closed");
          return 0;
        }
        scratch += record.substr(at, quote - at);
        at = quote + 1;
        if (at >= record.size() || record[at] != '"') break;
        scratch += '"';
      }
      if (at < record.size() && record[at] != separator) fail("text follows a closing quote");
      take(column, std::string_view(scratch));
    } else {
      const std::size_t end = std::min(record.find(separator, at), record.size());
      const std::string_view text = record.substr(at, end - at);
      if (text.find('"') != std::string_view::npos) fail("a quote stands inside an unquoted field");
      take(column, text);
      at = end;
    }
    if (at >= record.size()) return column + 1;
  }
}

}  // namespace lockstep::data
