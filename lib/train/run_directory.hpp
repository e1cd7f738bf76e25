// The folder that records a run: config.toml, metrics.jsonl, summary.json, checkpoints/.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/files.hpp"
#include "lib/train/checkpoint.hpp"
#include "lib/train/report.hpp"

namespace lockstep::train {
/// What summary.json says beyond the report itself.
struct RunFacts {
  std::string version;
  int ranks = 1;
  std::string device = "cpu";  ///< of rank 0
  std::uint64_t parameters = 0;
  std::uint64_t plan_digest = 0;
  CheckpointInfo checkpoint = {};  ///< step and examples are filled in when one is saved
};

/// Owned by rank 0 alone; everything here is local.
///
/// The formats of summary.json and metrics.jsonl are a contract: fields may be added, never
/// renamed. metrics.jsonl has one line a step, with "hashes": {"0.weight": "16 hex digits", ...} on
/// every `hash_every` steps:
// clang-format off
///   {"step": 1, "epoch": 1, "examples": 128, "loss": 2.327221, "accuracy": 0.0625, "seconds": 0.0041}
// clang-format on
/// Its numbers read back as the same doubles. It is handed to the system every second, at every
/// epoch's end and with every checkpoint.
class RunDirectory final : public Observer {
 public:
  /// Makes the folder and writes config.toml; `path` "auto" stands for runs/DATE-TIME.
  ///
  /// Errors   throws ConfigError where the folder holds a run already; OutputError where it
  ///          cannot be made or written.
  RunDirectory(const std::string& path, const std::string& config_toml, RunFacts facts);

  const std::filesystem::path& path() const noexcept { return path_; }

  /// The checkpoint saved last; empty before the first.
  const std::filesystem::path& last_checkpoint() const noexcept { return last_checkpoint_; }

  void on_step(const StepReport& report) override;
  void on_epoch(const EpochReport& report) override;
  void on_checkpoint(const nn::Network<float>& network, std::uint64_t step,
                     std::uint64_t examples) override;

  /// Writes summary.json; the run is complete. Throws OutputError.
  void finish(const RunReport& report);

 private:
  std::filesystem::path path_;
  RunFacts facts_;
  std::optional<LineFile> metrics_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
  std::filesystem::path last_checkpoint_;
};

// A run directory read back: what a run recorded, to the last bit.

/// A figure as it was recorded (the same double), or a text: a hash, a setting's TOML literal.
using Recorded = std::variant<double, std::string>;

/// Names and what was recorded under them, in the file's order.
using Figures = std::vector<std::pair<std::string, Recorded>>;

/// One line of metrics.jsonl.
struct RecordedStep {
  std::uint64_t step = 0;   ///< from 1, over the whole run
  std::uint64_t epoch = 0;  ///< from 1
  Figures figures;          ///< "loss", "accuracy": taken just before the step's update
  Figures tensors;  ///< "0.weight" and its hash just after it; empty unless `hash_every` is set
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
  /// "ranks" and "version" of a finished run, and what the caller adds of its own settings.
  Figures settings;
};

/// Reads metrics.jsonl and, where the run finished, summary.json. Local.
/// config.toml is for the program that wrote it: its settings are not the library's.
///
/// Formats  those that lib/train/run_directory.hpp writes; further fields are ignored.
/// Errors   throws DataError with file, line and reason: no such folder, no run in it, no step
///          recorded, a line that is cut off or is not what it should be.
RecordedRun read_run(const std::filesystem::path& folder);

// Two recorded runs, compared bit by bit: the first recorded point where they part.

/// Something that two runs did not record alike.
struct Difference {
  std::uint64_t step = 0;
  std::string what;        ///< "loss", "tensor 0.weight", "epoch 2 weights_hash"
  Recorded a;              ///< "absent" where that run has none
  Recorded b;              ///< likewise
  std::size_t others = 0;  ///< that differ at the same point: other figures, or other tensors
};

/// The receipt: how far two runs were compared, and where they part. Figures, tensors and epochs
/// have a first difference each, for the figures tell when, and the tensors where.
struct Comparison {
  std::uint64_t steps = 0;         ///< recorded by both
  std::uint64_t first_step = 0;    ///< of those
  std::uint64_t last_step = 0;     ///< of those
  std::uint64_t hashed_steps = 0;  ///< of those, with tensors' hashes in both
  std::uint64_t epochs = 0;        ///< that ended at the same step in both

  std::optional<Difference> figure;
  std::optional<Difference> tensor;
  std::optional<Difference> epoch;
  std::vector<Difference> settings;  ///< a hint; they make no difference by themselves

  /// The earliest of the three: in a step, loss and accuracy come before the update, and an
  /// epoch's figures after it. Null where all that both runs recorded is the same.
  const Difference* first() const noexcept;
};

/// Compares what both runs recorded; one may go on for longer than the other. Doubles are compared
/// by their bits. Epochs that ended at different steps (--steps) are left out.
///
/// Errors   throws DataError where no step is recorded by both.
Comparison compare(const RecordedRun& a, const RecordedRun& b);

/// One line of JSON:
///   {"same": false, "steps_compared": 5, "hashed_steps_compared": 5, "epochs_compared": 1,
///    "first_difference": {"step": 1, "what": "loss", "a": 2.3, "b": 2.4},
///    "first_tensor_difference": {"step": 1, "what": "tensor 0.weight", "a": "...", "b": "..."},
///    "settings": {"reduction": ["\"canonical\"", "\"allreduce\""]}}
/// with null for a difference that there is not, and settings as TOML literals.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep::train
