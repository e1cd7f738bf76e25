// What a run's folder (run_directory.hpp) has recorded, and how two runs differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/train/json_fields.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

/// A recorded number, or a string: a hash, a setting's TOML literal.
using Recorded = std::variant<double, std::string>;

/// Names and recorded values, in the order of the file.
using Figures = std::vector<std::pair<std::string, Recorded>>;

/// One line of metrics.jsonl.
struct RecordedStep {
  std::uint64_t step = 0;   ///< from 1, over the whole run
  std::uint64_t epoch = 0;  ///< from 1
  Figures figures;          ///< "loss", "accuracy": before the step's update
  Figures tensors;  ///< "0.weight" and its hash after the update; empty unless `hash_every` is set
};

/// One epoch of summary.json.
struct RecordedEpoch {
  std::uint64_t epoch = 0;      ///< from 1
  std::uint64_t last_step = 0;  ///< its last step in metrics.jsonl; 0 if none is recorded
  Figures figures;              ///< "weights_hash", "test_loss", "test_accuracy"
};

/// The recorded data of a run.
struct RecordedRun {
  std::vector<RecordedStep> steps;  ///< ascending, at least one
  std::vector<RecordedEpoch> epochs;
  std::string status;  ///< see run_directory.hpp; empty without summary.json, as `epochs` is then
  /// "ranks" and "version" of summary.json, and settings that the caller adds.
  Figures settings;
};

/// Reads metrics.jsonl and, if there is one, summary.json. Unknown fields are ignored.
///
/// Errors   throws DataError with file, line and reason: no such folder, no run in it, no step
///          recorded, a truncated line, or a field that is missing or of another type.
/// Ranks    local.
RecordedRun read_run(const std::filesystem::path& folder);

/// Adds loss, score and metrics of the test set and, if there is one, the validation set to an
/// object: "test_loss", "test_accuracy" or of a regression "test_r2", and "test_auc" for a metric
/// auc; then the same of the validation set: "validation_loss" ...
void add_figures(nlohmann::ordered_json& object, const EpochReport& epoch);

/// Reads what add_figures() adds, into `epoch`. Throws DataError.
void read_figures(const nlohmann::ordered_json& object, const JsonPlace& place, EpochReport& epoch);

/// Reads loss, score and metrics of `set`, "test" or "validation". Throws DataError.
SetFigures figures_in(const nlohmann::ordered_json& object, const std::string& set,
                      const JsonPlace& place);

/// The end of a run.
struct RunEnd {
  std::string status;           ///< "finished", "stopped" or "failed"
  std::uint64_t exit_code = 0;  ///< not 0 if the run was stopped or failed
  std::string cause = {};       ///< of a run that was stopped or failed
  std::optional<std::uint64_t> stopped_early_after = {};  ///< the last step, if it ended early
};

/// The end that summary.json records; nullopt: the run has not ended, or the file cannot be read.
/// Local.
std::optional<RunEnd> recorded_end(const std::filesystem::path& folder);

/// True if the run's summary.json says that it is finished; false if it cannot be read. Local.
bool is_finished(const std::filesystem::path& folder);

/// What a run directory holds.
inline constexpr std::array run_entries{"config.toml",  "summary.json", "metrics.jsonl",
                                        "epochs.jsonl", "checkpoints",  "flight"};

/// The name of one of run_entries that is in `folder`; empty if it holds no run. A folder `flight`
/// alone is no run: a refused job and `lockstep launch` make it. Local.
std::string run_file_in(const std::filesystem::path& folder);

/// A recorded value that differs between two runs.
struct Difference {
  std::uint64_t step = 0;
  std::string what;        ///< "loss", "tensor 0.weight", "epoch 2 weights_hash"
  Recorded a;              ///< value in run a; "absent" if it has none
  Recorded b;              ///< value in run b; "absent" if it has none
  std::size_t others = 0;  ///< number of other figures or tensors that differ at the same step
};

/// The extent of a comparison of two runs, and the first difference of each kind: the first figure
/// gives the step in which the runs differ, the first tensor gives the layer.
struct Comparison {
  std::uint64_t steps = 0;         ///< number of steps recorded by both runs
  std::uint64_t first_step = 0;    ///< first step recorded by both runs
  std::uint64_t last_step = 0;     ///< last step recorded by both runs
  std::uint64_t hashed_steps = 0;  ///< number of common steps with tensor hashes in both runs
  std::uint64_t epochs = 0;        ///< number of epochs that ended at the same step in both runs

  std::optional<Difference> figure;
  std::optional<Difference> tensor;
  std::optional<Difference> epoch;
  std::vector<Difference> settings;  ///< a hint; runs with different settings may be identical

  /// The earliest of the three. In a step, loss and accuracy are before the update, and the figures
  /// of an epoch are after it. Null if all values recorded by both runs are equal.
  const Difference* first() const noexcept;
};

/// Compares the values recorded by both runs, which may differ in length. Doubles are compared by
/// their bits. Epochs that ended at different steps (--steps) are skipped.
///
/// Errors   throws DataError if no step is recorded by both.
Comparison compare(const RecordedRun& a, const RecordedRun& b);

/// Returns one line of JSON:
///   {"same": false, "steps_compared": 5, "hashed_steps_compared": 5, "epochs_compared": 1,
///    "first_difference": {"step": 1, "what": "loss", "a": 2.3, "b": 2.4},
///    "first_tensor_difference": {"step": 1, "what": "tensor 0.weight", "a": "...", "b": "..."},
///    "settings": {"reduction": ["\"canonical\"", "\"allreduce\""]}}
/// with null for no difference, and settings as TOML literals.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep::train
