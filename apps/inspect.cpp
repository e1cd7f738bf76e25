// `lockstep inspect PATH`: what a run, a checkpoint, a file of weights or a data set contains.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/flag_names.hpp"
#include "apps/library_options.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/json_fields.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/safetensors.hpp"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Facts, settings, and a table of parts: the tensors of a checkpoint, the checkpoints of a run.
struct Contents {
  std::string headline;
  ordered_json facts = ordered_json::object();
  ordered_json settings = ordered_json::object();
  std::string parts_name;
  ordered_json parts = ordered_json::array();  ///< objects with the same keys
};

std::string text_of(const ordered_json& value) {
  if (value.is_string()) return on_one_line(value.get<std::string>());
  if (value.is_null()) return "-";
  if (value.is_number_unsigned()) return grouped(value.get<std::uint64_t>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_array()) {
    std::vector<std::string> texts;
    for (const auto& one : value) texts.push_back(text_of(one));
    return joined(texts);
  }
  return value.dump();
}

/// The value of a setting, which is written in TOML.
ordered_json value_of(const std::string& literal) {
  auto value = ordered_json::parse(literal, nullptr, false);
  return value.is_discarded() ? ordered_json(literal) : value;
}

void print(const Contents& contents) {
  Banner banner{contents.headline, {}};
  for (const auto* rows : {&contents.facts, &contents.settings}) {
    for (const auto& [name, value] : rows->items()) {
      banner.rows.emplace_back(name, text_of(value));
    }
  }
  banner.print();
  if (contents.parts.empty()) return;
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : contents.parts.front().items()) lines[0].push_back(name);
  for (const auto& part : contents.parts) {
    auto& line = lines.emplace_back();
    for (const auto& [name, value] : part.items()) line.push_back(text_of(value));
  }
  fmt::print("\n");
  print_table(lines);
}

/// `names` with keys in snake case.
ordered_json in_snake_case(const ordered_json& names) {
  ordered_json renamed = ordered_json::object();
  for (const auto& [name, value] : names.items()) {
    std::string key = name;
    std::replace(key.begin(), key.end(), ' ', '_');
    renamed[key] = value;
  }
  return renamed;
}

void print_json(const Contents& contents) {
  ordered_json json = in_snake_case(contents.facts);
  if (!contents.settings.empty()) json["settings"] = contents.settings;
  auto& parts = json[contents.parts_name] = ordered_json::array();
  for (const auto& part : contents.parts) parts.push_back(in_snake_case(part));
  constexpr auto replace = ordered_json::error_handler_t::replace;  // in paths that are not UTF-8
  fmt::print("{}\n", json.dump(-1, ' ', false, replace));
}

/// The range of values, and how many are not finite.
struct Spread {
  double min = 0;
  double max = 0;
  double sum = 0;
  std::uint64_t count = 0;
  std::uint64_t not_finite = 0;

  void add(std::span<const float> values) {
    for (const float value : values) {
      const auto wide = static_cast<double>(value);
      if (!std::isfinite(wide)) {
        ++not_finite;
        continue;
      }
      min = count == 0 ? wide : std::min(min, wide);
      max = count == 0 ? wide : std::max(max, wide);
      sum += wide;
      ++count;
    }
  }

  void add_to(ordered_json& part) const {
    part["min"] = min;
    part["max"] = max;
    part["mean"] = count == 0 ? 0 : sum / static_cast<double>(count);
    part["not finite"] = not_finite;
  }
};

Contents inspect_checkpoint(const fs::path& folder, bool verify) {
  Contents contents{.headline = "checkpoint " + folder.string(), .parts_name = "tensors"};
  if (verify) train::verify_checkpoint(folder);
  const train::SavedNetwork saved = train::read_description(folder);
  auto& facts = contents.facts;
  facts["step"] = saved.info.step;
  facts["examples"] = saved.info.examples;
  facts["network"] = saved.shape.text();
  facts["parameters"] = saved.shape.parameters();
  facts["loss"] = saved.loss;
  facts["data"] = fmt::format("{}, divided by {}", saved.info.data, saved.info.divide_by);
  if (const auto classes = saved.info.class_names(); !classes.empty()) facts["classes"] = classes;
  facts["weights"] = to_hex(saved.weights_hash);
  std::error_code ignored;
  if (fs::exists(folder / "state.json", ignored)) {
    const train::TrainingState state = train::read_state(folder);
    facts["epoch"] = state.position.epoch + 1;
    facts["step of epoch"] = state.position.step;
    facts["updates"] = state.optimizer.scalars.steps;
    for (const auto& [name, value] : state.settings) {  // and hashes of the data, as texts
      contents.settings[name] =
          find_setting(name) == nullptr ? ordered_json(value) : value_of(value);
    }
    contents.settings["optimizer"] = optim::name_of(state.optimizer.kind);
  }
  facts["verified"] = verify ? "length and checksum of every file" : "no (--verify)";

  const auto products = make_library_products<float>();
  nn::Network<float> network(saved.shape, 0, *products, 1);
  train::read_weights(saved, network);
  const auto& block = network.parameters();
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    const auto& tensor = block.tensors()[i];
    const auto values = block.logical_value(i);
    nn::WeightsHash hash;
    hash.add(tensor, values);
    Spread spread;
    spread.add(values);
    ordered_json part = {{"tensor", tensor.name},
                         {"shape", train::shape_text(tensor.whole_shape())}};
    spread.add_to(part);
    part["hash"] = to_hex(hash.value());
    contents.parts.push_back(part);
  }
  return contents;
}

/// A file of weights, as `--init` takes it.
Contents inspect_weights(const fs::path& path) {
  const train::SafetensorsReader file(path, "give a file in the safetensors format");
  Contents contents{.headline = "weights " + path.string(), .parts_name = "tensors"};
  std::uint64_t bytes = 0;
  for (const train::StoredTensor& tensor : file.tensors()) {
    bytes += tensor.bytes.size();
    contents.parts.push_back({{"tensor", tensor.spec.name},
                              {"type", tensor.type},
                              {"shape", train::shape_text(tensor.spec.shape)}});
  }
  contents.facts["bytes"] = bytes;
  return contents;
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& file : list_folder(folder, ignored)) {
    if (file.is_regular_file(ignored)) bytes += file.file_size(ignored);
  }
  return bytes;
}

/// True if the files of a checkpoint are those that were saved. Reads them all.
bool is_intact(const fs::path& checkpoint) {
  try {
    train::require_intact(checkpoint);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

/// "valid", "not verified", or why it cannot be read. With `verify` compares checksums. Sets
/// `damaged` if its files are not those that were saved: a checkpoint with layers of another
/// program cannot be read, but is not damaged.
std::string validity(const fs::path& checkpoint, bool verify, bool& damaged) {
  try {
    if (verify) train::verify_checkpoint(checkpoint);
    train::read_description(checkpoint);
    return verify ? "valid" : "not verified";
  } catch (const DataError& error) {
    damaged = damaged || !is_intact(checkpoint);
    return error.problem();
  }
}

using Checkpoints = std::map<std::uint64_t, fs::path>;  // by step

/// Those in `folder`; none if it is no folder.
Checkpoints checkpoints_in(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder, ignored) ? train::checkpoints_in(folder) : Checkpoints();
}

void list(const Checkpoints& checkpoints, bool verify, Contents& contents, bool& damaged) {
  for (const auto& [step, checkpoint] : checkpoints) {
    contents.parts.push_back({{"checkpoint", checkpoint.filename().string()},
                              {"bytes", bytes_in(checkpoint)},
                              {"state", validity(checkpoint, verify, damaged)}});
  }
}

/// A folder of checkpoints, as Replica::save() makes it.
Contents inspect_saved(const fs::path& folder, const Checkpoints& checkpoints, bool verify,
                       bool& damaged) {
  Contents contents{.headline = "checkpoints in " + folder.string(), .parts_name = "checkpoints"};
  contents.facts["newest"] = checkpoints.rbegin()->second.string();
  list(checkpoints, verify, contents, damaged);
  return contents;
}

/// What is printed for the `status` of a run in `folder`, given its lock: "running" remains in
/// summary.json where rank 0 was killed or ended by its watchdog.
std::string state_of(const std::string& status, const fs::path& folder, LockState lock) {
  if (status == "finished") return status;
  if (status.empty()) return "not complete";
  if (status != "running" || lock != LockState::free) return "not complete (" + status + ")";
  // Another code may be that of a later job, which was refused.
  const bool was_hanging =
      launching::recorded_exit_code(folder / "flight") == static_cast<int>(ExitCode::timeout);
  return was_hanging ? "not complete (a rank made no progress: code 86)"
                     : "not complete (killed, or ended by --timeout)";
}

Contents inspect_run(const fs::path& folder, bool verify, bool& damaged) {
  Contents contents{.headline = "run " + folder.string(), .parts_name = "checkpoints"};
  auto& facts = contents.facts;
  std::error_code ignored;
  if (fs::exists(folder / "metrics.jsonl", ignored)) {
    const LockState lock = lock_state(folder);  // before the status: the run may end meanwhile
    facts["state"] = nullptr;                   // read below, but printed first
    const auto end = train::recorded_end(folder);
    if (end && end->exit_code != 0) {
      facts["exit code"] = end->exit_code;
      facts["cause"] = end->cause;
    }
    try {
      const train::RecordedRun run = train::read_run(folder);
      facts["state"] = state_of(run.status, folder, lock);
      facts["steps"] = run.steps.back().step;
      facts["epoch"] = run.steps.back().epoch;
      for (const auto& [name, value] : run.steps.back().figures) {
        std::visit([&, key = name + " of the last step"](const auto& held) { facts[key] = held; },
                   value);
      }
      for (const auto& [name, value] : run.settings) {
        contents.settings[name] = value_of(std::get<std::string>(value));
      }
    } catch (const DataError& error) {
      // A run that has just begun, or failed in its first step, has no step.
      const bool has_no_step = fs::is_empty(folder / "metrics.jsonl", ignored);
      facts["state"] = end && has_no_step ? state_of(end->status, folder, lock) : error.problem();
      damaged = error.problem().starts_with((folder / "summary.json").string());
    }
  }
  list(checkpoints_in(folder / "checkpoints"), verify, contents, damaged);
  return contents;
}

/// The runs in a folder that has no data, by name, without links to others of them, as `latest` is.
std::vector<fs::path> runs_in(const fs::path& folder) {
  std::vector<fs::path> runs;
  std::error_code ignored;
  const fs::path here = fs::canonical(folder, ignored);
  for (const auto& entry : list_folder(folder, ignored)) {
    if (data::part_of_file(entry.path())) return {};
    const bool is_second_name =
        entry.is_symlink(ignored) && fs::canonical(entry.path(), ignored).parent_path() == here;
    if (is_second_name || train::run_file_in(entry.path()).empty()) continue;
    runs.push_back(entry.path());
  }
  const auto pictures = runs.empty() ? std::nullopt : data::find_picture_folders(folder);
  const bool has_sets = pictures && pictures->first != folder;  // else runs may have plots
  return has_sets ? std::vector<fs::path>() : runs;
}

/// What summary.json says of a run.
ordered_json summary_of(const fs::path& run, bool& damaged) {
  ordered_json part = {{"run", run.filename().string()},
                       {"state", "no step recorded"},
                       {"epochs", nullptr},
                       {"steps", nullptr},
                       {"test loss", nullptr},
                       {"test score", nullptr},  // accuracy or R2
                       {"best epoch", nullptr}};
  const train::JsonPlace place = {run / "summary.json", 0, "give the folder of a run, unchanged"};
  std::error_code ignored;
  if (!fs::exists(place.path, ignored)) return part;
  const LockState lock = lock_state(run);  // before the status: the run may end meanwhile
  try {
    const ordered_json json = train::read_object(place);
    part["state"] = state_of(train::text_in(json, "status", place), run, lock);
    part["steps"] = train::count_in(json, "steps", place);
    const auto& epochs = train::list_in(json, "epochs", place);
    part["epochs"] = epochs.size();
    if (!epochs.empty()) {
      const train::SetFigures test = train::figures_in(epochs.back(), "test", place);
      part["test loss"] = test.loss;
      part["test score"] = test.score;
    }
    if (json.contains("best")) part["best epoch"] = train::count_in(json["best"], "epoch", place);
  } catch (const DataError& error) {
    part["state"] = error.problem();
    damaged = true;
  }
  return part;
}

/// A folder of runs, also that of a sweep.
Contents inspect_runs(const fs::path& folder, const std::vector<fs::path>& runs, bool& damaged) {
  Contents contents{.headline = "runs in " + folder.string(), .parts_name = "runs"};
  std::error_code ignored;
  if (fs::exists(folder / "sweep.json", ignored)) {
    contents.facts["sweep"] =
        "`lockstep sweep --show " + in_shell(folder.string()) + "` has the settings of its trials";
  }
  for (const fs::path& run : runs) contents.parts.push_back(summary_of(run, damaged));
  return contents;
}

/// `classes`: their names; empty: they have none.
ordered_json part_of(const std::string& name, data::Source& source,
                     const std::vector<std::string>& classes) {
  constexpr std::uint64_t max_floats = 1 << 18;
  const std::uint64_t rows = std::clamp<std::uint64_t>(max_floats / source.features(), 1, 256);
  std::vector<float> features(rows * source.features());
  std::vector<std::int32_t> labels(rows);
  Spread spread;
  std::map<std::int32_t, std::uint64_t> counts;
  for (std::uint64_t first = 0; first < source.records(); first += rows) {
    std::vector<std::uint64_t> ids(std::min(rows, source.records() - first));
    std::iota(ids.begin(), ids.end(), first);
    const auto x = std::span(features).first(ids.size() * source.features());
    source.read(ids, x, std::span(labels).first(ids.size()));
    spread.add(x);
    for (std::size_t i = 0; i < ids.size(); ++i) ++counts[labels[i]];
  }
  ordered_json part = {
      {"set", name}, {"records", source.records()}, {"shape", joined(source.shape(), "x")}};
  spread.add_to(part);
  if (source.targets() > 0) {
    part["targets"] = source.targets();
  } else {
    part["labels"] = counts.size();
    const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end(), by_count);
    const auto text = [&](const auto& one) {
      const auto label = static_cast<std::size_t>(one.first);
      return (label < classes.size() ? classes[label] : std::to_string(one.first)) + ": " +
             std::to_string(one.second);
    };
    part["rarest"] = text(*least);
    part["most frequent"] = text(*most);
  }
  part["identity"] = to_hex(hash_of(source.identity()));
  return part;
}

Contents inspect_data(const std::string& path, const Arguments& arguments) {
  RunConfig config = config_over(RunConfig(), arguments);
  config.data = path;
  require_split_for_seed(arguments, config);
  data::DataSetOptions options = data_options(config);
  options.may_lack_test = true;
  const auto sets = data::open_data_set(path, options);
  require_used(config, *sets.train);
  Contents contents{.headline = "data " + path, .parts_name = "sets"};
  contents.facts["divided by"] = static_cast<double>(sets.train->divisor());
  if (const auto table = sets.train->table(); table != nullptr) {
    contents.facts["standardized"] = table->standardized;
  }
  const auto columns = sets.train->columns();
  if (!columns.empty()) contents.facts["columns"] = columns;
  train::CheckpointInfo info;
  info.table = sets.train->table();
  info.pictures = sets.train->pictures();
  const auto classes = info.class_names();
  if (!classes.empty()) contents.facts["classes"] = classes;
  contents.parts.push_back(part_of("training", *sets.train, classes));
  if (sets.test != nullptr) contents.parts.push_back(part_of("test", *sets.test, classes));
  return contents;
}

int inspect(const Arguments& arguments) {
  fs::path path = without_slash(arguments.operand());
  if (path.empty()) throw ConfigError("nothing to inspect", "write `lockstep inspect PATH`");
  std::error_code ignored;
  if (path.filename() == "best" && !fs::exists(path, ignored)) path = train::find_checkpoint(path);
  const bool verify = arguments.given("verify");
  bool damaged = false;
  const auto holds = [&](const char* name) { return fs::exists(path / name, ignored); };
  const bool is_run = holds("checkpoints") || holds("metrics.jsonl");
  const bool is_checkpoint = holds("manifest.json") || holds("network.json");
  const bool is_weights = path.extension() == ".safetensors" && fs::is_regular_file(path, ignored);
  const auto saved = checkpoints_in(path);
  const bool is_named =
      data::drawn_set(path.string()) != nullptr || data::is_pattern(path.string());
  if (!is_named && !fs::exists(path, ignored)) {
    throw DataError(path.string() + ": no such file or folder",
                    "give the folder of a run or a checkpoint, or data");
  }
  const bool is_one = is_run || is_checkpoint || is_weights || !saved.empty();
  const auto runs = is_one || is_named ? std::vector<fs::path>() : runs_in(path);
  const bool is_data = !is_one && runs.empty();
  if (verify && (is_data || is_weights || !runs.empty())) {
    throw ConfigError("--verify: " + path.string() + " is neither a run nor a checkpoint",
                      is_data      ? "leave it out: data has no manifest"
                      : is_weights ? "leave it out: a file alone has no manifest"
                                   : "name one of its runs");
  }
  if (!is_data && !arguments.settings.empty()) {
    throw ConfigError("--" + arguments.settings.front().first + ": " + path.string() +
                          " is no data, but a run, a checkpoint, a folder of them or weights",
                      "leave it out");
  }
  const Contents contents = is_run           ? inspect_run(path, verify, damaged)
                            : is_checkpoint  ? inspect_checkpoint(path, verify)
                            : is_weights     ? inspect_weights(path)
                            : !saved.empty() ? inspect_saved(path, saved, verify, damaged)
                            : !runs.empty()  ? inspect_runs(path, runs, damaged)
                                             : inspect_data(path.string(), arguments);
  arguments.given("json") ? print_json(contents) : print(contents);
  return static_cast<int>(damaged ? ExitCode::data : ExitCode::success);
}

}  // namespace

Syntax inspect_syntax() {
  Syntax syntax;
  syntax.command = "lockstep inspect";
  syntax.does =
      "Prints what a run, a checkpoint, a folder of them or a data set contains: shapes, ranges, "
      "hashes; of a folder of runs, also of a sweep, their state and figures; of a file of weights "
      "(.safetensors) the names and shapes of its tensors.\n"
      "Ends with 65 if a checkpoint or summary.json is damaged.\n";
  syntax.usage = "PATH [flags]";
  syntax.operand = "path";
  syntax.settings = {"format",     "classes",    "divide-by", "train-limit",
                     "test-limit", "test-split", "seed"};
  syntax.take_table_settings();
  syntax.other_help = {{"seed", "of the test split"}};
  syntax.flags = {{"verify", "", "compare every file of checkpoints with its manifest"},
                  {"json", "", "print one JSON object"}};
  return syntax;
}

int inspect_command(const std::vector<std::string>& words) {
  return run_on_rank_0(inspect_syntax(), words, inspect);
}

}  // namespace lockstep::apps
