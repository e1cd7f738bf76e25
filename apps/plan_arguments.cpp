#include "apps/plan_arguments.hpp"

#include <algorithm>
#include <array>
#include <cxxopts.hpp>

#include "apps/arguments.hpp"
#include "apps/words.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

/// Settings of `train` that shape a plan, and those that choose its records.
constexpr std::array setting_flags = {
    "data",           "format", "train-limit", "test-limit",   "classes", "divide-by", "batch-size",
    "drop-remainder", "seed",   "shuffle",     "shard-policy", "rebatch", "leaf",      "ranks"};

constexpr std::array own_flags = {"range", "files", "record-bytes", "epoch",
                                  "json",  "ids",   "set",          "help"};

constexpr std::uint64_t most_ranks = 1 << 20;  // a number or two is kept for each

cxxopts::Options plan_options() {
  cxxopts::Options options(
      "lockstep plan",
      "Prints and proves the data plan of `lockstep train` with the same settings: which rank "
      "reads which records at which step. Starts nothing; needs no MPI.\n");
  options.custom_help("[CONFIG.toml] [flags]   (flags override the file, the file the defaults)");
  for (train::Setting setting : train::settings()) {
    if (setting.name == "ranks") setting.help = "ranks that the records are dealt to";
    if (std::find(setting_flags.begin(), setting_flags.end(), setting.name) !=
        setting_flags.end()) {
      add_setting(options, setting);
    }
  }
  const auto text = [] { return cxxopts::value<std::string>(); };
  options.add_options()("range", "instead of --data: records 0 to N - 1, not from files", text(),
                        "N")("files", "instead of --data: records of imagined files", text(),
                             "6,6")(
      "record-bytes", "bytes of one record [as float32 where --data is given]", text(), "N")(
      "epoch", "whose order is shown, from 1 [1]", text(), "N")(
      "json", "print one line of JSON instead")("ids",
                                                "with --json: the ids of every step and rank")(
      "set", "another way to give a setting", text(), "KEY=VALUE")("h,help", "show this");
  options.add_options("hidden")("config", "", cxxopts::value<std::vector<std::string>>());
  options.positional_help("");
  options.parse_positional({"config"});
  options.allow_unrecognised_options();
  return options;
}

std::vector<std::string> flag_names() {
  std::vector<std::string> names(setting_flags.begin(), setting_flags.end());
  names.insert(names.end(), own_flags.begin(), own_flags.end());
  return names;
}

/// A count, with the flag's name before what is wrong with it.
std::uint64_t count_of(const std::string& flag, const std::string& text, std::uint64_t least) {
  try {
    return parse_count(text, least);
  } catch (const ConfigError& error) {
    throw ConfigError("--" + flag + ": " + error.what());
  }
}

std::vector<std::uint64_t> files_of(const std::string& text) {
  constexpr std::uint64_t most = std::uint64_t{1} << 62;
  std::vector<std::uint64_t> files;
  std::uint64_t sum = 0;
  for (const auto& word : split_list(text)) {
    files.push_back(count_of("files", word, 0));
    if (files.back() > most - sum) throw ConfigError("--files: more records than can be counted");
    sum += files.back();
  }
  if (sum == 0) throw ConfigError("--files: no records", "give record counts, as --files 6,6");
  return files;
}

void take(PlanArguments& arguments, const std::string& key, const std::string& value) {
  if (key == "range") {
    arguments.range = count_of(key, value, 1);
  } else if (key == "files") {
    arguments.files = files_of(value);
  } else if (key == "record-bytes") {
    arguments.record_bytes = count_of(key, value, 1);
  } else if (key == "epoch") {
    arguments.epoch = count_of(key, value, 1) - 1;
  } else if (key == "json") {
    arguments.json = true;
  } else if (key == "ids") {
    arguments.ids = true;
  } else if (key == "set") {
    const auto [name, text] = key_value(value);
    train::set_value(arguments.config, "--set", name, text);
  } else {
    train::set_value(arguments.config, "--" + key, key, value);
  }
}

void require_sensible(const PlanArguments& arguments, bool data_given) {
  if (int{data_given} + int{arguments.range.has_value()} + int{arguments.files.has_value()} > 1) {
    throw ConfigError("records from more than one of --data, --range and --files", "give one");
  }
  if (arguments.ids && !arguments.json) {
    throw ConfigError("--ids without --json", "give both, or look at the picture without");
  }
  if (arguments.config.ranks > most_ranks) {
    throw ConfigError(
        "--ranks: " + grouped(arguments.config.ranks) + " is more than " + grouped(most_ranks),
        "plan for fewer ranks");
  }
}

/// The run file first, whatever the order of the words.
PlanArguments taken(const cxxopts::ParseResult& result) {
  PlanArguments arguments;
  if (result.count("config") > 0) {
    const auto paths = result["config"].as<std::vector<std::string>>();
    if (paths.size() > 1) {
      throw ConfigError("two run files: " + paths[0] + " and " + paths[1], "give one");
    }
    train::apply_run_file(arguments.config, paths[0], read_run_file(paths[0]));
  }
  bool data_given = false;
  for (const auto& argument : result.arguments()) {
    if (argument.key() == "config") continue;
    data_given = data_given || argument.key() == "data";
    take(arguments, argument.key(), argument.value());
  }
  require_sensible(arguments, data_given);
  return arguments;
}

}  // namespace

PlanArguments parse_plan_arguments(const std::vector<std::string>& words) {
  auto options = plan_options();
  const auto result = parse_words(options, "lockstep plan", words);
  refuse_unknown(result.unmatched(), flag_names(), "lockstep plan");
  if (result.count("help") == 0) return taken(result);
  PlanArguments arguments;
  arguments.help = true;
  return arguments;
}

std::string plan_help() { return plan_options().help({""}); }

}  // namespace lockstep::apps
