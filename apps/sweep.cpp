// `lockstep sweep`: trains one network for each choice of settings, in groups of ranks.
//
// The ranks are cut into groups. A group that is free takes the next trial from sweep.json, and
// trains it as `lockstep train` does. Groups wait for each other at the end alone, and with halving
// at each rung.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/flag_names.hpp"
#include "apps/run_file.hpp"
#include "apps/settings.hpp"
#include "apps/start_from_saved.hpp"
#include "apps/subcommands.hpp"
#include "apps/sweep_file.hpp"
#include "apps/sweep_record.hpp"
#include "apps/train_job.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/train/plot.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

/// sweeps/NAME for NAME.toml, unless --out is given: the same command continues the sweep.
fs::path out_folder(const Arguments& arguments) {
  if (arguments.given("out")) return arguments.value("out");
  return fs::path("sweeps") / fs::path(arguments.operand()).stem();
}

const char* score_name(const train::EpochReport& result) {
  return result.is_regression ? "R2" : "accuracy";
}

void print_trial(const fs::path& out, std::size_t number) {
  const Trial trial = read_sweep_record(out).trials[number];
  std::string line =
      fmt::format("{}  {}  ", trial_name(number), trial_settings_text(trial.settings));
  if (const auto* result = trial.last(); trial.state != "failed" && result != nullptr) {
    const auto add = [&](const char* set, const train::SetFigures& there) {
      line += fmt::format("  {} loss {:.4f}, {} {:.4f}", set, there.loss, score_name(*result),
                          there.score);
      for (const auto& [name, figure] : there.metrics) {
        line += fmt::format(", {} {:.4f}", name, figure);
      }
    };
    line += counted(result->epoch, "epoch");
    if (result->validation) add("validation", *result->validation);
    add("testing", result->test);
    line += fmt::format("  {}  {:.2f} s", to_hex(result->weights_hash), result->seconds);
  } else {
    line += fmt::format("failed ({}): {}", static_cast<int>(trial.code), trial.reason);
  }
  fmt::print("{}\n", presentable(line));
  flush_stdout();
}

/// Loss, score and these metrics of a set, as cells; null: there are none.
std::vector<std::string> cells_of(const train::SetFigures* figures,
                                  const std::vector<std::string>& metrics) {
  std::vector<std::string> names = {"loss", "score"};
  names.insert(names.end(), metrics.begin(), metrics.end());
  std::vector<std::string> cells;
  cells.reserve(names.size());
  for (const std::string& name : names) {
    const auto figure = figures == nullptr ? std::nullopt : figures->named(name);
    cells.push_back(figure ? fmt::format("{:.4f}", *figure) : "-");
  }
  return cells;
}

void print_trials(const SweepRecord& record) {
  const bool halves = !record.rungs.empty();
  const auto order = ranked(record);
  const auto* best = record.trials[order.front()].last();
  const bool is_mixed =  // trials of classes and of numbers
      std::any_of(record.trials.begin(), record.trials.end(), [best](const Trial& trial) {
        return best != nullptr && trial.last() != nullptr &&
               trial.last()->is_regression != best->is_regression;
      });
  const char* score = is_mixed ? "score" : best == nullptr ? "accuracy" : score_name(*best);
  std::vector<std::vector<std::string>> lines(1);
  lines[0] = {"trial"};
  for (const auto& [name, value] : record.trials[0].settings) lines[0].push_back(name);
  if (halves) lines[0].emplace_back("epochs");
  std::vector<std::string> metrics;
  if (best != nullptr) {
    for (const auto& [name, figure] : best->test.metrics) metrics.push_back(name);
  }
  const auto add_heads = [&](const char* loss) {
    lines[0].insert(lines[0].end(), {loss, score});
    lines[0].insert(lines[0].end(), metrics.begin(), metrics.end());
  };
  const bool validates = best != nullptr && best->validation;
  if (validates) add_heads("validation loss");
  add_heads("testing loss");
  for (const char* name : {"weights", "seconds", "state"}) lines[0].emplace_back(name);
  for (const std::size_t i : order) {
    const Trial& trial = record.trials[i];
    auto& line = lines.emplace_back();
    line.push_back(trial_name(i));
    for (const auto& [name, value] : trial.settings) line.push_back(value);
    const auto* last = trial.last();
    if (halves) line.push_back(last == nullptr ? "-" : std::to_string(last->epoch));
    const auto add = [&](const train::SetFigures* figures) {
      for (std::string& cell : cells_of(figures, metrics)) line.push_back(std::move(cell));
    };
    if (validates) add(last != nullptr && last->validation ? &*last->validation : nullptr);
    add(last == nullptr ? nullptr : &last->test);
    line.push_back(last == nullptr ? "-" : to_hex(last->weights_hash));
    line.push_back(last == nullptr ? "-" : fmt::format("{:.2f}", last->seconds));
    line.push_back(trial.state);
  }
  print_table(lines);
  for (std::size_t i = 0; i < record.trials.size(); ++i) {
    const Trial& trial = record.trials[i];
    if (trial.state != "failed") continue;
    fmt::print("{}\n", presentable(fmt::format("{} failed ({}): {}", trial_name(i),
                                               static_cast<int>(trial.code), trial.reason)));
  }
  std::fflush(stdout);
}

std::size_t count_of(const SweepRecord& record, std::string_view state) {
  return static_cast<std::size_t>(
      std::count_if(record.trials.begin(), record.trials.end(),
                    [&](const Trial& trial) { return trial.state == state; }));
}

/// The number of trials of which nothing is left to train.
std::size_t ended(const SweepRecord& record) {
  return count_of(record, "failed") + count_of(record, "finished") + count_of(record, "dropped");
}

/// One rank's part of a sweep.
class RankOfSweep {
 public:
  /// Begins or continues the record. The arguments must outlive the object. Collective.
  RankOfSweep(const Arguments& arguments, const RunConfig& base, Sweep sweep,
              comm::Communicator& comm);

  /// Runs all trials that are left. Collective.
  void run();

 private:
  // Results of next_trial() that are no trial.
  static constexpr std::uint64_t no_trial = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t stop = no_trial - 1;

  void begin_record();
  void require_shared_folder();
  void introduce() const;
  std::uint64_t next_trial(std::size_t rung);
  bool run_rung(std::size_t rung);
  bool run_trial(std::size_t trial, std::size_t rung);
  void require_metric(bool is_regression) const;
  void record_end(std::size_t trial, const fs::path& folder, std::optional<Error> failure) const;
  void on_leader(const std::function<void()>& work);
  void end(bool stopped);

  bool is_leader() const { return group_->rank() == 0; }
  bool prints() const { return base_.progress != "off"; }

  const Arguments& arguments_;
  const RunConfig& base_;
  comm::Communicator& comm_;
  const fs::path out_;
  Sweep sweep_;
  std::optional<FolderLock> lock_;               ///< on rank 0
  std::optional<FolderLock> taking_;             ///< on the first rank of each group
  std::unique_ptr<comm::Communicator> part_;     ///< null: one group
  comm::Communicator* group_ = nullptr;          ///< this rank's
  std::optional<StopRequests> requests_;         ///< also between trials
  FlightRecorder recorder_;                      ///< of nothing; for the watchdog
  std::optional<launching::Watchdog> watchdog_;  ///< ends a rank that waits when its launcher ends
};

RankOfSweep::RankOfSweep(const Arguments& arguments, const RunConfig& base, Sweep sweep,
                         comm::Communicator& comm)
    : arguments_(arguments),
      base_(base),
      comm_(comm),
      out_(out_folder(arguments)),
      sweep_(std::move(sweep)),
      recorder_(comm.rank(), comm.size()) {
  comm::together(comm, [&] {
    if (comm.rank() == 0) begin_record();
  });
  const auto size = static_cast<int>(sweep_.group);
  if (size != comm.size()) part_ = comm.split(comm.rank() / size);
  group_ = part_ ? part_.get() : &comm;
  require_shared_folder();
  on_leader([&] { taking_.emplace(join_sweep(out_, comm.rank())); });
}

void RankOfSweep::begin_record() {
  if (const std::string name = train::run_file_in(out_); !name.empty()) {
    throw ConfigError(out_.string() + ": holds a run of `lockstep train` (" + name + ")",
                      "give another folder with --out");
  }
  make_folder(out_);
  lock_.emplace(out_);
  SweepRecord begin = {.version = version,
                       .metric = sweep_.metric,
                       .halving = sweep_.halving,
                       .rungs = sweep_.rungs,
                       .base = decisive_settings(base_),
                       .trials = {}};
  begin.base.emplace_back("data", base_.data);
  // Decisive for allreduce: a trial has those of its group.
  for (auto& [name, value] : begin.base) {
    if (name == "ranks") value = std::to_string(sweep_.group);
  }
  for (const TrialSettings& settings : sweep_.trials) begin.trials.push_back({settings});
  begin_sweep_record(out_, begin);
}

/// Leaders on other hosts take trials from the same file.
void RankOfSweep::require_shared_folder() {
  if (comm_.place().nodes == 1) return;
  const auto text = [&] { return sweep_record_text(out_); };
  const std::string first = comm::broadcast_text(comm_, comm_.rank() == 0 ? text() : "");
  comm::together(comm_, [&] {
    const char* const remedy = "give --out a folder on a file system that all hosts share";
    try {
      if (!is_leader() || text() == first) return;
    } catch (const DataError& error) {
      throw ConfigError(error.problem(), remedy);
    }
    throw ConfigError(out_.string() + ": not the folder of that name on the host of rank 0",
                      remedy);
  });
}

void RankOfSweep::introduce() const {
  if (comm_.rank() != 0) return;
  if (base_.device == "cuda" && part_ != nullptr && comm_.place().local_ranks > group_->size()) {
    launching::print_warning(
        "groups of one host use the same GPUs, unless each rank is started with its own "
        "CUDA_VISIBLE_DEVICES");
  }
  if (!prints()) return;
  const SweepRecord record = read_sweep_record(out_);
  const auto groups = static_cast<std::uint64_t>(comm_.size()) / sweep_.group;
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: {} of {}, in {} of {}, backend {}", version,
                  counted(record.trials.size(), "trial"), arguments_.operand(),
                  counted(groups, "group"), counted(sweep_.group, "rank"), comm_.backend());
  banner.rows.emplace_back("recorded", out_.string());
  if (const auto over = ended(record); over > 0) {
    banner.rows.emplace_back("before", counted(over, "trial") + " ended already");
  }
  banner.print();
}

/// Work of the group's first rank, which alone writes; an error is one of the group.
void RankOfSweep::on_leader(const std::function<void()>& work) {
  comm::together(*group_, [&] {
    if (is_leader()) work();
  });
}

/// The next trial of this group, no_trial or stop.
std::uint64_t RankOfSweep::next_trial(std::size_t rung) {
  std::uint64_t next = no_trial;
  on_leader([&] {
    if (requests_->signal() != 0) {
      if (is_waiting(read_sweep_record(out_), rung)) next = stop;
      return;
    }
    if (const auto claimed = claim_trial(out_, rung)) next = *claimed;
  });
  group_->broadcast(std::span(&next, 1));
  return next;
}

/// Runs trials of a rung until none is left. True if the job is to stop.
bool RankOfSweep::run_rung(std::size_t rung) {
  for (;;) {
    const std::uint64_t next = next_trial(rung);
    if (next == no_trial) return false;
    if (next == stop) return true;
    if (run_trial(next, rung)) return true;
  }
}

/// Trains a trial up to a rung. True if it was stopped.
bool RankOfSweep::run_trial(std::size_t trial, std::size_t rung) {
  RunConfig config = with_settings(base_, sweep_.trials[trial]);
  const std::string folder = out_ / trial_name(trial);
  config.run_dir = folder;
  config.resume = "auto";
  config.progress = "off";
  if (config.ranks > 1) config.ranks = sweep_.group;
  Arguments words;
  words.operands = {folder + "/config.toml"};
  if (!sweep_.rungs.empty()) {
    config.epochs = sweep_.rungs[rung];
    words.flags.emplace_back("resume-with", "epochs=" + std::to_string(config.epochs));
  }
  if (!config.threads && config.reduction == "allreduce") {
    // Sweeps of earlier versions recorded a group's share of the cores when the trial began.
    words.flags.emplace_back("resume-with", "threads=auto");
  }
  words.run_file_text = to_toml(config);
  std::optional<Error> failure;
  try {
    train_on(words, config, *group_, [&](const TrainData& data) {
      const auto table = data.sets.train->table();
      require_metric(table != nullptr && table->is_regression());
      if (is_leader()) set_data(out_, trial, data.train_identity + data.test_identity);
    });
  } catch (const comm::AgreedError& error) {
    const ExitCode code = error.code();
    if (code == ExitCode::stopped) {
      on_leader([&] { set_stopped(out_, trial); });
      return true;
    }
    if (code != ExitCode::usage && code != ExitCode::data && code != ExitCode::diverged) throw;
    failure = error;
  }
  on_leader([&] { record_end(trial, folder, failure); });
  // Not within on_leader(): together() turns a failed print (74) into an internal error (1).
  if (is_leader() && prints()) print_trial(out_, trial);
  return false;
}

/// Throws ConfigError for a metric that data of this kind does not have.
void RankOfSweep::require_metric(bool is_regression) const {
  if (has_metric(is_regression, sweep_.metric)) return;
  throw ConfigError("the metric " + sweep_.metric + " is not one of this data",
                    fmt::format("write metric = \"testing {}\" or \"testing loss\" in [sweep]",
                                is_regression ? "R2" : "accuracy"));
}

void RankOfSweep::record_end(std::size_t trial, const fs::path& folder,
                             std::optional<Error> failure) const {
  if (!failure) {
    const auto epochs = train::read_epochs(folder);
    const SweepRecord record = read_sweep_record(out_);
    const train::EpochReport* const before = record.trials[trial].last();
    train::EpochReport result = epochs.back();
    result.seconds = before == nullptr ? 0 : before->seconds;
    for (const auto& epoch : epochs) {  // of a resumed run: without the time of those before
      if (before == nullptr || epoch.epoch > before->epoch) result.seconds += epoch.seconds;
    }
    if (is_usable(result, sweep_.metric)) return add_result(out_, trial, result);
    failure = Error(ExitCode::diverged, "the " + sweep_.metric + " is not finite");
  }
  std::string reason = failure->problem();
  if (!failure->remedy().empty()) reason += "; remedy: " + failure->remedy();
  set_failed(out_, trial, failure->code(), with_flags(reason));
}

/// Prints the table, and throws the error of the job if there is one.
void RankOfSweep::end(bool stopped) {
  std::string text;
  comm::together(comm_, [&] {
    if (comm_.rank() == 0) text = sweep_record_text(out_);
  });
  const SweepRecord record = parse_sweep_record(comm::broadcast_text(comm_, text), out_);
  const std::size_t trials = record.trials.size();
  if (comm_.rank() == 0 && prints()) {
    fmt::print("\n");
    print_trials(record);
  }
  if (stopped) {
    throw comm::AgreedError(
        ExitCode::stopped,
        fmt::format("stopped after {} of {}", ended(record), counted(trials, "trial")),
        "the same command continues the sweep in " + out_.string());
  }
  if (count_of(record, "finished") > 0) return;
  const auto first = std::find_if(record.trials.begin(), record.trials.end(),
                                  [](const Trial& trial) { return trial.state == "failed"; });
  const auto number = static_cast<std::size_t>(first - record.trials.begin());
  const std::string all = counted(trials, "trial");
  throw comm::AgreedError(
      first->code,
      fmt::format("{}; {}: {}",
                  count_of(record, "failed") == trials ? "all " + all + " failed"
                                                       : "none of " + all + " has finished",
                  trial_name(number), first->reason),
      "`lockstep sweep --show " + in_shell(out_.string()) + "` lists the trials");
}

void RankOfSweep::run() {
  introduce();
  const auto launch = comm::detect_launcher();
  if (launching::is_rank(launch)) {
    watchdog_.emplace(recorder_, comm_.rank(), std::numeric_limits<double>::infinity(), true,
                      false);
  }
  requests_.emplace();
  bool stopped = false;
  for (std::size_t rung = 0;; ++rung) {
    stopped = !comm_.all_agree(!run_rung(rung));
    if (stopped || rung + 1 >= sweep_.rungs.size()) break;
    comm::together(comm_, [&] {
      if (comm_.rank() == 0) drop_after_rung(out_, rung);
    });
  }
  end(stopped);
}

/// The trials of the sweep file. Throws ConfigError.
Sweep sweep_of(const Arguments& arguments, const RunConfig& base, const comm::Communicator& comm) {
  if (arguments.operands.empty()) {
    throw ConfigError("no sweep file is given", "write `lockstep sweep SWEEP.toml --out DIR`");
  }
  require_utf8(out_folder(arguments).string(), "--out");
  Sweep sweep = read_sweep(arguments.operand(), arguments.run_file_text, base,
                           static_cast<std::uint64_t>(comm.size()), arguments.given("epochs"));
  for (const auto& [name, value] : sweep.trials.front()) {
    if (!arguments.given(name)) continue;
    throw ConfigError("--" + name + ": " + arguments.operand() + " varies it",
                      "leave it out, here or there");
  }
  return sweep;
}

void sweep_on(const Arguments& arguments, const RunConfig& base, comm::Communicator& comm) {
  Sweep sweep;
  comm::together(comm, [&] { sweep = sweep_of(arguments, base, comm); });
  if (!arguments.given("dry-run")) {
    return RankOfSweep(arguments, base, std::move(sweep), comm).run();
  }
  for (std::size_t i = 0; comm.rank() == 0 && i < sweep.trials.size(); ++i) {
    fmt::print("{}  {}\n", trial_name(i), trial_settings_text(sweep.trials[i]));
  }
}

}  // namespace

Syntax sweep_syntax() {
  Syntax syntax = run_file_syntax(
      "lockstep sweep",
      "Trains one network for each choice of settings, in groups of the ranks of this job.\n"
      "The file is a run file with a table [sweep]; configs/sweep.toml is one. Each trial is a run "
      "folder with the weights that `lockstep train` gives; OUT/sweep.json lists all.\n"
      "The same command continues a sweep that was cut off. A trial that diverges or is refused is "
      "recorded as failed, and the others go on; a refused one is tried again then.\n"
      "Ends with 0 if a trial has finished, else with the code of the first one that failed.\n");
  syntax.usage = "SWEEP.toml [flags]";
  syntax.operand = "sweep file";
  syntax.has_sweep = true;
  syntax.example = "mpirun -n 4 lockstep sweep configs/sweep.toml --out sweeps/rates";
  for (const auto& setting : settings()) {
    if (!is_of_sweep(setting.name)) syntax.settings.push_back(setting.name);
  }
  syntax.flags = {{"dry-run", "", "print the trials of the file, and end"},
                  {"out", "DIR", "record the trials in this folder [sweeps/NAME of NAME.toml]"},
                  {"show", "DIR", "print the table of the sweep in this folder, and end"}};
  return syntax;
}

int sweep_command(const std::vector<std::string>& words) {
  const bool shows = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "--show" || word.starts_with("--show=");
  });
  if (!shows) return run_on_ranks(sweep_syntax(), words, sweep_on);
  return run_on_rank_0(sweep_syntax(), words, [](const Arguments& arguments) {
    const fs::path out = arguments.value("show");
    if (!arguments.operands.empty() || !arguments.settings.empty() || arguments.given("dry-run") ||
        arguments.given("out")) {
      throw ConfigError("--show prints the table of a folder, and takes nothing else",
                        "write `lockstep sweep --show " + in_shell(out.string()) + "`");
    }
    const bool runs = lock_state_of_sweep(out) != LockState::free;  // first: it may end meanwhile
    SweepRecord record = read_sweep_record(out);
    for (Trial& trial : record.trials) {
      if (trial.state == "running" && !runs) trial.state = "cut off";
    }
    print_trials(record);
    return static_cast<int>(ExitCode::success);
  });
}

}  // namespace lockstep::apps
