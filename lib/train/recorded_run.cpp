#include "lockstep/train/recorded_run.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/plot.hpp"  // read_epochs()

namespace lockstep::train {

using nlohmann::ordered_json;

namespace {

constexpr const char* run_remedy = "give the folder of a run, unchanged";

JsonPlace place_in_run(const std::filesystem::path& path) { return {path, 0, run_remedy}; }

std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    fail(place_in_run(path), "no such file, so its folder holds no run");
  if (!std::filesystem::is_regular_file(status)) fail(place_in_run(path), "is not a regular file");
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) fail(place_in_run(path), "cannot be read");
  return text;
}

RecordedStep step_in(const std::string& line, const JsonPlace& place) {
  const ordered_json json = parse_object(line, place);
  RecordedStep step;
  step.step = count_in(json, "step", place);
  step.epoch = count_in(json, "epoch", place);
  for (const char* figure : {"loss", "accuracy"}) {
    if (figure == std::string("accuracy") && !json.contains(figure)) continue;  // a regression
    const bool is_skipped = json.contains("skipped") && field(json, figure, place).is_null();
    step.figures.emplace_back(
        figure, is_skipped ? Recorded("not finite") : Recorded(number_in(json, figure, place)));
  }
  if (!json.contains("hashes")) return step;
  for (auto& [tensor, hash] : text_pairs_in(json, "hashes", place)) {
    step.tensors.emplace_back(tensor, std::move(hash));
  }
  return step;
}

/// The lines of a file, read by `read(line, place)`; each must have a greater number, of what
/// `number` names, than the one before.
template <typename Line>
std::vector<Line> read_lines(const std::filesystem::path& path, const std::string& what,
                             std::uint64_t Line::*number,
                             Line (*read)(const std::string&, const JsonPlace&)) {
  const std::string text = read_text(path);
  std::vector<Line> lines;
  JsonPlace place = {path, 1, run_remedy};
  for (std::size_t at = 0; at < text.size(); ++place.line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    Line line = read(text.substr(at, end - at), place);
    const std::uint64_t last = lines.empty() ? 0 : lines.back().*number;
    if (line.*number <= last) {
      fail(place, what + " " + std::to_string(line.*number) + " stands behind " + what + " " +
                      std::to_string(last));
    }
    lines.push_back(std::move(line));
    at = end + 1;
  }
  if (lines.empty()) {
    fail({path, 0, "wait for the first " + what + " of the run, or give another run"},
         "no " + what + " is recorded");
  }
  return lines;
}

EpochReport epoch_in(const std::string& line, const JsonPlace& place) {
  const ordered_json json = parse_object(line, place);
  EpochReport epoch;
  epoch.epoch = count_in(json, "epoch", place);
  read_figures(json, place, epoch);
  const std::string train_score = epoch.is_regression ? "train_r2" : "train_accuracy";
  epoch.train_loss = number_in(json, "train_loss", place);
  if (!field(json, train_score.c_str(), place).is_null()) {
    epoch.train_score = number_in(json, train_score.c_str(), place);
  }
  epoch.seconds = number_in(json, "seconds", place);
  epoch.examples_per_second = number_in(json, "examples_per_second", place);
  epoch.weights_hash = hash_in(json, "weights_hash", place);
  return epoch;
}

void require_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) fail(place_in_run(folder), "no such folder");
  if (!std::filesystem::is_directory(folder, ignored))
    fail(place_in_run(folder), "is not a folder");
}

std::map<std::uint64_t, std::uint64_t> last_steps(const std::vector<RecordedStep>& steps) {
  std::map<std::uint64_t, std::uint64_t> last;
  for (const auto& step : steps) last[step.epoch] = step.step;
  return last;
}

void read_summary(const std::filesystem::path& path, RecordedRun& run) {
  const JsonPlace place = place_in_run(path);
  const ordered_json json = parse_object(read_text(path), place);
  auto last_step = last_steps(run.steps);
  for (const auto& entry : list_in(json, "epochs", place)) {
    RecordedEpoch epoch;
    epoch.epoch = count_in(entry, "epoch", place);
    epoch.last_step = last_step[epoch.epoch];
    const char* score = entry.contains("test_r2") ? "test_r2" : "test_accuracy";
    epoch.figures = {{"weights_hash", text_in(entry, "weights_hash", place)},
                     {"test_loss", number_in(entry, "test_loss", place)},
                     {score, number_in(entry, score, place)}};
    run.epochs.push_back(std::move(epoch));
  }
  run.settings.emplace_back("ranks", std::to_string(count_in(json, "ranks", place)));
  run.settings.emplace_back("version", text_in(json, "version", place));
  run.status = text_in(json, "status", place);
}

}  // namespace

void add_figures(ordered_json& object, const EpochReport& epoch) {
  const auto add = [&](const std::string& set, const SetFigures& figures) {
    object[set + "_loss"] = figures.loss;
    object[set + (epoch.is_regression ? "_r2" : "_accuracy")] = figures.score;
    for (const auto& [name, figure] : figures.metrics) object[set + "_" + name] = figure;
  };
  add("test", epoch.test);
  if (epoch.validation) add("validation", *epoch.validation);
}

SetFigures figures_in(const ordered_json& object, const std::string& set, const JsonPlace& place) {
  const std::string begin = set + "_";
  const std::string loss = begin + "loss";
  const std::string score = begin + (object.contains(begin + "r2") ? "r2" : "accuracy");
  SetFigures figures = {number_in(object, loss.c_str(), place),
                        number_in(object, score.c_str(), place)};
  for (const auto& [key, value] : object.items()) {
    if (!key.starts_with(begin) || key == loss || key == score) continue;
    const bool is_nan = value.is_null();  // as JSON has it
    figures.metrics.emplace_back(key.substr(begin.size()),
                                 is_nan ? std::nan("") : number_in(object, key.c_str(), place));
  }
  return figures;
}

void read_figures(const ordered_json& object, const JsonPlace& place, EpochReport& epoch) {
  epoch.is_regression = object.contains("test_r2");
  epoch.test = figures_in(object, "test", place);
  if (!object.contains("validation_loss")) return;
  epoch.validation = figures_in(object, "validation", place);
}

RecordedRun read_run(const std::filesystem::path& folder) {
  require_folder(folder);
  std::error_code ignored;
  RecordedRun run;
  run.steps = read_lines(folder / "metrics.jsonl", "step", &RecordedStep::step, step_in);
  const auto summary = folder / "summary.json";
  if (std::filesystem::exists(std::filesystem::symlink_status(summary, ignored))) {
    read_summary(summary, run);
  }
  return run;
}

std::vector<EpochReport> read_epochs(const std::filesystem::path& folder) {
  require_folder(folder);
  return read_lines(folder / "epochs.jsonl", "epoch", &EpochReport::epoch, epoch_in);
}

std::string run_file_in(const std::filesystem::path& folder) {
  for (const std::string_view name : run_entries) {
    if (name == "flight") continue;
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) return std::string(name);
  }
  return "";
}

std::optional<RunEnd> recorded_end(const std::filesystem::path& folder) {
  const JsonPlace place = place_in_run(folder / "summary.json");
  try {
    const ordered_json json = parse_object(read_text(place.path), place);
    RunEnd end = {text_in(json, "status", place)};
    if (end.status == "running") return std::nullopt;
    if (end.status != "finished") {
      end.exit_code = count_in(json, "exit_code", place);
      end.cause = text_in(json, "cause", place);
    } else if (json.contains("stopped_early") && json["stopped_early"] == true) {
      end.stopped_early_after = count_in(json, "steps", place);
    }
    return end;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

bool is_finished(const std::filesystem::path& folder) {
  const auto end = recorded_end(folder);
  return end && end->status == "finished";
}

}  // namespace lockstep::train
