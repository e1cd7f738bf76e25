// What `lockstep predict` writes: a table to read, or all predictions as CSV, JSON lines or NPY.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/console.hpp"
#include "lockstep/train/evaluation.hpp"

namespace lockstep::apps {

/// The number of records in a table of predictions.
inline constexpr std::uint64_t shown_predictions = 40;

/// Where and how predictions are written.
struct PredictionOutput {
  std::string path;         ///< "-": stdout; empty: a table of the first records, for a person
  std::string format;       ///< csv, jsonl, npy; auto: by the ending of `path`
  std::size_t outputs = 0;  ///< classes, labels, or values of a regression
  OutputNames names;
  train::Predicted predicted = train::Predicted::label;
  bool has_probabilities = false;  ///< of several labels: beside 1 and 0
  std::uint64_t records = 0;       ///< of the data, of which a table shows the first
  /// CSV files of the data, of which these columns are written, too; "all": each, as
  /// `data:NAME` where a column of that name is written anyway.
  std::vector<std::filesystem::path> files = {};
  std::vector<std::string> kept_columns = {};
  /// The file of a record, which is written as the column `file`; empty: there is none.
  std::function<std::string(std::uint64_t)> file_of = {};
  bool has_header = true;
  char separator = '\0';
};

/// Writes predictions in order; a file is renamed to its name when it is complete. Created on rank
/// 0 only.
class PredictionWriter {
 public:
  /// Errors   throws ConfigError: an unknown format, a column that the data does not have, and
  ///          columns or a table where the format has none; OutputError if the file cannot be
  ///          created.
  static std::unique_ptr<PredictionWriter> make(const PredictionOutput& output);

  virtual ~PredictionWriter() = default;

  /// For a table: at most shown_predictions records in all. Throws OutputError; DataError if a file
  /// of the data has changed.
  virtual void write(std::span<const train::Prediction> predictions) = 0;
  virtual void finish() = 0;
};

/// A copy of this process's stdin in a temporary file, which the destructor, or a signal that ends
/// the process, removes.
class StdinCopy {
 public:
  /// Reads stdin to its end. Throws OutputError if TMPDIR (or /tmp) is full.
  StdinCopy();
  ~StdinCopy();
  StdinCopy(const StdinCopy&) = delete;
  StdinCopy& operator=(const StdinCopy&) = delete;

  /// Ends in ".csv".
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  void remove() noexcept;

  std::filesystem::path path_;
};

}  // namespace lockstep::apps
