// `lockstep compare`: the first recorded point where two runs differ.
#include <spdlog/fmt/fmt.h>

#include <filesystem>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/run_file.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/recorded_run.hpp"

namespace lockstep::apps {
namespace {

constexpr int the_same = 0;
constexpr int differ = 1;

}  // namespace

Syntax compare_syntax() {
  Syntax syntax;
  syntax.command = "lockstep compare";
  syntax.does =
      "Compares what two runs recorded, to the last bit, as far as both go: the steps' loss and "
      "accuracy, the tensors' hashes (train --hash-every N), the epochs' weights and test loss.\n"
      "Ends with 0 where they are the same and 1 where they differ, as cmp does; 2: usage; 65: a "
      "run folder is missing or damaged.\n";
  syntax.usage = "RUN_A RUN_B [flags]";
  syntax.operand = "run folder";
  syntax.operands = 2;
  syntax.flags = {{"json", "", "print one line of JSON instead"}};
  return syntax;
}

namespace {

std::string value_text(const train::Recorded& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

std::string difference_text(const train::Difference& difference) {
  std::string text = fmt::format("step {}, {}: A {}, B {}", difference.step, difference.what,
                                 value_text(difference.a), value_text(difference.b));
  if (difference.others > 0) text += fmt::format("; and {} more there", difference.others);
  return text;
}

std::string kind_text(const std::optional<train::Difference>& difference, const char* none) {
  return difference ? "first differ at " + difference_text(*difference) : none;
}

std::string run_text(const std::string& folder, const train::RecordedRun& run) {
  return fmt::format("{}: steps {} to {}{}", folder, run.steps.front().step, run.steps.back().step,
                     run.status == "finished" ? ""
                     : run.status.empty()     ? ", unfinished (no summary.json)"
                                              : ", unfinished (" + run.status + ")");
}

std::string headline(const train::Comparison& comparison) {
  const auto* first = comparison.first();
  if (first == nullptr) return "the same to the last bit, in all that both runs recorded";
  return fmt::format("the runs differ, first at step {}: {}", first->step, first->what);
}

std::string tensors_text(const train::Comparison& comparison) {
  if (comparison.hashed_steps == 0) {
    return "not compared: both runs need --hash-every, with a step in common";
  }
  return fmt::format("{} with hashes: {}", counted(comparison.hashed_steps, "step"),
                     kind_text(comparison.tensor, "every tensor alike"));
}

std::string epochs_text(const train::Comparison& comparison) {
  if (comparison.epochs == 0) return "not compared: none that ended at the same step in both runs";
  return fmt::format("{}: {}", counted(comparison.epochs, "epoch"),
                     kind_text(comparison.epoch, "weights' hash, test loss and score alike"));
}

Banner comparison_banner(const train::Comparison& comparison) {
  Banner banner;
  banner.headline = headline(comparison);
  const auto add = [&](const char* label, std::string text) {
    banner.rows.emplace_back(label, std::move(text));
  };
  add("steps",
      fmt::format("{} ({} to {}): {}", counted(comparison.steps, "step"), comparison.first_step,
                  comparison.last_step, kind_text(comparison.figure, "loss and score alike")));
  add("tensors", tensors_text(comparison));
  add("epochs", epochs_text(comparison));
  for (const auto& setting : comparison.settings) {
    add("setting",
        fmt::format("{}: A {}, B {}", setting.what, value_text(setting.a), value_text(setting.b)));
  }
  return banner;
}

/// A run, with its config.toml as first settings. "ranks", which a launcher may determine, is in
/// summary.json.
train::RecordedRun read_run(const std::filesystem::path& folder) {
  auto run = train::read_run(folder);
  RunConfig config;
  try {
    config = read_config(folder);
  } catch (const ConfigError& error) {
    throw DataError(error.problem(), "give the folder of a run, unchanged");
  }
  train::Figures settings;
  for (const auto& [name, literal] : key_values(config)) {
    const bool compared = name != "run-dir" && name != "progress" && name != "ranks";
    if (compared) settings.emplace_back(name, literal);
  }
  run.settings.insert(run.settings.begin(), settings.begin(), settings.end());
  return run;
}

int compare_runs(const std::vector<std::string>& folders, bool json) {
  if (folders.size() != 2) {
    throw ConfigError(fmt::format("{}, where two belong", counted(folders.size(), "run folder")),
                      "`lockstep compare RUN_A RUN_B` compares two folders of `lockstep train`");
  }
  const auto a = read_run(folders[0]);
  const auto b = read_run(folders[1]);
  const auto comparison = train::compare(a, b);
  if (json) {
    fmt::print("{}\n", train::to_json(comparison));
  } else {
    Banner banner = comparison_banner(comparison);
    banner.rows.insert(banner.rows.begin(),
                       {{"A", run_text(folders[0], a)}, {"B", run_text(folders[1], b)}});
    banner.print();
  }
  flush_stdout();
  return comparison.first() == nullptr ? the_same : differ;
}

}  // namespace

int compare_command(const std::vector<std::string>& words) {
  return run_on_rank_0(compare_syntax(), words, [](const Arguments& arguments) {
    return compare_runs(arguments.operands, arguments.given("json"));
  });
}

}  // namespace lockstep::apps
