#include "lib/train/recorded_run.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "lib/base/errors.hpp"
#include "lib/train/config.hpp"
#include "lib/train/json_fields.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

constexpr const char* remedy =
    "give a folder that `lockstep train --run-dir` wrote, as it wrote it";

JsonPlace place_of(const std::filesystem::path& path) { return {path, 0, remedy}; }

std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    fail(place_of(path), "no such file, so its folder holds no run");
  if (!std::filesystem::is_regular_file(status)) fail(place_of(path), "is no regular file");
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) fail(place_of(path), "cannot be read");
  return text;
}

RecordedStep step_in(const std::string& line, const JsonPlace& place) {
  const ordered_json json = parse_object(line, place);
  RecordedStep step;
  step.step = count_in(json, "step", place);
  step.epoch = count_in(json, "epoch", place);
  for (const char* figure : {"loss", "accuracy"}) {
    step.figures.emplace_back(figure, number_in(json, figure, place));
  }
  if (!json.contains("hashes")) return step;
  const auto& hashes = json["hashes"];
  if (!hashes.is_object()) fail(place, "'hashes' is not an object in {}");
  for (const auto& [tensor, hash] : hashes.items()) {
    step.tensors.emplace_back(tensor, text_in(hashes, tensor.c_str(), place));
  }
  return step;
}

std::vector<RecordedStep> read_metrics(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::vector<RecordedStep> steps;
  JsonPlace place = {path, 1, remedy};
  for (std::size_t at = 0; at < text.size(); ++place.line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    RecordedStep step = step_in(text.substr(at, end - at), place);
    const std::uint64_t last = steps.empty() ? 0 : steps.back().step;
    if (step.step <= last) {
      fail(place,
           "step " + std::to_string(step.step) + " stands behind step " + std::to_string(last));
    }
    steps.push_back(std::move(step));
    at = end + 1;
  }
  if (steps.empty()) fail(place_of(path), "no step is recorded");
  return steps;
}

Figures read_settings(const std::filesystem::path& path) {
  RunConfig config;
  try {
    apply_run_file(config, path.string(), read_text(path));
  } catch (const ConfigError& error) {
    const std::string what = error.what();  // its remedy is for a run file that a person writes
    throw DataError(what.substr(0, what.find('\n')), remedy);
  }
  Figures settings;
  for (auto& [name, literal] : key_values(config)) {
    const bool told = name != "run-dir" && name != "progress" && name != "ranks";
    if (told) settings.emplace_back(name, std::move(literal));
  }
  return settings;
}

std::map<std::uint64_t, std::uint64_t> last_steps(const std::vector<RecordedStep>& steps) {
  std::map<std::uint64_t, std::uint64_t> last;
  for (const auto& step : steps) last[step.epoch] = step.step;
  return last;
}

void read_summary(const std::filesystem::path& path, RecordedRun& run) {
  const JsonPlace place = place_of(path);
  const ordered_json json = parse_object(read_text(path), place);
  const auto& epochs = field(json, "epochs", place);
  if (!epochs.is_array()) fail(place, "'epochs' is not a list in []");
  auto last_step = last_steps(run.steps);
  for (const auto& entry : epochs) {
    RecordedEpoch epoch;
    epoch.epoch = count_in(entry, "epoch", place);
    epoch.last_step = last_step[epoch.epoch];
    epoch.figures = {{"weights_hash", text_in(entry, "weights_hash", place)},
                     {"test_loss", number_in(entry, "test_loss", place)},
                     {"test_accuracy", number_in(entry, "test_accuracy", place)}};
    run.epochs.push_back(std::move(epoch));
  }
  run.settings.emplace_back("ranks", std::to_string(count_in(json, "ranks", place)));
  run.settings.emplace_back("version", text_in(json, "version", place));
  run.finished = true;
}

}  // namespace

RecordedRun read_run(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) fail(place_of(folder), "no such folder");
  if (!std::filesystem::is_directory(folder, ignored)) fail(place_of(folder), "is no folder");
  RecordedRun run;
  run.settings = read_settings(folder / "config.toml");
  run.steps = read_metrics(folder / "metrics.jsonl");
  const auto summary = folder / "summary.json";
  if (std::filesystem::exists(std::filesystem::symlink_status(summary, ignored))) {
    read_summary(summary, run);
  }
  return run;
}

}  // namespace lockstep::train
