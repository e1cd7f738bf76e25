// Run directories: recording a run in a folder, reading it back, and comparing two of them.
//
//   config.toml      the program's resolved settings, as the program writes them
//   metrics.jsonl    one object a step
//   summary.json     one object: the whole run and its epochs; written when the run is complete
//   checkpoints/     see checkpoint.hpp
//
// A line of metrics.jsonl, with the tensors' hashes every `hash_every` steps:
//   {"step": 1, "epoch": 1, "examples": 128, "loss": 2.327221, "accuracy": 0.0625,
//    "seconds": 0.0041, "hashes": {"0.weight": "16 hex digits", ...}}
// Fields of both JSON files may be added, never renamed. Numbers read back as the same doubles.
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

/// What summary.json holds besides the report.
struct RunFacts {
  std::string version;
  int ranks = 1;
  std::string device = "cpu";  ///< of rank 0
  std::uint64_t parameters = 0;
  std::uint64_t plan_digest = 0;
  CheckpointInfo checkpoint = {};  ///< step and examples are filled in when one is saved
};

/// Writes a run's folder. On rank 0 alone; everything here is local.
///
/// metrics.jsonl is handed to the system every second, at every epoch's end and with every
/// checkpoint.
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

// Reading.

/// A recorded number, or a text: a hash, a setting's TOML literal.
using Recorded = std::variant<double, std::string>;

/// Names and recorded values, in the file's order.
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

/// What a run recorded.
struct RecordedRun {
  std::vector<RecordedStep> steps;  ///< ascending, at least one
  std::vector<RecordedEpoch> epochs;
  bool finished = false;  ///< there is a summary.json; without it no epoch is known
  /// "ranks" and "version" of a finished run, and what the caller adds of its own settings.
  Figures settings;
};

/// Reads metrics.jsonl and, where the run finished, summary.json. Unknown fields are ignored.
///
/// Errors   throws DataError with file, line and reason: no such folder, no run in it, no step
///          recorded, a line that is cut off, or a field that is missing or of another kind.
/// Ranks    local.
RecordedRun read_run(const std::filesystem::path& folder);

// Comparing, bit by bit.

/// A recorded point at which two runs differ.
struct Difference {
  std::uint64_t step = 0;
  std::string what;        ///< "loss", "tensor 0.weight", "epoch 2 weights_hash"
  Recorded a;              ///< "absent" where that run has none
  Recorded b;              ///< likewise
  std::size_t others = 0;  ///< that differ at the same point: other figures, or other tensors
};

/// How far two runs were compared, and the first difference of each kind: figures tell in which
/// step runs differ, tensors in which layer.
struct Comparison {
  std::uint64_t steps = 0;         ///< recorded by both
  std::uint64_t first_step = 0;    ///< of those
  std::uint64_t last_step = 0;     ///< of those
  std::uint64_t hashed_steps = 0;  ///< of those, with tensors' hashes in both
  std::uint64_t epochs = 0;        ///< that ended at the same step in both

  std::optional<Difference> figure;
  std::optional<Difference> tensor;
  std::optional<Difference> epoch;
  std::vector<Difference> settings;  ///< a hint; runs whose settings differ may still be the same

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
/// with null where nothing differs, and settings as TOML literals.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep::train
