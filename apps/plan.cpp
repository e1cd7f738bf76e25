// `lockstep plan`: which rank reads which record at which step, with proof.

#include "lockstep/data/plan.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/library_options.hpp"
#include "apps/plan.hpp"
#include "apps/run_file.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/tensor_parallel.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {

namespace {

// The command line.

/// The parsed command line.
struct PlanArguments {
  RunConfig config;
  std::optional<std::uint64_t> range;               ///< records 0 to N - 1
  std::optional<std::vector<std::uint64_t>> files;  ///< records per simulated file
  std::optional<std::uint64_t> record_bytes;        ///< of one record
  std::uint64_t epoch = 0;                          ///< from 0
  bool ranks_given = false;
  bool json = false;
  bool ids = false;
  bool network = false;  ///< print the network instead of the data plan
};

constexpr std::uint64_t max_ranks = 1 << 20;  // memory: one or two numbers per rank

}  // namespace

Syntax plan_syntax() {
  Syntax syntax = run_file_syntax(
      "lockstep plan",
      "Prints and proves the data plan of `lockstep train` with the same settings: which rank "
      "reads which records at which step; with --network, the layers of its network; with "
      "--predict, a measured step on more ranks. Starts nothing; needs no MPI.\n");
  syntax.settings = {"data",         "format",     "train-limit",    "test-limit", "classes",
                     "divide-by",    "batch-size", "drop-remainder", "seed",       "shuffle",
                     "shard-policy", "rebatch",    "leaf",           "mesh",       "ranks",
                     "test-split",   "model",      "layers",         "exchange",   "reduction",
                     "prefetch",     "validation", "micro-batch",    "precision",  "optimizer",
                     "momentum",     "survive",    "audit-every",    "balance",    "device",
                     "threads"};
  syntax.take_table_settings();
  syntax.flags = {{"range", "N", "instead of --data: records 0 to N - 1, not from files"},
                  {"files", "6,6", "instead of --data: records of imagined files"},
                  {"record-bytes", "N", "bytes of one record [as float32 where --data is given]"},
                  {"epoch", "N", "whose order is shown, from 1", "1"},
                  {"network", "", "print the layers: outputs, parameters, FLOPs, memory of rank 0"},
                  {"json", "", "print one line of JSON instead"},
                  {"ids", "", "with --json: the ids of every step and rank"}};
  const auto& scaling = scaling_flags();
  syntax.flags.insert(syntax.flags.end(), scaling.begin(), scaling.end());
  syntax.other_help = {{"ranks", "ranks that the records are dealt to"}};
  return syntax;
}

namespace {

std::vector<std::uint64_t> files_of(const std::string& text) {
  constexpr std::uint64_t max = std::uint64_t{1} << 62;
  std::vector<std::uint64_t> files;
  std::uint64_t sum = 0;
  for (const auto& word : split_list(text)) {
    files.push_back(flag_count("files", word, 0));
    if (files.back() > max - sum) throw ConfigError("--files: more records than can be counted");
    sum += files.back();
  }
  if (sum == 0) throw ConfigError("--files: no records", "give record counts, as --files 6,6");
  return files;
}

void require_sensible(const PlanArguments& arguments, const Arguments& given) {
  if (int{given.given("data")} + int{arguments.range.has_value()} +
          int{arguments.files.has_value()} >
      1) {
    throw ConfigError("records from more than one of --data, --range and --files", "give one");
  }
  if (arguments.range || arguments.files) {
    std::vector<std::string> of_data = table_settings();
    of_data.insert(of_data.end(),
                   {"format", "divide-by", "classes", "test-limit", "test-split", "validation"});
    for (const std::string& flag : of_data) {
      if (!given.given(flag)) continue;
      throw ConfigError("--" + flag + " with records that are imagined",
                        "leave it out, or give --data");
    }
  }
  for (const char* flag :
       {"model", "layers", "exchange", "reduction", "prefetch", "micro-batch", "test-limit",
        "optimizer", "momentum", "survive", "audit-every", "device", "threads"}) {
    if (arguments.network || !given.given(flag)) continue;
    throw ConfigError("--" + std::string(flag) + " without --network",
                      "leave it out: the data plan does not depend on it; or give both");
  }
  if (arguments.network) {
    for (const char* flag : {"range", "files", "record-bytes", "epoch", "ids"}) {
      if (!given.given(flag)) continue;
      throw ConfigError("--" + std::string(flag) + " with --network, which prints layers",
                        "leave one of them out");
    }
  }
  for (const Flag& flag : scaling_flags()) {
    if (!given.given(flag.name)) continue;
    throw ConfigError("--" + flag.name + " without --predict", "give both, or leave it out");
  }
  if (arguments.ids && !arguments.json) {
    throw ConfigError("--ids without --json", "give both, or look at the picture without");
  }
  if (arguments.config.ranks > max_ranks) {
    throw ConfigError(
        "--ranks: " + grouped(arguments.config.ranks) + " is more than " + grouped(max_ranks),
        "plan for fewer ranks");
  }
}

/// Reads the run file and applies settings and flags.
PlanArguments plan_arguments(Arguments given) {
  given.run_file_text = read_run_file(given.operand());
  PlanArguments arguments;
  arguments.config = config_over(RunConfig(), given);
  arguments.range = given.number("range", 1);
  if (given.given("files")) arguments.files = files_of(given.value("files"));
  arguments.record_bytes = given.number("record-bytes", 1);
  arguments.epoch = *given.number("epoch", 1) - 1;
  arguments.json = given.given("json");
  arguments.ids = given.given("ids");
  arguments.network = given.given("network");
  arguments.ranks_given = arguments.config.ranks != 1 || given.given("ranks");
  require_sensible(arguments, given);
  return arguments;
}

// The plan as a table for the terminal.

constexpr std::uint64_t max_rows = 16;
constexpr std::uint64_t max_steps = 24;
constexpr const char* ellipsis = "...";

/// The first indices below `count`, then the last one; at most `max`.
std::vector<std::uint64_t> listed_indices(std::uint64_t count, std::uint64_t max) {
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < count && indices.size() + 1 < max; ++i) indices.push_back(i);
  if (indices.size() < count) indices.push_back(count - 1);
  return indices;
}

/// "0-15" for consecutive records; else the first ones, "7 3 5" or "7 3 +14".
std::string cell(const data::Plan& plan, std::uint64_t epoch, std::uint64_t step,
                 std::uint64_t rank) {
  const Range range = plan.positions(step, rank);
  const std::uint64_t size = range.size();
  if (size == 0) return "-";
  const auto record = [&](std::uint64_t i) { return plan.record(epoch, rank, range.begin + i); };
  const bool ordered = plan.options().shuffle == data::Shuffle::none;
  if (size == 1) return std::to_string(record(0));
  if (ordered && record(size - 1) - record(0) == size - 1) {
    return fmt::format("{}-{}", record(0), record(size - 1));
  }
  const std::uint64_t listed = size <= 3 ? size : 2;
  std::string text;
  for (std::uint64_t i = 0; i < listed; ++i) text += fmt::format("{}{}", i ? " " : "", record(i));
  return listed < size ? text + fmt::format(" +{}", size - listed) : text;
}

using Column = std::vector<std::string>;

std::size_t width_of(const Column& column) {
  std::size_t width = 0;
  for (const auto& text : column) width = std::max(width, text.size());
  return width;
}

Column step_column(const data::Plan& plan, std::uint64_t epoch, std::uint64_t step,
                   const std::vector<std::uint64_t>& ranks) {
  Column column = {fmt::format("step {}", step + 1)};
  for (const auto rank : ranks) column.push_back(cell(plan, epoch, step, rank));
  return column;
}

/// The steps that fit into `room`, with a gap before the last one if some are omitted.
std::vector<Column> step_columns(const data::Plan& plan, std::uint64_t epoch,
                                 const std::vector<std::uint64_t>& ranks, std::size_t room) {
  const auto steps = listed_indices(plan.steps(), max_steps);
  Column last = step_column(plan, epoch, steps.back(), ranks);
  std::vector<Column> columns;
  const std::size_t reserved = width_of(last) + 2 + std::string(ellipsis).size() + 2;
  std::size_t used = reserved;
  std::uint64_t next = 0;
  for (; next + 1 < steps.size(); ++next) {
    Column column = step_column(plan, epoch, steps[next], ranks);
    used += width_of(column) + 2;
    if (used > room && !columns.empty()) break;
    columns.push_back(std::move(column));
  }
  if (next + 1 < plan.steps()) columns.emplace_back(ranks.size() + 1, ellipsis);
  columns.push_back(std::move(last));
  return columns;
}

/// A table of ranks (rows), steps (columns) and records (cells), at most `columns` wide: the first
/// ranks and steps that fit, and always the last ones. `epoch` from 0; `worker`: "rank".
std::string plan_picture(const data::Plan& plan, const char* worker, std::uint64_t epoch,
                         std::size_t columns) {
  const auto ranks = listed_indices(plan.options().ranks, max_rows);
  Column names = {fmt::format("epoch {}", epoch + 1)};
  Column counts = {"records"};
  for (const auto rank : ranks) {
    names.push_back(fmt::format("{} {}", worker, rank));
    counts.push_back(grouped(plan.examples_of(rank)));
  }
  const std::size_t used = width_of(names) + width_of(counts) + 4;
  auto steps = step_columns(plan, epoch, ranks, columns > used ? columns - used : 0);
  steps.insert(steps.begin(), {names, counts});
  std::string text;
  for (std::size_t row = 0; row <= ranks.size(); ++row) {
    const bool jump = row > 1 && ranks[row - 1] != ranks[row - 2] + 1;
    if (jump) text += std::string(2, ' ') + ellipsis + "\n";
    std::string line;
    for (std::size_t c = 0; c < steps.size(); ++c) {
      line += fmt::format("  {:<{}}", steps[c][row], width_of(steps[c]));
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// The plan and its proof, as JSON or as text.

using nlohmann::ordered_json;

constexpr std::uint64_t max_ids = 1'000'000;

/// The records to plan for.
struct Records {
  std::uint64_t count = 0;
  std::vector<std::uint64_t> files;           ///< of each file; empty: not read from files
  std::string from;                           ///< "synthetic", "--range"
  std::optional<std::uint64_t> record_bytes;  ///< of one record
};

/// The first `limit` records of simulated files.
Records imagined(const std::vector<std::uint64_t>& files, std::optional<std::uint64_t> limit) {
  Records records;
  records.from = "--files";
  for (std::uint64_t count : files) {
    if (limit) count = std::min(count, *limit - records.count);
    records.files.push_back(count);
    records.count += count;
    if (limit == records.count) break;
  }
  return records;
}

Records opened(const RunConfig& config) {
  const auto train = data::open_data_part(config.data, data::Part::train, data_options(config));
  require_used(config, *train);
  const std::uint64_t bytes = train->features() * sizeof(float) + sizeof(std::int32_t);
  return {train->records(), train->file_records(), config.data, bytes};
}

Records records_of(const PlanArguments& arguments) {
  const auto limit = arguments.config.train_limit;
  Records records;
  if (arguments.range) {
    records = {std::min(*arguments.range, limit.value_or(*arguments.range)), {}, "--range", {}};
  } else {
    records = arguments.files ? imagined(*arguments.files, limit) : opened(arguments.config);
  }
  if (arguments.record_bytes) records.record_bytes = arguments.record_bytes;
  return records;
}

/// A plan with its facts and proof.
struct Findings {
  const PlanArguments& arguments;
  const Records& records;
  const TrainingPlan& chosen;
  const data::PlanFacts& facts;
  const data::PlanProof& proof;
  std::uint64_t ranks_a_replica;

  /// What the plan deals records to.
  const char* worker() const { return ranks_a_replica > 1 ? "replica" : "rank"; }
};

ordered_json ids_json(const data::Plan& plan, std::uint64_t epoch) {
  const std::uint64_t ranks = plan.options().ranks;
  if (plan.examples_per_epoch() > max_ids || plan.steps() > max_ids / ranks) {
    throw ConfigError("--ids: " + grouped(plan.examples_per_epoch()) + " ids in " +
                          counted(plan.steps(), "step") + " of " + counted(ranks, "rank") +
                          "; it lists up to " + grouped(max_ids),
                      "plan a part with --train-limit, or leave --ids out");
  }
  auto steps = ordered_json::array();
  std::vector<std::uint64_t> ids;
  for (std::uint64_t step = 0; step < plan.steps(); ++step) {
    auto row = ordered_json::array();
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      plan.records(epoch, step, rank, ids);
      row.push_back(ids);
    }
    steps.push_back(std::move(row));
  }
  return steps;
}

void add_bytes(ordered_json& json, const Findings& found) {
  if (!found.records.record_bytes) return;
  json["record_bytes"] = *found.records.record_bytes;
  std::vector<double> bytes;  // may overflow an integer
  bytes.reserve(found.facts.records_per_rank.size());
  for (const auto count : found.facts.records_per_rank) {
    bytes.push_back(static_cast<double>(count) * static_cast<double>(*found.records.record_bytes));
  }
  json["bytes_per_rank"] = bytes;
}

ordered_json to_json(const Findings& found) {
  const data::Plan& plan = found.chosen.plan;
  const auto& options = plan.options();
  const auto& facts = found.facts;
  ordered_json json = {
      {"policy", data::name_of(options.policy)},
      {"reason", found.chosen.reason},
      {"rebatch", data::name_of(options.rebatch)},
      {"records", options.records},
      {"files", found.records.files.size()},
      {"ranks", options.ranks},
      {"ranks_a_replica", found.ranks_a_replica},
      {"batch_size", options.batch_size},
      {"drop_remainder", options.drop_remainder},
      {"shuffle", found.arguments.config.shuffle},
      {"seed", options.seed},
      {"epoch", found.arguments.epoch + 1},
      {"steps", plan.steps()},
      {"examples", facts.examples},
      {"first_step_examples", plan.examples(0)},
      {"last_step_examples", plan.examples(plan.steps() - 1)},
      {"largest_piece", plan.largest_piece()},
      {"digest", to_hex(plan.digest())},
      {"records_per_rank", facts.records_per_rank},
      {"empty_batches", facts.empty_batches},
      {"idle_share", facts.idle_share},
      {"disjoint", facts.multiplicity.disjoint()},
      {"omitted", facts.multiplicity.omitted},
      {"multiplicity", {{"min", facts.multiplicity.min}, {"max", facts.multiplicity.max}}},
      {"proof", {{"enumerated", found.proof.enumerated}, {"text", found.proof.text}}}};
  add_bytes(json, found);
  if (found.arguments.ids) json["ids"] = ids_json(plan, found.arguments.epoch);
  return json;
}

/// "128 | 128 | ... | 8": the numbers of examples of the first steps and the last one.
std::string sizes_text(const data::Plan& plan) {
  constexpr std::uint64_t listed = 6;
  std::string text;
  const std::uint64_t last = plan.steps() - 1;
  for (std::uint64_t step = 0; step < std::min(listed, last); ++step) {
    text += grouped(plan.examples(step)) + " | ";
  }
  return text + (last > listed ? "... | " : "") + grouped(plan.examples(last));
}

/// "6 records" if all ranks have the same number, else "5 to 7 records".
std::string share_text(const std::vector<std::uint64_t>& counts) {
  const auto [min, max] = std::minmax_element(counts.begin(), counts.end());
  return *min == *max ? counted(*max, "record") : grouped(*min) + " to " + counted(*max, "record");
}

Banner banner(const Findings& found) {
  const data::Plan& plan = found.chosen.plan;
  const auto& options = plan.options();
  const auto& facts = found.facts;
  const auto max = *std::max_element(facts.records_per_rank.begin(), facts.records_per_rank.end());
  Banner banner;
  banner.headline = fmt::format(
      "lockstep {}: the plan of {}{}", version, counted(options.ranks, found.worker()),
      found.ranks_a_replica > 1 ? fmt::format(" of {}", counted(found.ranks_a_replica, "rank"))
                                : "");
  const auto add = [&](const char* label, std::string text) {
    banner.rows.emplace_back(label, std::move(text));
  };
  const auto files = found.records.files.size();
  add("data",
      fmt::format("{}: {} {}", found.records.from, counted(options.records, "record"),
                  files == 0 ? "that do not come from files" : "in " + counted(files, "file")));
  add("policy", fmt::format("{}: {}; shuffle {}", data::name_of(options.policy),
                            found.chosen.reason, found.arguments.config.shuffle));
  add("batch", fmt::format("{} global, rebatch {}; at most {} a {}, in leaves of {}",
                           grouped(options.batch_size), data::name_of(options.rebatch),
                           grouped(plan.largest_piece()), found.worker(), plan.leaf(0)));
  add("steps", fmt::format("{} an epoch, of {} examples", grouped(plan.steps()), sizes_text(plan)));
  add(found.ranks_a_replica > 1 ? "each replica" : "each rank",
      share_text(facts.records_per_rank) +
          (found.records.record_bytes
               ? fmt::format(", at most {}",
                             bytes_text(static_cast<double>(max) *
                                        static_cast<double>(*found.records.record_bytes)))
               : ""));
  add("idle", fmt::format("{}; {:.1f} % of the places for examples stay empty",
                          counted(facts.empty_batches, "empty piece"), 100 * facts.idle_share));
  add("proof", found.proof.text);
  add("digest", to_hex(plan.digest()));
  return banner;
}

void show_plan(const PlanArguments& arguments) {
  const Records records = records_of(arguments);
  const train::MeshSizes mesh = mesh_of(arguments.config, arguments.config.ranks);
  const TrainingPlan chosen =
      training_plan(arguments.config, records.count, records.files, mesh.batch);
  if (!chosen.warning.empty()) launching::print_warning(chosen.warning);
  const data::PlanFacts facts = data::facts_of(chosen.plan);
  const data::PlanProof proof = data::prove(chosen.plan, facts, arguments.epoch);
  const Findings found{arguments, records, chosen, facts, proof, mesh.model};
  if (arguments.json) {
    fmt::print("{}\n", to_json(found).dump());
  } else {
    banner(found).print();
    const auto columns = static_cast<std::size_t>(terminal_columns().value_or(usual_columns));
    fmt::print("\n{}", plan_picture(chosen.plan, found.worker(), arguments.epoch, columns));
  }
}

}  // namespace

int plan_command(const std::vector<std::string>& words) {
  return run_on_rank_0(plan_syntax(), words, [](const Arguments& given) {
    constexpr int success = static_cast<int>(ExitCode::success);
    if (given.given("predict")) {
      print_scaling(given);
      return success;
    }
    PlanArguments arguments = plan_arguments(given);
    const auto launch = comm::detect_launcher();
    const bool started = launch && launch->launcher != "sbatch" && launch->ranks > 0;
    if (started && !arguments.ranks_given) {
      arguments.config.ranks = static_cast<std::uint64_t>(launch->ranks);
    }
    if (arguments.network) {
      print_network(arguments.config, arguments.json);
    } else {
      show_plan(arguments);
    }
    return success;
  });
}

}  // namespace lockstep::apps
