#include "apps/plan_arguments.hpp"

#include "apps/cli.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

constexpr std::uint64_t most_ranks = 1 << 20;  // a number or two is kept for each

Syntax plan_syntax() {
  Syntax syntax;
  syntax.command = "lockstep plan";
  syntax.does =
      "Prints and proves the data plan of `lockstep train` with the same settings: which rank "
      "reads which records at which step. Starts nothing; needs no MPI.\n";
  syntax.usage = "[CONFIG.toml] [flags]   (flags override the file, the file the defaults)";
  syntax.operand = "run file";
  syntax.run_file = true;
  syntax.settings = {"data",         "format",     "train-limit",    "test-limit", "classes",
                     "divide-by",    "batch-size", "drop-remainder", "seed",       "shuffle",
                     "shard-policy", "rebatch",    "leaf",           "mesh",       "ranks"};
  syntax.flags = {{"range", "N", "instead of --data: records 0 to N - 1, not from files"},
                  {"files", "6,6", "instead of --data: records of imagined files"},
                  {"record-bytes", "N", "bytes of one record [as float32 where --data is given]"},
                  {"epoch", "N", "whose order is shown, from 1 [1]"},
                  {"json", "", "print one line of JSON instead"},
                  {"ids", "", "with --json: the ids of every step and rank"}};
  syntax.other_help = {{"ranks", "ranks that the records are dealt to"}};
  return syntax;
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
  }
}

void require_sensible(const PlanArguments& arguments, const Arguments& given) {
  if (int{given.given("data")} + int{arguments.range.has_value()} +
          int{arguments.files.has_value()} >
      1) {
    throw ConfigError("records from more than one of --data, --range and --files", "give one");
  }
  if (arguments.range || arguments.files) {
    for (const char* flag : {"format", "divide-by", "classes", "test-limit"}) {
      if (!given.given(flag)) continue;
      throw ConfigError("--" + std::string(flag) + " with records that are imagined",
                        "leave it out, or give --data");
    }
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

}  // namespace

PlanArguments parse_plan_arguments(const std::vector<std::string>& words) {
  const Arguments given = parse_arguments(plan_syntax(), words);
  PlanArguments arguments;
  arguments.help = given.help;
  if (given.help) return arguments;
  train::apply_run_file(arguments.config, given.operand, read_run_file(given.operand));
  for (const auto& [key, value] : given.settings) {
    train::set_value(arguments.config, "--" + key, key, value);
  }
  for (const auto& [key, value] : given.flags) take(arguments, key, value);
  arguments.ranks_given = arguments.config.ranks != 1 || given.given("ranks");
  require_sensible(arguments, given);
  return arguments;
}

std::string plan_help() { return help_text(plan_syntax()); }

}  // namespace lockstep::apps
