#include "lockstep/train/run_directory.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/table.hpp"
#include "lockstep/train/json_fields.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/shared_snapshot.hpp"

namespace lockstep::train {

using nlohmann::ordered_json;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto flush_interval = std::chrono::seconds(1);

/// Lets the link `latest` beside the folder lead to it, unless a file or folder has that name. A
/// convenience: where a link cannot be made, there is none.
void link_latest(const std::filesystem::path& folder) {
  const auto link = folder.parent_path() / "latest";
  std::error_code error;
  const auto type = std::filesystem::symlink_status(link, error).type();
  if (type != std::filesystem::file_type::not_found &&
      type != std::filesystem::file_type::symlink) {
    return;
  }
  const auto temporary = folder.parent_path() / ("." + folder.filename().string() + ".latest");
  std::filesystem::create_directory_symlink(folder.filename(), temporary, error);
  if (!error) std::filesystem::rename(temporary, link, error);
  if (error) std::filesystem::remove(temporary, error);
}

/// Creates runs/2026-11-20-235959, or with -2, -3 ... if that exists, so that two runs that start
/// in the same second have separate folders.
std::filesystem::path claim_dated_folder() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d-%H%M%S", &local);
  const std::filesystem::path first = std::filesystem::path("runs") / text.data();
  make_folder(first.parent_path());
  std::filesystem::path path = first;
  for (int n = 2; !claim_folder(path); ++n) path = first.string() + "-" + std::to_string(n);
  link_latest(path);
  return path;
}

/// True for the folder of a job that ended while it made the run by which it continues another one:
/// `checkpoints` appears last but for summary.json, which every run has from its beginning.
bool is_half_made(const std::filesystem::path& path) {
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(path / name, ignored);
  };
  return has(".lock") && !has("checkpoints") && !has("summary.json");
}

/// As require_no_run(), for a folder that this process has locked.
void refuse_run(const std::filesystem::path& path, bool continues_another) {
  const std::string name = run_file_in(path);
  if (name.empty() || (continues_another && is_half_made(path))) return;
  const bool is_saved = has_checkpoint(path);
  throw ConfigError("run-dir " + path.string() + ": holds a run already (" + name + ")" +
                        (is_saved ? "" : ", which has saved no checkpoint"),
                    (is_saved ? "continue it with `resume=" + path.string() + "`" : "remove it") +
                        ", or choose another `run_dir`");
}

/// Copies metrics.jsonl and epochs.jsonl of the run `from`, as far as it has them.
void copy_records(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"metrics.jsonl", "epochs.jsonl"}) {
    std::error_code error;
    if (!std::filesystem::exists(from / name, error)) continue;
    constexpr auto replace = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(from / name, to / name, replace, error);
    if (error) {
      throw OutputError((to / name).string() + ": cannot be copied: " + error.message(),
                        "free space there, or choose another folder");
    }
  }
}

/// For LineFile: keeps the records of steps (epochs) 1 to `last`, each later than the one before.
/// `begin` is what a record begins with, before its number; other lines are damaged, and dropped.
/// Sets `kept` to the number of the last one that it keeps.
std::function<bool(std::string_view)> records_up_to(std::string_view begin, std::uint64_t last,
                                                    std::uint64_t& kept) {
  return [begin, last, &kept](std::string_view line) {
    if (!line.starts_with(begin) || !line.ends_with('}')) return false;
    line.remove_prefix(begin.size());
    const auto number = whole_number(line.substr(0, line.find(',')));
    if (!number || *number <= kept || *number > last) return false;
    kept = *number;
    return true;
  };
}

ordered_json or_null(const std::optional<double>& figure) {
  return figure ? ordered_json(*figure) : ordered_json(nullptr);
}

ordered_json epoch_json(const EpochReport& epoch) {
  ordered_json json = {{"epoch", epoch.epoch}, {"train_loss", epoch.train_loss}};
  json[epoch.is_regression ? "train_r2" : "train_accuracy"] = or_null(epoch.train_score);
  add_figures(json, epoch);
  json["seconds"] = epoch.seconds;
  json["examples_per_second"] = epoch.examples_per_second;
  json["weights_hash"] = to_hex(epoch.weights_hash);
  return json;
}

/// The steps and epochs up to which records are kept when a run goes on in its folder: also those
/// before its newest checkpoint, from which it is resumed if it ends before it gets there again.
std::pair<std::uint64_t, std::uint64_t> last_kept(const std::filesystem::path& run,
                                                  const Continued& begin) {
  const auto checkpoints = checkpoints_in(run / "checkpoints");
  for (auto at = checkpoints.rbegin(); at != checkpoints.rend() && at->first > begin.steps; ++at) {
    try {
      return {at->first, std::max(begin.position.epoch, read_state(at->second).position.epoch)};
    } catch (const DataError&) {  // damaged: no run is resumed from it
    }
  }
  return {begin.steps, begin.position.epoch};
}

/// Throws ConfigError if the run has a checkpoint of a later step than `steps`: another job has
/// saved it since this job chose its own.
void require_not_continued(const std::filesystem::path& run, std::uint64_t steps) {
  const auto checkpoints = checkpoints_in(run / "checkpoints");
  if (checkpoints.empty() || checkpoints.rbegin()->first <= steps) return;
  throw ConfigError(run.string() + ": another job has continued this run meanwhile, to step " +
                        std::to_string(checkpoints.rbegin()->first),
                    "start this job again");
}

[[noreturn]] void leave_to_others(const std::filesystem::path& path, const std::string& why) {
  throw Error(ExitCode::timeout, path.string() + ": " + why + ", so the ranks here end",
              "resume from a checkpoint if the job does not go on elsewhere");
}

/// Throws unless `members`, which are left of a group, are of the group that wrote here last: then
/// no others have gone on without them.
void require_members(const std::filesystem::path& path, const std::vector<int>& members) {
  std::ifstream file(path / ".members");
  const std::set<int> last{std::istream_iterator<int>(file), {}};
  const bool are_all =
      std::all_of(members.begin(), members.end(), [&](int rank) { return last.count(rank) != 0; });
  if (!are_all) leave_to_others(path, "other ranks, cut off from these, continue this run");
}

std::string text_of(const std::vector<int>& members) {
  std::string text;
  for (const int rank : members) text += std::to_string(rank) + '\n';
  return text;
}

}  // namespace

std::optional<FolderLock> lock_again(const std::filesystem::path& folder,
                                     const std::vector<int>& members, bool is_last_try) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "metrics.jsonl", ignored)) {
    leave_to_others(folder, "the run's folder is not on this host");
  }
  require_members(folder, members);  // not only when the others have ended
  try {
    FolderLock lock(folder);
    require_members(folder, members);
    return lock;
  } catch (const ConfigError& error) {
    if (is_last_try) leave_to_others(folder, error.problem());
    return std::nullopt;
  }
}

std::filesystem::path run_of(const std::filesystem::path& checkpoint) {
  if (checkpoint.empty()) return {};
  const auto parent = std::filesystem::absolute(checkpoint).parent_path();
  return parent.filename() == "checkpoints" ? parent.parent_path() : std::filesystem::path();
}

void require_no_run(const std::filesystem::path& path, bool continues_another) {
  if (run_file_in(path).empty()) return;
  require_not_locked(path);
  refuse_run(path, continues_another);
}

void remove_unsaved_run(const std::filesystem::path& path, std::uint64_t begun_after) {
  if (run_file_in(path).empty()) return;
  const FolderLock lock(path);
  std::error_code error;
  for (const auto& entry : list_folder(path / "checkpoints", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && name != checkpoint_name(begun_after)) return;
  }
  if (error && error != std::errc::no_such_file_or_directory) return;
  for (const std::string_view name : run_entries) {
    std::error_code ignored;  // what is left is found when the run begins
    if (name != "flight") std::filesystem::remove_all(path / name, ignored);
  }
}

RunDirectory::RunDirectory(const std::string& path, const std::string& config_toml, RunFacts facts,
                           const Retention& retention, const std::optional<Continued>& continued,
                           std::optional<FolderLock> lock)
    : path_(path == "auto" ? claim_dated_folder() : std::filesystem::path(path)),
      facts_(std::move(facts)),
      retention_(retention),
      lock_(std::move(lock)) {
  const Continued begin = continued.value_or(Continued());
  const std::filesystem::path run = run_of(begin.checkpoint);
  std::error_code ignored;
  const bool is_its_own = continued && (begin.in_place || begin.checkpoint.empty() ||
                                        std::filesystem::equivalent(run, path_, ignored));
  const bool continues_another = !is_its_own && !begin.checkpoint.empty();
  if (!is_its_own) require_no_run(path_, continues_another);
  if (!lock_) {
    make_folder(path_);
    lock_.emplace(path_);
  }
  if (!is_its_own) refuse_run(path_, continues_another);  // a run that began before the lock
  if (!facts_.members.empty()) write_file(path_ / ".members", text_of(facts_.members));
  const auto checkpoints = path_ / "checkpoints";
  remove_temporaries_in(path_);
  std::optional<NewFolder> start;  // with the checkpoint of another run
  if (continues_another) {
    start.emplace(checkpoints);
    copy_checkpoint(begin.checkpoint, start->path(),
                    {.position = begin.position, .settings = facts_.settings});
    if (!run.empty()) copy_records(run, path_);
  } else {
    make_folder(checkpoints);
    remove_temporaries_in(checkpoints);
  }
  if (is_its_own && !begin.in_place) {
    set_aside_damaged_after(checkpoints, begin.steps);
    require_not_continued(path_, begin.steps);
  }
  resumed_from_ = begin.checkpoint;
  write_file(path_ / "config.toml", config_toml);
  if (start) start->publish();  // last: a job that resumes it needs these records and settings
  const auto [steps, epochs] =
      begin.in_place ? last_kept(path_, begin) : std::pair(begin.steps, begin.position.epoch);
  metrics_.emplace(path_ / "metrics.jsonl", records_up_to(R"({"step":)", steps, steps_));
  JsonPlace place = {path_ / "epochs.jsonl", 0,
                     "restore the file, or remove it: training goes on without it"};
  const auto keeps = records_up_to(R"({"epoch":)", epochs, epochs_recorded_);
  epochs_.emplace(place.path, [&](std::string_view line) {
    ++place.line;
    const EpochTimes times = times_in(line);
    if (epochs_recorded_ >= epochs || times.epoch > epochs) {
      if (dropped_epoch_.epoch == 0) dropped_epoch_ = times;
      return false;
    }
    auto record = parse_object(std::string(line), place);  // an error if it is damaged
    if (!keeps(line)) return false;
    epoch_records_.push_back(std::move(record));
    return true;
  });
  steps_ = std::max(steps_, begin.steps);
  epochs_recorded_ = std::max(epochs_recorded_, begin.position.epoch);
  write_file(path_ / "summary.json", summary("running", nullptr, ExitCode::success, ""));
}

RunDirectory::~RunDirectory() = default;

/// Of a line of epochs.jsonl; none if it is damaged.
RunDirectory::EpochTimes RunDirectory::times_in(std::string_view line) {
  const JsonPlace place = {"epochs.jsonl", 0, ""};
  try {
    const auto record = parse_object(std::string(line), place);
    return {count_in(record, "epoch", place), number_in(record, "seconds", place),
            number_in(record, "examples_per_second", place)};
  } catch (const DataError&) {
    return {};
  }
}

std::uint64_t RunDirectory::recorded_epochs() const noexcept { return epoch_records_.size(); }

void RunDirectory::on_step(const StepReport& report) {
  if (report.step > steps_) record(report);
  const auto now = Clock::now();
  if (now - flushed_ < flush_interval) return;
  write_out();
  flushed_ = now;
  const bool saved =
      saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (saved) finish_checkpoint();  // an error ends the run now, not at the next checkpoint
}

void RunDirectory::record(const StepReport& report) {
  ordered_json line = {{"step", report.step},
                       {"epoch", report.epoch},
                       {"examples", report.examples},
                       {"loss", report.loss}};
  if (report.accuracy) line["accuracy"] = *report.accuracy;
  if (report.learning_rate) line["learning_rate"] = *report.learning_rate;
  if (report.gradient_norm) line["gradient_norm"] = *report.gradient_norm;
  line["seconds"] = report.seconds;
  if (!report.skipped.empty()) line["skipped"] = true;
  for (const auto& [tensor, hash] : report.hashes) line["hashes"][tensor] = to_hex(hash);
  metrics_->write(line.dump());
  steps_ = report.step;
}

void RunDirectory::on_epoch(const EpochReport& report) {
  write_out();
  if (report.epoch <= epochs_recorded_) return;
  epochs_recorded_ = report.epoch;
  ordered_json record = epoch_json(report);
  if (report.seconds == 0 && dropped_epoch_.epoch == report.epoch) {
    // Resumed at the epoch's end, and evaluated again: the time is that of its training.
    record["seconds"] = dropped_epoch_.seconds;
    record["examples_per_second"] = dropped_epoch_.examples_per_second;
  }
  epoch_records_.push_back(std::move(record));
  epochs_->write(epoch_records_.back().dump());
  epochs_->flush();
  renew_summary();
}

/// Not if that would take more than a twentieth of the time: of many short epochs, or on a slow
/// disk. Where it cannot be written, the next record, a checkpoint or the end says why.
void RunDirectory::renew_summary() noexcept {
  constexpr int share = 20;
  const auto begin = Clock::now();
  if (begin - renewed_ < share * renewal_) return;
  try {
    write_file(path_ / "summary.json", summary("running", nullptr, ExitCode::success, ""));
  } catch (const std::exception&) {  // see above
  }
  renewed_ = Clock::now();
  renewal_ = renewed_ - begin;
}

void RunDirectory::end(ExitCode code, const std::string& cause) noexcept {
  try {
    write_out();  // throws if another folder has this name by now
    const char* const status = code == ExitCode::stopped ? "stopped" : "failed";
    write_file(path_ / "summary.json", summary(status, nullptr, code, cause));
  } catch (const std::exception&) {  // the error that ended the run is reported instead
  }
}

void RunDirectory::flush() {
  write_out();
  if (facts_.members.empty()) return;
  metrics_->sync();
  epochs_->sync();
}

void RunDirectory::write_out() {
  metrics_->flush();
  require_in_place();
}

/// Otherwise training would write to files without a name, and a checkpoint to a new folder.
void RunDirectory::require_in_place() const {
  if (metrics_->is_in_place()) return;
  const auto& last = last_checkpoint_.empty() ? resumed_from_ : last_checkpoint_;
  std::error_code ignored;
  const bool is_saved = !last.empty() && std::filesystem::exists(last, ignored);
  const std::string state = last.empty() ? "no checkpoint was saved"
                            : is_saved   ? "the last checkpoint is " + last.string()
                                         : "lost with it: the last checkpoint, " + last.string();
  throw OutputError(
      path_.string() + ": this run's metrics.jsonl was removed, moved or replaced; " + state,
      std::string("leave the folder of a run in place while it trains; ") +
          (is_saved ? "continue from the checkpoint with `resume`" : "start the run again"));
}

void RunDirectory::on_checkpoint(const DueCheckpoint& due) {
  metrics_->sync();  // a checkpoint's steps must be recorded
  epochs_->sync();
  require_in_place();
  CheckpointInfo info = facts_.checkpoint;
  info.step = due.step;
  info.examples = due.examples;
  const TrainingState state = {.position = due.position, .settings = facts_.settings};
  const auto save = [this, info, state, &snapshot = due.snapshot] {
    const auto folder = path_ / "checkpoints";
    claim_folder(folder);  // throws if the run's folder was removed or moved, and creates no other
    auto saved = save_checkpoint(folder, snapshot, info, &state);
    remove_old_checkpoints(folder, info.step, retention_.newest, retention_.every,
                           state.position.best.step);
    return saved;
  };
  // A copyable task, so that it is left if no thread can be started.
  const auto task = std::make_shared<std::packaged_task<std::filesystem::path()>>(save);
  saving_ = task->get_future();
  try {
    saver_ = start_thread("that saves checkpoints", [task] { (*task)(); });
  } catch (const Error&) {
    (*task)();
  }
}

void RunDirectory::finish_checkpoint() {
  if (!saving_.valid()) return;
  try {
    last_checkpoint_ = saving_.get();
  } catch (const Error&) {
    require_in_place();  // if the folder was removed, that is the cause
    throw;
  }
}

namespace {

ordered_json list_of_classes(const Evaluation& test, const std::vector<std::string>& names) {
  ordered_json classes = ordered_json::array();
  for (const ClassCounts& counts : test.classes()) {
    const auto index = classes.size();
    classes.push_back({{"label", names.empty() ? std::to_string(index) : names[index]},
                       {"examples", counts.examples},
                       {"recall", or_null(counts.recall())},
                       {"precision", or_null(counts.precision())},
                       {"f1", or_null(counts.f1())}});
  }
  return classes;
}

/// Of each value of a regression: R2, and the error in the units of the table.
ordered_json list_of_targets(const Evaluation& test, const data::TableSchema* table) {
  ordered_json targets = ordered_json::array();
  for (std::size_t i = 0; i < test.values.size(); ++i) {
    const auto& target = table == nullptr ? data::TableColumn() : table->targets[i];
    targets.push_back({{"name", table == nullptr ? std::to_string(i) : target.name},
                       {"r2", test.values[i].r2()},
                       {"rmse", target.deviation * test.values[i].rmse()}});
  }
  return targets;
}

}  // namespace

ordered_json scores_json(const Evaluation& test, const CheckpointInfo& info) {
  if (!test.values.empty()) return list_of_targets(test, info.table.get());
  return list_of_classes(test, info.class_names());
}

namespace {

ordered_json report_json(const RunReport& report, const CheckpointInfo& info) {
  const auto& seconds = report.step_seconds;
  ordered_json json = {
      {"steps", report.steps},
      {"examples", report.examples},
      {"skipped_steps", report.skipped_steps},
      {"step_seconds",
       {{"median", seconds.total},
        {"data", seconds.data},
        {"compute", seconds.compute},
        {"reduce", seconds.reduce},
        {"update", seconds.update}}},
      {"seconds_before_exchange", report.seconds_before_exchange},
      {"startup_seconds",
       report.startup_seconds > 0 ? ordered_json(report.startup_seconds) : ordered_json(nullptr)},
      {"evaluation_seconds", report.evaluation_seconds},
      {"checkpoint_seconds", report.checkpoint_seconds},
      {"examples_per_second", report.examples_per_second},
      {"weights_hash", to_hex(report.weights_hash)},
      {report.test.values.empty() ? "classes" : "targets", scores_json(report.test, info)},
      {"test_ids_digest", to_hex(report.test.ids_digest)},
      {"data", {{"bytes_read", report.bytes_read}}},
      {"peak_rss_bytes", peak_rss_bytes()}};
  if (!report.shares.empty()) json["shares"] = report.shares;
  if (report.best.epoch > 0) {
    json["best"] = {{"epoch", report.best.epoch}, {"step", report.best.step}};
    json["stopped_early"] = report.stopped_early;
  }
  return json;
}

}  // namespace

/// `report`: of a finished run, else null.
std::string RunDirectory::summary(const char* status, const RunReport* report, ExitCode code,
                                  const std::string& cause) const {
  ordered_json summary = {{"status", status}};
  if (code != ExitCode::success) {
    summary["exit_code"] = static_cast<int>(code);
    summary["cause"] = presentable(cause);
  }
  summary.update({{"version", facts_.version},
                  {"ranks", facts_.ranks},
                  {"device", facts_.device},
                  {"parameters", facts_.parameters},
                  {"steps", steps_},
                  {"epochs", epoch_records_},
                  {"plan_digest", to_hex(facts_.plan_digest)}});
  if (report != nullptr) summary.update(report_json(*report, facts_.checkpoint));
  for (const LostRanks& lost : facts_.lost) {
    for (const int rank : lost.ranks) {
      summary["ranks_lost"].push_back({{"rank", rank}, {"step", lost.step}});
    }
  }
  for (const Fault& fault : facts_.faults) {
    summary["faults"].push_back(
        {{"step", fault.step}, {"rank", fault.rank ? ordered_json(*fault.rank) : nullptr}});
  }
  if (!resumed_from_.empty()) summary["resumed_from"] = resumed_from_.string();
  return summary.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void RunDirectory::finish(const RunReport& report) {
  write_out();
  write_file(path_ / "summary.json", summary("finished", &report, ExitCode::success, ""));
}

}  // namespace lockstep::train
