// The records of a table in one file or several, as texts: for `convert` and `predict`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/csv.hpp"

namespace lockstep::apps {

/// Reads the records of all files in order, with chosen columns of the first file. A file with the
/// same header as the first is read by position, others by name. Local.
class TableTexts {
 public:
  /// Opens the first of `files`, at least one; all columns are chosen. Throws what data::CsvTexts
  /// throws.
  TableTexts(std::vector<std::filesystem::path> files, bool has_header, char separator);

  /// Names of the first file's columns, some of which may be equal.
  const std::vector<std::string>& columns() const noexcept { return columns_; }

  /// Chooses indices of columns(), before the first next().
  void choose(std::vector<std::size_t> columns) { positions_ = chosen_ = std::move(columns); }

  /// Names of the chosen columns.
  std::vector<std::string> chosen_names() const;

  /// The chosen fields of the next record, valid until the next call; null at the end. Throws
  /// DataError for a file that does not have one of the columns, or has it twice.
  const std::vector<std::string>* next();

 private:
  void open();
  void find_columns();

  std::vector<std::filesystem::path> files_;
  bool has_header_;
  char separator_;
  std::size_t file_ = 0;  // that is opened next
  std::unique_ptr<data::CsvTexts> texts_;
  std::vector<std::string> columns_;
  std::vector<std::size_t> chosen_;     // of columns_
  std::vector<std::size_t> positions_;  // of the same columns in the open file
  std::vector<std::string> fields_;
};

}  // namespace lockstep::apps
