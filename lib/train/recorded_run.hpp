// A run directory read back: what a run recorded, to the last bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::train {

/// A figure as it was recorded (the same double), or a text: a hash, a setting's TOML literal.
using Recorded = std::variant<double, std::string>;

/// Names and what was recorded under them, in the file's order.
using Figures = std::vector<std::pair<std::string, Recorded>>;

/// One line of metrics.jsonl.
struct RecordedStep {
  std::uint64_t step = 0;   ///< from 1, over the whole run
  std::uint64_t epoch = 0;  ///< from 1
  Figures figures;          ///< "loss", "accuracy": taken just before the step's update
  Figures tensors;          ///< "0.weight" and its hash just after it; empty without --hash-every
};

/// One epoch of summary.json.
struct RecordedEpoch {
  std::uint64_t epoch = 0;      ///< from 1
  std::uint64_t last_step = 0;  ///< its last in metrics.jsonl; 0 where none is recorded
  Figures figures;              ///< "weights_hash", "test_loss", "test_accuracy"
};

/// What two runs can be compared by.
struct RecordedRun {
  std::vector<RecordedStep> steps;  ///< ascending, at least one
  std::vector<RecordedEpoch> epochs;
  bool finished = false;  ///< there is a summary.json; without it no epoch is known
  /// Every resolved setting but run-dir and progress; "ranks", which a launcher may have decided,
  /// and "version" only of a finished run.
  Figures settings;
};

/// Reads config.toml, metrics.jsonl and, where the run finished, summary.json. Local.
///
/// Formats  those that lib/train/run_directory.hpp writes; further fields are ignored.
/// Errors   throws DataError with file, line and reason: no such folder, no run in it, no step
///          recorded, a line that is cut off or is not what it should be.
RecordedRun read_run(const std::filesystem::path& folder);

}  // namespace lockstep::train
