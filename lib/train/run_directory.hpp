// The folder that records a run: config.toml, metrics.jsonl, summary.json, checkpoints/.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

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
/// the steps that --hash-every names:
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

}  // namespace lockstep::train
