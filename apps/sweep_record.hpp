// sweep.json: the trials of a sweep and their states. The groups of ranks that run the trials share
// the file: each takes the next trial from it when it is free.
//
//   {"version": "0.1.0", "metric": "testing score", "halving": 1, "rungs": [],
//    "base": {"batch-size": "128", ...},        settings that determine results, as TOML literals,
//                                               and `data`; `ranks` is the size of a group
//    "trials": [{"trial": 1, "settings": {"learning-rate": "0.01"}, "state": "finished",
//                "exit_code": 0, "reason": "", "data": "16 hex digits",
//                "results": [{"epochs": 3, "test_loss": 0.21, "test_accuracy": 0.94,
//                             "validation_loss": 0.2, "validation_accuracy": 0.9,   if there is one
//                             "test_auc": 0.98, "validation_auc": 0.97,    of the setting `metrics`
//                             "seconds": 1.7, "weights_hash": "16 hex digits"}]}, ...]}
//
// A result is of a rung, without halving of the end. Regressions have "test_r2" in place of
// "test_accuracy". The state is "waiting", "running", "finished", "failed", "dropped" (by halving)
// or "stopped" (cut off by a signal or a time limit).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/sweep_file.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::apps {

struct Trial {
  TrialSettings settings;
  std::string state = "waiting";
  ExitCode code = ExitCode::success;  ///< of a failed trial
  std::string reason = {};            ///< of a failed trial
  std::string data = {};              ///< a hash of its data; empty: not known
  /// What it has reached at each rung: the last epoch, with the seconds of all that were recorded.
  /// In sweep.json without the training figures.
  std::vector<train::EpochReport> results = {};

  const train::EpochReport* last() const { return results.empty() ? nullptr : &results.back(); }
};

/// The content of sweep.json.
struct SweepRecord {
  std::string version;
  std::string metric;
  std::uint64_t halving = 1;
  std::vector<std::uint64_t> rungs;
  TrialSettings base;
  std::vector<Trial> trials;

  std::size_t rung_count() const { return std::max<std::size_t>(1, rungs.size()); }
};

/// The text of OUT/sweep.json, its content, and both at once. Throw DataError: no such file, or a
/// damaged one. Local.
std::string sweep_record_text(const std::filesystem::path& out);
SweepRecord parse_sweep_record(const std::string& text, const std::filesystem::path& out);
SweepRecord read_sweep_record(const std::filesystem::path& out);

/// Held by the first rank of each group while it takes trials, so that no other job does.
FolderLock join_sweep(const std::filesystem::path& out, int world_rank);

/// Held if a job runs trials of the sweep; see lock_state(). Local.
LockState lock_state_of_sweep(const std::filesystem::path& out);

/// Creates OUT/sweep.json, or prepares it to be continued: trials that a job before has begun and
/// not ended wait again, and so do those that were refused, since that may depend on the launch.
/// The metric may be another one while no trial has a result. The caller holds the lock of the
/// folder.
///
/// Errors   throws ConfigError if the folder has another sweep, with the first difference,
///          or if ranks of an earlier job still run trials of this one;
///          OutputError; DataError if sweep.json is damaged.
void begin_sweep_record(const std::filesystem::path& out, const SweepRecord& begin);

/// Takes the first trial that waits for its result of `rung`, which is "running" then. nullopt:
/// there is none, or a trial was stopped. Local; any number of processes and threads at a time.
std::optional<std::size_t> claim_trial(const std::filesystem::path& out, std::size_t rung);

/// True if a trial waits for its result of `rung`.
bool is_waiting(const SweepRecord& record, std::size_t rung);

/// Records a hash of what identifies the data of a claimed trial.
///
/// Errors   throws ConfigError if a trial with the same settings of the data had other data: trials
///          are compared with each other; Error (70) if another group trains that trial now.
/// Ranks    local; any number at a time.
void set_data(const std::filesystem::path& out, std::size_t trial, const std::string& identity);

/// How a claimed trial ended. Local; any number at a time, as of the next.
void add_result(const std::filesystem::path& out, std::size_t trial,
                const train::EpochReport& result);
void set_failed(const std::filesystem::path& out, std::size_t trial, ExitCode code,
                const std::string& reason);
void set_stopped(const std::filesystem::path& out, std::size_t trial);

/// Drops all but the best 1/halving of the trials that have a result of `rung`, rounded up. A
/// function of the results alone: a second call changes nothing.
void drop_after_rung(const std::filesystem::path& out, std::size_t rung);

/// The trials from the best to the worst: those with more results first, then by metric, then by
/// number; failed ones last.
std::vector<std::size_t> ranked(const SweepRecord& record);

/// True if the result's metric is finite.
bool is_usable(const train::EpochReport& result, const std::string& metric);

/// "learning-rate 0.01, layers 32", for messages.
std::string trial_settings_text(const TrialSettings& settings);

/// "trial-003" for index 2: trials are counted from 1.
std::string trial_name(std::size_t trial);

}  // namespace lockstep::apps
