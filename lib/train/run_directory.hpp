// Run directories: record a run in a folder, read it, and compare two runs.
//
//   config.toml      the program's resolved settings, in the program's format
//   metrics.jsonl    one object per step
//   epochs.jsonl     one object per epoch, as in summary.json
//   summary.json     one object: the whole run and its epochs, from the first step on
//   checkpoints/     see checkpoint.hpp
//   .members         the ranks that write here, if they may be cut off from other ranks of the job
//   .lock            held while a job writes here; contains its host and process id
//
// A line of metrics.jsonl, with the tensors' hashes every `hash_every` steps:
//   {"step": 1, "epoch": 1, "examples": 128, "loss": 2.327221, "accuracy": 0.0625,
//    "seconds": 0.0041, "hashes": {"0.weight": "16 hex digits", ...}}
// with "learning_rate" under a schedule or a warm-up, "gradient_norm" (before it was clipped) with
// clip_norm, and "skipped": true in a step that changed nothing, where "loss" may be null: not
// finite. Loss and accuracy are those before the step's update; training's of an epoch are their
// means over its examples, with their weights in the loss.
// summary.json has the fields of RunReport and RunFacts. While the run is trained it has those that
// are known, and the last epochs may be missing. Some of them:
//   "status"                   "running"; "finished"; "stopped", with a checkpoint; or "failed".
//                              "running" remains where the process is killed, or ended by
//                              `timeout`
//   "exit_code", "cause"       of a run that was stopped or failed, as rank 0 saw it: 86 where
//                              another rank failed, whose message has the cause
//   "skipped_steps"            steps of the whole run that changed nothing: see OnNonfinite
//   "seconds_before_exchange"  see RunReport: a number for each rank of the group that trained last
//   "classes"                  of the test set: [{"label": "3", "examples": 1010, "recall": 0.98,
//                              "precision": 0.97, "f1": 0.975}, ...]; null: of nothing; empty for
//                              more than 256 classes
//   "best", "stopped_early"    with a choice of the best epoch: {"epoch": 2, "step": 60}, true
//   "targets"                  of a regression, in place of "classes": [{"name": "price",
//                              "r2": 0.98, "rmse": 12.6}, ...]; its epochs have "train_r2" and
//                              "test_r2" in place of accuracies, and its steps no "accuracy"
//   "shares"                   with `balance`, leaves of a batch: a number for each rank, as above
//   "ranks_lost"               ranks that this job lost, and the completed step from which the
//                              others went on: [{"rank": 2, "step": 144}]
//   "faults"                   faults that this job corrected, a rank of null where it is unknown:
//                              [{"step": 20, "rank": 2}]
// Fields of these files may be added, never renamed. Numbers are written with enough digits to
// read the same doubles.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

/// Ranks that were lost during a run, by world rank.
struct LostRanks {
  std::uint64_t step = 0;  ///< completed step from which the others went on
  std::vector<int> ranks;
};

/// A fault that was found and corrected.
struct Fault {
  std::uint64_t step = 0;   ///< that was checked
  std::optional<int> rank;  ///< at fault, by world rank; none: unknown
};

/// Fields of summary.json besides the report.
struct RunFacts {
  std::string version;
  int ranks = 1;
  std::string device = "cpu";  ///< of rank 0
  std::uint64_t parameters = 0;
  std::uint64_t plan_digest = 0;
  /// The ranks that train, by world rank, if some of them may be cut off from the others.
  std::vector<int> members = {};
  std::vector<LostRanks> lost = {};  ///< so far
  std::vector<Fault> faults = {};    ///< so far
  CheckpointInfo checkpoint = {};    ///< step and examples are filled in when one is saved
  /// For checkpoints: see TrainingState.
  std::vector<std::pair<std::string, std::string>> settings = {};
};

/// The checkpoints that a run keeps: the newest, those of a step that `every` divides, and that of
/// the best epoch.
struct Retention {
  std::uint64_t newest = 3;
  std::optional<std::uint64_t> every = {};
};

/// The run of a checkpoint: RUN for RUN/checkpoints/step-NNNNNNNN; empty for a checkpoint
/// elsewhere.
std::filesystem::path run_of(const std::filesystem::path& checkpoint);

/// The point at which a run is continued.
struct Continued {
  std::filesystem::path checkpoint;  ///< empty: from the beginning
  std::uint64_t steps = 0;           ///< completed
  TrainingPosition position = {};
  bool in_place = false;  ///< of the folder's own run, by ranks that are left of it
};

/// Writes a run's folder. Use it on rank 0 only; all functions are local.
///
/// metrics.jsonl is flushed every second, at the end of every epoch and with every checkpoint. Each
/// time, OutputError is thrown if the folder was removed, replaced or hidden by another mount
/// since. flush() also syncs it and epochs.jsonl to the disk if `facts.members` are given: a whole
/// host may be lost. Checkpoints are saved by a thread, one at a time; by the caller where the
/// system permits no further thread.
class RunDirectory final : public Observer {
 public:
  /// Creates the folder, locks it, and writes config.toml; `path` "auto" means runs/DATE-TIME.
  ///
  /// `continued`: keeps the records of the steps and epochs before this point, and drops later ones
  /// and damaged ones of steps; in another folder than the checkpoint's run, begins with copies of
  /// them and of the checkpoint, with this position and the settings of `facts`. Its folder
  /// `checkpoints` appears last: no job can resume the new run before, and each can after that. In
  /// place, keeps also those before the newest checkpoint, which are not recorded again. Temporary
  /// files of killed processes are removed.
  ///
  /// `facts.members`: of ranks that are cut off from each other, one group continues the run: the
  /// first to lock the folder. The file .members contains its ranks.
  ///
  /// `lock`: the folder's, from lock_again(); null: it is locked here.
  ///
  /// Errors   throws ConfigError if another job writes to the folder, or has continued the run
  ///          beyond this point, or if the folder contains another run; OutputError if it cannot be
  ///          created or written; DataError for a damaged epochs.jsonl, or a damaged checkpoint to
  ///          copy.
  RunDirectory(const std::string& path, const std::string& config_toml, RunFacts facts,
               const Retention& retention = {}, const std::optional<Continued>& continued = {},
               std::optional<FolderLock> lock = {});
  ~RunDirectory() override;
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

  /// Number of steps in metrics.jsonl.
  std::uint64_t recorded_steps() const noexcept { return metrics_->lines(); }

  /// Number of epochs in epochs.jsonl.
  std::uint64_t recorded_epochs() const noexcept;

  /// The checkpoint saved last; empty before the first.
  const std::filesystem::path& last_checkpoint() const noexcept { return last_checkpoint_; }

  void on_step(const StepReport& report) override;
  void on_epoch(const EpochReport& report) override;
  void on_checkpoint(const DueCheckpoint& due) override;
  void finish_checkpoint() override;
  void flush() override;

  /// Writes the whole summary.json, with the status "finished". Throws OutputError.
  void finish(const RunReport& report);

  /// Writes in summary.json that the run was stopped (ExitCode::stopped) or failed, and why. Not if
  /// that cannot be written.
  void end(ExitCode code, const std::string& cause) noexcept;

 private:
  struct EpochTimes {
    std::uint64_t epoch = 0;  ///< its number; 0: none
    double seconds = 0;
    double examples_per_second = 0;
  };

  static EpochTimes times_in(std::string_view line);
  void record(const StepReport& report);
  void write_out();
  void require_in_place() const;
  std::string summary(const char* status, const RunReport* report, ExitCode code,
                      const std::string& cause) const;
  void renew_summary() noexcept;

  std::filesystem::path path_;
  RunFacts facts_;
  Retention retention_;
  std::filesystem::path resumed_from_;  ///< empty: from the beginning
  std::optional<FolderLock> lock_;
  std::optional<LineFile> metrics_;
  std::optional<LineFile> epochs_;
  std::vector<nlohmann::ordered_json> epoch_records_;  ///< the lines of epochs.jsonl
  EpochTimes dropped_epoch_;  ///< the first that was dropped from epochs.jsonl: see on_epoch()
  std::future<std::filesystem::path> saving_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
  std::filesystem::path last_checkpoint_;
  std::uint64_t steps_ = 0;            ///< recorded
  std::uint64_t epochs_recorded_ = 0;  ///< or missing in epochs.jsonl
  std::chrono::steady_clock::time_point renewed_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration renewal_{};  ///< time that the last renewal took
  std::jthread saver_;  ///< last member: joined before the others are destroyed
};

/// The scores of a test set as a list: of each class label, examples, recall, precision and
/// F1, null where there is no example; of each target of a regression name, R2 and root mean square
/// error in its own units. Local.
nlohmann::ordered_json scores_json(const Evaluation& test, const CheckpointInfo& info);

/// Throws ConfigError if `folder` holds a run, which may be in use by another job. Local.
///
/// `continues_another`: of a job that continues the run of another folder. It may begin where such
/// a job has ended while it made its run.
void require_no_run(const std::filesystem::path& folder, bool continues_another);

/// Locks `folder` for ranks that continue their own run in it, `members` as in RunFacts; null:
/// another process holds the lock. That of a lost host is free when its file system notices: NFS
/// takes 90 seconds. That of ranks which are cut off from these, and go on, is not.
///
/// Errors   throws Error (86) if other ranks continue the run, if the folder is not on this host,
///          and, in the last try, instead of null.
/// Ranks    local.
std::optional<FolderLock> lock_again(const std::filesystem::path& folder,
                                     const std::vector<int>& members, bool is_last_try);

/// Removes the run in `folder`, but for its flight recorders, if it has certainly saved no
/// checkpoint, so that it can begin again. Throws ConfigError if another process holds the lock.
/// Local.
///
/// `begun_after`: the step of a checkpoint that the run began with; 0: none.
void remove_unsaved_run(const std::filesystem::path& folder, std::uint64_t begun_after = 0);

}  // namespace lockstep::train
