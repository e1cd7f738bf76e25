#include "apps/sweep_record.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <tuple>

#include "apps/settings.hpp"
#include "apps/start_from_saved.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/json_fields.hpp"
#include "lockstep/train/recorded_run.hpp"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* file_name = "sweep.json";
constexpr const char* lock_folder = ".queue";

ordered_json json_of(const train::EpochReport& result) {
  ordered_json json = {{"epochs", result.epoch}};
  train::add_figures(json, result);
  json["seconds"] = result.seconds;
  json["weights_hash"] = to_hex(result.weights_hash);
  return json;
}

ordered_json json_of(const TrialSettings& settings) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : settings) json[name] = value;
  return json;
}

std::string text_of(const SweepRecord& record) {
  ordered_json trials = ordered_json::array();
  for (const Trial& trial : record.trials) {
    ordered_json results = ordered_json::array();
    for (const train::EpochReport& result : trial.results) results.push_back(json_of(result));
    trials.push_back({{"trial", trials.size() + 1},
                      {"settings", json_of(trial.settings)},
                      {"state", trial.state},
                      {"exit_code", static_cast<int>(trial.code)},
                      {"reason", trial.reason},
                      {"data", trial.data},
                      {"results", std::move(results)}});
  }
  const ordered_json json = {{"version", record.version},    {"metric", record.metric},
                             {"halving", record.halving},    {"rungs", record.rungs},
                             {"base", json_of(record.base)}, {"trials", std::move(trials)}};
  return json.dump(1) + "\n";
}

train::EpochReport result_in(const ordered_json& json, const train::JsonPlace& place) {
  train::EpochReport result;
  result.epoch = train::count_in(json, "epochs", place);
  train::read_figures(json, place, result);
  result.seconds = train::number_in(json, "seconds", place);
  result.weights_hash = train::hash_in(json, "weights_hash", place);
  return result;
}

/// Waits for the lock on sweep.json, which is held for one change of it.
FolderLock lock_record(const fs::path& out) {
  constexpr auto longest = std::chrono::seconds(60);
  const auto end = Clock::now() + longest;
  for (;;) {
    try {
      return FolderLock(out / lock_folder);
    } catch (const ConfigError&) {
      if (Clock::now() > end) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void change(const fs::path& out, const std::function<void(SweepRecord&)>& edit) {
  const FolderLock lock = lock_record(out);
  SweepRecord record = read_sweep_record(out);
  edit(record);
  write_file(out / file_name, text_of(record));
}

/// The settings that choose the records of a trial; `base`: those of all trials.
TrialSettings settings_of_data(TrialSettings settings, const TrialSettings& base) {
  const auto is_given = [&](const char* name) {
    const std::string value = saved_value(settings, name);
    return (value == saved_value({}, name) ? saved_value(base, name) : value) !=
           saved_value({}, name);
  };
  const bool has_seed = is_given("test-split") || is_given("validation");
  std::erase_if(settings, [&](const auto& pair) {
    if (pair.first == "seed") return !has_seed;
    const Setting* const setting = find_setting(pair.first);
    return setting == nullptr || setting->group != "Data" || pair.first == "augment";
  });
  return settings;
}

bool waits_for(const Trial& trial, std::size_t rung) {
  return trial.state == "waiting" && trial.results.size() == rung;
}

/// True if the metrics are one figure of what the trials were trained on: "testing accuracy", the
/// default of earlier versions, is "testing score" of classes.
bool is_same_figure(const SweepRecord& there, const std::string& metric) {
  if (metric == there.metric) return true;
  if (is_of_validation(metric) != is_of_validation(there.metric)) return false;
  return figure_of(metric) == figure_of(there.metric) &&
         std::all_of(there.trials.begin(), there.trials.end(), [&](const Trial& trial) {
           return trial.results.empty() || has_metric(trial.results.front().is_regression, metric);
         });
}

/// The first difference between two sweeps, for a message; empty: none.
std::string difference(const SweepRecord& there, const SweepRecord& now) {
  const auto was_and_is = [](const std::string& what, const auto& a, const auto& b) {
    return fmt::format("{} was {}, and is {}", what, a, b);
  };
  if (!is_same_figure(there, now.metric)) {
    return was_and_is("metric", there.metric, now.metric);
  }
  if (there.halving != now.halving) return was_and_is("halving", there.halving, now.halving);
  if (there.rungs != now.rungs) {
    return was_and_is("rungs", joined(there.rungs), joined(now.rungs));
  }
  for (const auto& [name, value] : now.base) {
    const std::string before = saved_value(there.base, name);
    if (before != value) return was_and_is(name, before, value);
  }
  if (there.trials.size() != now.trials.size()) {
    return was_and_is("the number of trials", there.trials.size(), now.trials.size());
  }
  for (std::size_t i = 0; i < now.trials.size(); ++i) {
    if (there.trials[i].settings == now.trials[i].settings) continue;
    return was_and_is(trial_name(i), trial_settings_text(there.trials[i].settings),
                      trial_settings_text(now.trials[i].settings));
  }
  return "";
}

/// Lower is better; NaN without a validation set, or the figure.
double cost(const std::string& metric, const train::EpochReport& result) {
  if (is_of_validation(metric) && !result.validation) return std::nan("");
  const auto& figures = is_of_validation(metric) ? *result.validation : result.test;
  const std::string name = figure_of(metric);
  const double figure = figures.named(name).value_or(std::nan(""));
  return train::is_less_better(name) ? figure : -figure;
}

}  // namespace

std::string sweep_record_text(const fs::path& out) {
  const fs::path file = out / file_name;
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream.is_open() || stream.bad()) {
    throw DataError(file.string() + ": cannot be read", "give the --out folder of a sweep");
  }
  return text;
}

namespace {

Trial trial_in(const ordered_json& json, const train::JsonPlace& place) {
  Trial trial;
  trial.settings = train::text_pairs_in(json, "settings", place);
  trial.state = train::text_in(json, "state", place);
  const std::uint64_t code = train::count_in(json, "exit_code", place);
  constexpr std::uint64_t most = 255;
  if (code > most) train::fail(place, "an exit_code is greater than 255");
  trial.code = static_cast<ExitCode>(code);
  trial.reason = train::text_in(json, "reason", place);
  if (json.contains("data")) trial.data = train::text_in(json, "data", place);
  for (const auto& result : train::list_in(json, "results", place)) {
    trial.results.push_back(result_in(result, place));
  }
  return trial;
}

/// Throws DataError for a trial that no sweep records.
void require_recorded(const SweepRecord& record, const Trial& trial,
                      const train::JsonPlace& place) {
  static const std::set<std::string> states = {"waiting", "running", "finished",
                                               "failed",  "dropped", "stopped"};
  if (!states.contains(trial.state)) {
    train::fail(place, "a trial has the state " + in_quotes(trial.state));
  }
  if (trial.state == "failed" && trial.code == ExitCode::success) {
    train::fail(place, "a failed trial has exit_code 0");
  }
  const auto has_names_of = [&](const Trial& other) {
    return std::equal(trial.settings.begin(), trial.settings.end(), other.settings.begin(),
                      other.settings.end(),
                      [](const auto& a, const auto& b) { return a.first == b.first; });
  };
  if (!has_names_of(record.trials.front())) {
    train::fail(place, "trials have values of different settings");
  }
  const std::size_t rungs = record.rung_count();
  const std::size_t results = trial.results.size();
  if (trial.state == "finished" ? results != rungs : results >= rungs) {
    train::fail(place, fmt::format("a trial is {}, with {} of {}", trial.state, results,
                                   counted(rungs, "result")));
  }
  const bool has_metric = std::all_of(
      trial.results.begin(), trial.results.end(),
      [&](const train::EpochReport& result) { return is_usable(result, record.metric); });
  if (!has_metric) train::fail(place, "a result has no " + record.metric);
}

}  // namespace

SweepRecord parse_sweep_record(const std::string& text, const fs::path& out) {
  const train::JsonPlace place = {out / file_name, 0,
                                  "give another --out, or move this folder away"};
  const ordered_json json = train::parse_object(text, place);
  SweepRecord record;
  record.version = train::text_in(json, "version", place);
  record.metric = train::text_in(json, "metric", place);
  record.halving = train::count_in(json, "halving", place);
  record.rungs = train::counts_in(json, "rungs", place);
  record.base = train::text_pairs_in(json, "base", place);
  for (const auto& entry : train::list_in(json, "trials", place)) {
    record.trials.push_back(trial_in(entry, place));
    require_recorded(record, record.trials.back(), place);
  }
  if (record.trials.empty()) train::fail(place, "no trial is in it");
  return record;
}

SweepRecord read_sweep_record(const fs::path& out) {
  return parse_sweep_record(sweep_record_text(out), out);
}

FolderLock join_sweep(const fs::path& out, int world_rank) {
  const fs::path folder = out / lock_folder / std::to_string(world_rank);
  make_folder(folder);
  return FolderLock(folder);
}

LockState lock_state_of_sweep(const fs::path& out) {
  std::vector<LockState> states = {lock_state(out)};
  std::error_code error;
  for (const auto& entry : list_folder(out / lock_folder, error)) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) states.push_back(lock_state(entry.path()));
  }
  if (error) states.push_back(LockState::unknown);
  if (contains(states, LockState::held)) return LockState::held;
  return contains(states, LockState::unknown) ? LockState::unknown : LockState::free;
}

void begin_sweep_record(const fs::path& out, const SweepRecord& begin) {
  make_folder(out / lock_folder);
  std::error_code error;
  for (const auto& entry : list_folder(out / lock_folder, error)) {
    if (entry.is_directory()) const FolderLock not_in_use(entry.path());
  }
  if (error)
    throw OutputError((out / lock_folder).string() + ": " + error.message(), "make it readable");
  remove_temporaries_in(out);
  std::error_code ignored;
  if (!fs::exists(out / file_name, ignored)) {
    write_file(out / file_name, text_of(begin));
    return;
  }
  SweepRecord record = read_sweep_record(out);
  if (std::all_of(record.trials.begin(), record.trials.end(),
                  [](const Trial& trial) { return trial.results.empty(); })) {
    record.metric = begin.metric;
  }
  if (const std::string found = difference(record, begin); !found.empty()) {
    throw ConfigError(out.string() + ": holds another sweep: " + found,
                      "give another --out, or the sweep file of that one");
  }
  for (Trial& trial : record.trials) {
    const bool is_refused = trial.state == "failed" && trial.code != ExitCode::diverged;
    if (trial.state != "running" && trial.state != "stopped" && !is_refused) continue;
    trial.state = "waiting";
    trial.code = ExitCode::success;
    trial.reason.clear();
    if (trial.results.empty()) trial.data.clear();
  }
  record.version = begin.version;
  write_file(out / file_name, text_of(record));
}

std::optional<std::size_t> claim_trial(const fs::path& out, std::size_t rung) {
  std::optional<std::size_t> claimed;
  change(out, [&](SweepRecord& record) {
    const bool is_stopped =
        std::any_of(record.trials.begin(), record.trials.end(),
                    [](const Trial& trial) { return trial.state == "stopped"; });
    const auto next = std::find_if(record.trials.begin(), record.trials.end(),
                                   [&](const Trial& trial) { return waits_for(trial, rung); });
    if (is_stopped || next == record.trials.end()) return;
    next->state = "running";
    claimed = next - record.trials.begin();
  });
  return claimed;
}

bool is_waiting(const SweepRecord& record, std::size_t rung) {
  return std::any_of(record.trials.begin(), record.trials.end(),
                     [&](const Trial& trial) { return waits_for(trial, rung); });
}

void set_data(const fs::path& out, std::size_t trial, const std::string& identity) {
  const std::string hash = to_hex(hash_of(identity));
  change(out, [&](SweepRecord& record) {
    Trial& mine = record.trials[trial];
    const TrialSettings settings = settings_of_data(mine.settings, record.base);
    for (std::size_t i = 0; i < record.trials.size(); ++i) {
      const Trial& other = record.trials[i];
      if (other.data.empty() || other.data == hash) continue;
      if (settings_of_data(other.settings, record.base) != settings) continue;
      if (i != trial && other.state == "running") {  // by another group, now
        throw Error(ExitCode::invariant,
                    "the data of " + trial_name(trial) + " is not that of " + trial_name(i),
                    "give all hosts the same files");
      }
      throw ConfigError("the data is not that of " + trial_name(i),
                        "put back the data of before, or give another --out");
    }
    mine.data = hash;
  });
}

void add_result(const fs::path& out, std::size_t trial, const train::EpochReport& result) {
  change(out, [&](SweepRecord& record) {
    Trial& one = record.trials[trial];
    one.results.push_back(result);
    one.state = one.results.size() == record.rung_count() ? "finished" : "waiting";
  });
}

void set_failed(const fs::path& out, std::size_t trial, ExitCode code, const std::string& reason) {
  change(out, [&](SweepRecord& record) {
    record.trials[trial].state = "failed";
    record.trials[trial].code = code;
    record.trials[trial].reason = reason;
  });
}

void set_stopped(const fs::path& out, std::size_t trial) {
  change(out, [&](SweepRecord& record) { record.trials[trial].state = "stopped"; });
}

void drop_after_rung(const fs::path& out, std::size_t rung) {
  change(out, [&](SweepRecord& record) {
    std::vector<std::size_t> there;
    for (std::size_t i = 0; i < record.trials.size(); ++i) {
      if (record.trials[i].results.size() > rung) there.push_back(i);
    }
    std::stable_sort(there.begin(), there.end(), [&](std::size_t a, std::size_t b) {
      return cost(record.metric, record.trials[a].results[rung]) <
             cost(record.metric, record.trials[b].results[rung]);
    });
    const std::size_t kept = ceil_divide(there.size(), record.halving);
    for (std::size_t i = kept; i < there.size(); ++i) {
      Trial& trial = record.trials[there[i]];
      if (waits_for(trial, rung + 1)) trial.state = "dropped";
    }
  });
}

std::vector<std::size_t> ranked(const SweepRecord& record) {
  std::vector<std::size_t> order(record.trials.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](std::size_t i) {
    const Trial& trial = record.trials[i];
    const bool failed = trial.state == "failed";
    return std::tuple(failed, record.rung_count() - trial.results.size(),
                      trial.results.empty() ? 0 : cost(record.metric, trial.results.back()));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

bool is_usable(const train::EpochReport& result, const std::string& metric) {
  return std::isfinite(cost(metric, result));
}

std::string trial_settings_text(const TrialSettings& settings) {
  return joined(settings, ", ",
                [](const auto& one) { return one.first + " " + presentable(one.second); });
}

std::string trial_name(std::size_t trial) { return fmt::format("trial-{:03}", trial + 1); }

}  // namespace lockstep::apps
