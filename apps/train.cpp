// `lockstep train`: runs training from the configuration to the closing table.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/fault_injection.hpp"
#include "apps/flag_names.hpp"
#include "apps/run_file.hpp"
#include "apps/settings.hpp"
#include "apps/start_from_saved.hpp"
#include "apps/subcommands.hpp"
#include "apps/train_job.hpp"
#include "apps/training_banner.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/train/device.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/run_directory.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "lockstep/train/stragglers.hpp"
#include "lockstep/train/trainer.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

train::RunFacts facts_of(const RunConfig& config, const TrainData& data, const TrainJob& job,
                         int ranks) {
  train::RunFacts facts;
  facts.version = version;
  facts.ranks = ranks;
  facts.device = job.replica->device() != nullptr ? job.replica->device()->device() : "cpu";
  facts.parameters = job.replica->shape().parameters();
  facts.plan_digest = job.plan->digest();
  facts.checkpoint.divide_by = data.sets.train->divisor();
  facts.checkpoint.data = config.data;
  facts.checkpoint.table = data.sets.train->table();
  facts.checkpoint.pictures = data.sets.train->pictures();
  facts.settings = job.decisive;
  return facts;
}

/// Warns of stragglers, on rank 0; null: not wanted. Collective.
std::unique_ptr<train::Stragglers> make_stragglers(const RunConfig& config, const TrainJob& job) {
  if (!config.straggler_warning) return nullptr;
  comm::Communicator& comm = job.replica->groups().batch;
  auto names = comm::gather_text(
      comm, fmt::format("rank {} on {}", comm.world_rank(comm.rank()), comm.place().host));
  return std::make_unique<train::Stragglers>(static_cast<double>(*config.straggler_warning),
                                             job.train->plan(), std::move(names),
                                             launching::print_warning);
}

/// Sets the replica to the checkpoint's state. Collective.
void restore_checkpoint(const Resume& resume, TrainJob& job, comm::Communicator& comm) {
  std::optional<train::SavedNetwork> saved;
  comm::together(comm, [&] {
    require_same_data(resume, job.decisive);
    saved = train::read_description(resume.checkpoint);
    const std::string network = job.replica->shape().text();
    if (network != saved->shape.text()) {
      throw ConfigError(fmt::format("--resume: the network is {}, but that of the checkpoint is {}",
                                    network, saved->shape.text()),
                        "train it in a run of its own; --init begins with the weights of another");
    }
    const auto total = train::total_steps(resume.config.epochs, resume.config.steps, *job.plan);
    if (saved->info.step <= total) return;
    throw ConfigError(
        fmt::format("--resume: the checkpoint is of step {}, but this job ends after {}",
                    saved->info.step, counted(total, "step")),
        "train for longer: --resume-with epochs=N, or steps=N");
  });
  job.replica->restore(*saved, resume.state);
}

void warn_of_missing_records(const train::RunDirectory& directory, std::uint64_t steps,
                             std::uint64_t epochs) {
  const auto warn = [&](const char* file, const char* noun, std::uint64_t there,
                        std::uint64_t trained) {
    if (there >= trained) return;
    launching::print_warning(fmt::format("{} records {} of the {} before the checkpoint",
                                         (directory.path() / file).string(), grouped(there),
                                         counted(trained, noun)));
  };
  warn("metrics.jsonl", "step", directory.recorded_steps(), steps);
  warn("epochs.jsonl", "epoch", directory.recorded_epochs(), epochs);
}

/// One rank's part of a run. With `survive` it trains in one group of ranks after the other, and
/// this is what it keeps.
class RankOfRun {
 public:
  /// Opens the data. The arguments must outlive the object. Collective.
  RankOfRun(const RunConfig& config, const std::optional<Resume>& resume,
            const Arguments& arguments, comm::Communicator& comm)
      : config_(config),
        resume_(resume),
        is_dry_run_(arguments.given("dry-run")),
        has_report_(arguments.given("report")),
        spans_hosts_(comm.place().nodes > 1),
        is_folder_new_(config.survive && config.run_dir != "auto" &&
                       !continues_in_place(config, resume) &&
                       train::run_file_in(config.run_dir).empty()),
        recording_(config, comm),
        faults_(comm),
        members_(comm.world_ranks()) {
    const RecordedIn recorded(recording_.recorder(), comm);
    data_ = open_data(config, comm);
    comm::together(comm, [&] {
      if (has_report_) require_reportable(data_.outputs, data_.sets.train->table().get());
    });
  }

  const TrainData& data() const noexcept { return data_; }

  /// Trains to the end: from the newest snapshot of an earlier group, from the checkpoint to
  /// resume, or from the beginning. Collective.
  void train_in(comm::Communicator& comm) {
    const RecordedIn recorded(recording_.recorder(), comm);
    for (;;) {
      try {
        return run_recorded(comm);
      } catch (const comm::RankLost&) {
        since_stop_.take();
        why_again_ = "network was silent";
        throw;
      } catch (const train::NotRepeated& error) {
        remove_checkpoints_after(error.good_steps(), comm);
        throw;
      } catch (const train::FaultFound& fault) {
        since_stop_.take();
        why_again_ = "fault was found";
        if (config_.survive) {
          correct(fault, comm);
        } else {
          remove_checkpoints_after(fault.good_steps(), comm);
          throw;
        }
      }
    }
  }

  void record_end(int code) const {
    if (is_dry_run_) return;
    const bool is_own = !run_.empty();
    record_exit_code(is_own ? run_ : run_dir_of(config_, resume_), code, is_own);
  }

 private:
  void run_recorded(comm::Communicator& comm);
  void run_in(comm::Communicator& comm);
  void correct(const train::FaultFound& fault, comm::Communicator& comm);
  void remove_checkpoints_after(std::uint64_t steps, comm::Communicator& comm) const;
  std::optional<FolderLock> lock_run_again(comm::Communicator& comm) const;
  bool note_lost_ranks(const comm::Communicator& comm, std::uint64_t step);
  train::TrainingPosition restore(TrainJob& job, comm::Communicator& comm);
  bool introduce(const TrainJob& job, const train::TrainingPosition& position, std::uint64_t total,
                 comm::Communicator& comm) const;
  std::optional<train::Continued> continued(const TrainJob& job,
                                            const train::TrainingPosition& position) const;

  const RunConfig& config_;
  const std::optional<Resume>& resume_;
  bool is_dry_run_;
  bool has_report_;
  bool spans_hosts_;  ///< at the beginning
  /// With `survive`: `run_dir` is given, is not the folder of the continued run, and held no run at
  /// the beginning, as this host sees it.
  bool is_folder_new_;
  Recording recording_;
  FaultInjection faults_;
  TrainData data_;
  std::string init_text_;  ///< see start_from()
  std::optional<StopRequests> requests_;
  std::optional<train::RunDirectory> directory_;     ///< on rank 0 of a group that trains
  std::unique_ptr<train::SharedSnapshot> snapshot_;  ///< null without `survive`
  std::vector<int> members_;  ///< of the last group, by world rank; at first all ranks
  std::vector<train::LostRanks> lost_;
  std::vector<train::Fault> faults_found_;
  /// Completed steps of the last good state, when a fault was found.
  std::uint64_t good_steps_ = train::SharedSnapshot::any_steps;
  std::optional<std::uint64_t> begun_after_;  ///< the steps that earlier programs completed
  std::string run_;        ///< the folder that an earlier group recorded in; empty: none
  train::Lap since_stop_;  ///< of training
  const char* why_again_ = "network was silent";  ///< if training goes on with the same ranks
};

/// Prints the banner. False if nothing is to be trained.
bool RankOfRun::introduce(const TrainJob& job, const train::TrainingPosition& position,
                          std::uint64_t total, comm::Communicator& comm) const {
  Banner shown = training_banner(config_, data_, job, comm);
  if (!init_text_.empty()) shown.rows.emplace_back("init", init_text_);
  if (resume_ && resume_->found()) {
    shown.rows.emplace_back("resume", resume_text(*resume_, job.replica->steps()));
  }
  const bool prints = comm.rank() == 0 && progress_of(config_.progress) != Progress::off;
  if (prints) shown.print();
  if (is_dry_run_) {
    if (prints) {
      const std::string run_dir = run_dir_of(config_, resume_);
      fmt::print(
          "{}dry run: all is well; without --dry-run, {} would be trained, and recorded in {}\n",
          schedule_picture(job.replica->optimizer(), total),
          counted(total - job.replica->steps(), "step"),
          run_dir == "auto" ? "runs/DATE-TIME" : run_dir);
    }
    return false;
  }
  if (!resume_ || !resume_->complete) return true;
  const std::uint64_t steps = job.replica->steps();
  const bool stopped_early =
      resume_->stopped_early_after == steps && is_patience_over(position, config_.patience);
  if (steps != total && !stopped_early) return true;
  if (prints) {
    fmt::print("{}: complete after {}; nothing is left to train\n", resume_->run.string(),
               counted(steps, "step"));
  }
  if (has_report_ && comm.rank() == 0) {
    launching::print_warning(
        fmt::format("no report: `lockstep evaluate {} --data ... --report` prints one",
                    in_shell(resume_->run.string())));
  }
  return false;
}

/// Sets the replica to the state to continue from, and returns its position. Collective.
train::TrainingPosition RankOfRun::restore(TrainJob& job, comm::Communicator& comm) {
  if (config_.survive && !comm.all_agree(snapshot_ != nullptr)) {
    snapshot_ = job.replica->make_shared_snapshot();
  }
  if (snapshot_) comm.all_reduce(std::span(&good_steps_, 1), comm::Op::min);
  const auto kept = snapshot_ ? snapshot_->newest(comm, good_steps_) : std::nullopt;
  if (!kept && good_steps_ != train::SharedSnapshot::any_steps) {
    throw comm::AgreedError(
        ExitCode::invariant,
        fmt::format("no snapshot in memory is from before the fault: the weights were known good "
                    "after {}",
                    counted(good_steps_, "step")),
        "resume from a checkpoint that was saved before; with `sentinel_steps` not greater than "
        "`snapshot_every` such faults are corrected");
  }
  good_steps_ = train::SharedSnapshot::any_steps;
  if (kept) {
    job.replica->restore(*kept);
    job.training.start_is_saved = false;
    return kept->state.position;
  }
  if (!resume_ || resume_->checkpoint.empty()) {
    init_text_ = start_from(config_, *data_.sets.train, *job.replica);
    return {};
  }
  restore_checkpoint(*resume_, job, comm);
  train::TrainingPosition position = resume_->state.position;
  // Figures of another kind cannot be compared with the best one.
  std::vector<const char*> of_figure = {"monitor"};
  if (config_.monitor == "loss") {
    of_figure.insert(of_figure.end(), settings_of_loss.begin(), settings_of_loss.end());
  }
  const bool is_same = std::all_of(of_figure.begin(), of_figure.end(), [&](const char* name) {
    const std::string now = setting_named(name, name).literal(config_);
    return saved_value(resume_->state.settings, name) == now;
  });
  if (!is_same) position.best = {};
  return position;
}

std::optional<train::Continued> RankOfRun::continued(
    const TrainJob& job, const train::TrainingPosition& position) const {
  const bool resumes = resume_ && resume_->found();
  if (!resumes && run_.empty()) return std::nullopt;
  return train::Continued{resumes ? resume_->checkpoint : "", job.replica->steps(), position,
                          !run_.empty()};
}

/// Compares the group with the one before. True if ranks were lost.
bool RankOfRun::note_lost_ranks(const comm::Communicator& comm, std::uint64_t step) {
  const auto members = comm.world_ranks();
  train::LostRanks lost{.step = step, .ranks = {}};
  std::set_difference(members_.begin(), members_.end(), members.begin(), members.end(),
                      std::back_inserter(lost.ranks));
  members_ = members;
  if (lost.ranks.empty()) return false;
  lost_.push_back(std::move(lost));
  return true;
}

/// Decides how training goes on after a fault: run_in() repeats the steps since the last good
/// snapshot, without the rank at fault if that is at fault for the second time. Throws the fault if
/// the rank at fault is unknown, and the same step fails again. Collective.
void RankOfRun::correct(const train::FaultFound& fault, comm::Communicator& comm) {
  train::Fault found = {.step = fault.step(), .rank = std::nullopt};
  if (fault.rank()) found.rank = comm.world_rank(*fault.rank());
  const bool is_new =
      std::none_of(faults_found_.begin(), faults_found_.end(), [&](const train::Fault& before) {
        return before.rank == found.rank && (found.rank || before.step == found.step);
      });
  // A rank that noticed a loss instead may not know of a fault before.
  const bool again = !comm.all_agree(is_new);
  good_steps_ = again ? fault.good_steps_if_lasting() : fault.good_steps();
  if (again && (!found.rank || comm.size() == 1)) {
    remove_checkpoints_after(good_steps_, comm);
    throw fault;
  }
  faults_found_.push_back(found);
  if (comm.rank() == 0) {
    launching::print_warning(
        fault.problem() +
        (again ? fmt::format("; rank {}, wrong for the second time, ends", *found.rank)
               : "; training goes back to the last good snapshot"));
  }
  remove_checkpoints_after(good_steps_, comm);
  if (!again) return;
  if (found.rank == comm.world_rank(comm.rank())) std::_Exit(static_cast<int>(ExitCode::invariant));
  comm.all_agree(true);  // throws RankLost when that rank has ended
}

/// Removes the checkpoints that may have a fault in them, before anything else can end the job,
/// which would be resumed from them. Those of earlier programs stay: they may have run elsewhere.
/// Collective.
void RankOfRun::remove_checkpoints_after(std::uint64_t steps, comm::Communicator& comm) const {
  steps = std::max(steps, begun_after_.value_or(0));
  comm::together(comm, [&] {
    if (comm.rank() != 0) return;
    const auto folder = std::filesystem::path(run_) / "checkpoints";
    const auto removed = train::remove_checkpoints_after(folder, steps);
    if (removed == 0) return;
    launching::print_warning(
        fmt::format("{} removed that may have the fault in it: saved after step {}",
                    counted(removed, "checkpoint"), steps));
  });
}

/// Locks the run's folder on rank 0, for a group that continues the run. Waits in collectives: all
/// ranks make progress then, also for their watchdogs. Collective.
std::optional<FolderLock> RankOfRun::lock_run_again(comm::Communicator& comm) const {
  using Clock = std::chrono::steady_clock;
  constexpr auto longest = std::chrono::seconds(120);
  constexpr auto pause = std::chrono::milliseconds(50);
  const auto members = spans_hosts_ ? members_ : std::vector<int>();
  const auto end = Clock::now() + longest;
  for (std::optional<FolderLock> lock;; std::this_thread::sleep_for(pause)) {
    comm::together(comm, [&] {
      if (comm.rank() == 0) lock = train::lock_again(run_, members, Clock::now() > end);
    });
    if (comm.all_agree(comm.rank() != 0 || lock)) return lock;
  }
}

/// Waits until rank 0 has recorded the error that all ranks throw: they end the job soon after it.
/// Collective, unless a rank is lost.
void wait_for_rank_0(comm::Communicator& comm) {
  try {
    comm.all_agree(true);
  } catch (const std::exception&) {  // the error of all is thrown
  }
}

/// Trains in one group, and records in summary.json how that ended.
void RankOfRun::run_recorded(comm::Communicator& comm) {
  try {
    run_in(comm);
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const auto code = static_cast<ExitCode>(launching::exit_code(error));
    const auto cause = known == nullptr ? launching::what_of(error) : known->problem();
    const bool continues =
        config_.survive && dynamic_cast<const comm::RankLost*>(&error) != nullptr;
    const bool ends_run = directory_ && !continues;
    if (ends_run) directory_->end(code, with_flags(cause));
    directory_.reset();
    if (ends_run && code == ExitCode::stopped) {
      record_end(static_cast<int>(code));  // mpirun returns its own
    }
    if (dynamic_cast<const comm::AgreedError*>(&error) != nullptr) wait_for_rank_0(comm);
    throw;
  }
}

void RankOfRun::run_in(comm::Communicator& comm) {
  const bool is_rank_0 = comm.rank() == 0;
  TrainJob job = make_job(config_, data_, faults_, comm);
  const train::TrainingPosition position = restore(job, comm);
  const bool is_first_try = !begun_after_;
  if (is_first_try) begun_after_ = job.replica->steps();
  recording_.recorder().enter(Phase::start, job.replica->steps());  // again, if ranks were lost
  const bool has_lost = note_lost_ranks(comm, job.replica->steps());
  const std::uint64_t total = train::total_steps(config_.epochs, config_.steps, *job.plan);
  const auto runs = comm::gather_text(comm, run_);  // not all ranks may know it
  run_ = *std::max_element(runs.begin(), runs.end());
  const bool is_first_group = run_.empty();
  if (is_first_group && !introduce(job, position, total, comm)) {
    if (is_rank_0 && comm::launcher_recovers()) record_end(static_cast<int>(ExitCode::success));
    return;
  }

  std::optional<Console> console;
  const auto stragglers = make_stragglers(config_, job);
  std::vector<train::Observer*> observers;
  train::RunFacts facts = facts_of(config_, data_, job, comm.size());
  const OutputNames names = names_of(facts.checkpoint);
  std::optional<FolderLock> lock;
  if (!is_first_group) lock = lock_run_again(comm);
  comm::together(comm, [&] {
    if (!is_rank_0) return;
    facts.lost = lost_;
    facts.faults = faults_found_;
    if (spans_hosts_) facts.members = members_;
    // A group that has lost ranks since may have begun a run there; no step is saved in it yet.
    const bool may_have_begun = is_first_group && !is_first_try && is_folder_new_;
    if (may_have_begun) train::remove_unsaved_run(config_.run_dir, job.replica->steps());
    RunConfig recipe = config_;
    recipe.resume = "none";  // config.toml is a recipe that begins anew: `resume` is of one job
    directory_.emplace(is_first_group ? run_dir_of(config_, resume_) : run_, to_toml(recipe), facts,
                       train::Retention{config_.keep, config_.keep_every}, continued(job, position),
                       std::move(lock));
    warn_of_missing_records(*directory_, job.replica->steps(), position.epoch);
    console.emplace(progress_of(config_.progress), config_.epochs, total, names);
    observers = {&*directory_, &*console};
    if (stragglers) observers.push_back(stragglers.get());
    const auto flight = directory_->path() / "flight";
    make_folder(flight);
    std::error_code ignored;
    std::filesystem::remove(flight / launching::diagnosis_name, ignored);  // of an earlier job
    if (is_first_group) launching::reserve_exit_code(flight);
  });
  run_ = comm::broadcast_text(comm, directory_ ? directory_->path().string() : "");
  recording_.write_to(run_, comm);
  if (!is_first_group && is_rank_0) {
    launching::print_warning(fmt::format("training goes on after step {}, {:.0f} ms after the {}",
                                         job.replica->steps(), since_stop_.take() * 1e3,
                                         has_lost ? "loss was noticed" : why_again_));
  }
  if (!requests_) requests_.emplace();
  StopClock stop(*requests_, config_, job.replica->shape().weights(), is_rank_0);
  const auto on_phase = [&](Phase phase, std::uint64_t step) {
    recording_.recorder().enter(phase, step);
    faults_.enter(phase, step, *job.replica);
  };
  job.training.stop = [&] { return stop(); };
  job.training.on_phase = on_phase;
  job.training.snapshot = snapshot_.get();
  train::Trainer trainer(job.training, *job.replica, *job.train, *job.test, position);
  train::RunReport report = trainer.run(observers);
  if (report.stop != 0) end_stopped(report, run_, config_, comm);
  report.bytes_read = comm::gather_number(comm, data_.sets.train->bytes_read());
  if (!is_first_group) report.startup_seconds = 0;  // it was another group's step
  if (!is_rank_0) return;
  directory_->finish(report);
  auto saved = directory_->last_checkpoint();
  if (saved.empty()) {  // nothing was left to train: the one that this job began with
    saved = directory_->path() / "checkpoints" / train::checkpoint_name(job.replica->steps());
  }
  directory_.reset();  // no later error makes it a failed run
  console->finish(report, saved.string());
  if (has_report_) print_report(report.test, names.classes);
}

/// The run that is resumed; a folder other than its own must hold no run. Within the time limit of
/// a start. Collective.
std::optional<Resume> run_to_resume(const Arguments& arguments, const RunConfig& given,
                                    comm::Communicator& comm) {
  Recording recording(given, comm);
  const RecordedIn recorded(recording.recorder(), comm);
  std::optional<Resume> resume = find_resume(arguments, given, comm);
  comm::together(comm, [&] {
    if (comm.rank() != 0 || given.run_dir == "auto" || arguments.given("print-config")) return;
    if (continues_in_place(given, resume)) return;
    require_can_be_folder(given.run_dir);
    train::require_no_run(given.run_dir, resume && resume->found());
  });
  return resume;
}

}  // namespace

void train_on(const Arguments& arguments, const RunConfig& given, comm::Communicator& comm,
              const std::function<void(const TrainData& data)>& check) {
  const std::optional<Resume> resume = run_to_resume(arguments, given, comm);
  const RunConfig& config = resume ? resume->config : given;
  if (arguments.given("print-config")) {
    if (comm.rank() != 0) return;
    for (const auto& [flag, value] : arguments.flags) {
      if (flag == "resume-with") fmt::print("# needs --resume-with {}, too\n", in_shell(value));
    }
    fmt::print("{}", to_toml(config));
    return;
  }
  RankOfRun rank(config, resume, arguments, comm);
  if (check) comm::together(comm, [&] { check(rank.data()); });
  if (!config.survive) return rank.train_in(comm);
  launching::survive(
      comm, [&](comm::Communicator& group) { rank.train_in(group); },
      [&](int code) { rank.record_end(code); });
}

Syntax train_syntax() {
  Syntax syntax = run_file_syntax("lockstep train", "Trains a network on all ranks of this job.");
  syntax.example =
      "mpirun -n 2 lockstep train --data iris.csv --label-column target --test-split 0.2 --epochs "
      "50";
  for (const auto& setting : settings()) syntax.settings.push_back(setting.name);
  syntax.flags = {
      {"print-config", "", "print the resolved run file and end"},
      {"resume-with", "KEY=VALUE",
       "with --resume: change a setting that determines the results, such as epochs"},
      {"report", "", report_help},
      {"dry-run", "", "check configuration, data and agreement between ranks, and end"}};
  return syntax;
}

int train_command(const std::vector<std::string>& words) {
  return run_on_ranks(train_syntax(), words,
                      [](const Arguments& arguments, const RunConfig& config,
                         comm::Communicator& comm) { train_on(arguments, config, comm); });
}

}  // namespace lockstep::apps
