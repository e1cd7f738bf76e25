#include "apps/plan.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/console.hpp"
#include "apps/plan_arguments.hpp"
#include "apps/plan_picture.hpp"
#include "apps/training_plan.hpp"
#include "collectives/launcher.hpp"
#include "data/plan.hpp"
#include "data/source.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/launch/launch.hpp"
#include "lib/train/tensor_parallel.hpp"
#include "lib/version.hpp"

namespace lockstep::apps {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t most_ids = 1'000'000;
constexpr std::size_t usual_columns = 80;

/// The records that are planned, wherever they are.
struct Records {
  std::uint64_t count = 0;
  std::vector<std::uint64_t> files;           ///< of each file; empty: not from files
  std::string from;                           ///< "synthetic", "--range"
  std::optional<std::uint64_t> record_bytes;  ///< of one record
};

/// The first `limit` records of imagined files.
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

Records opened(const train::RunConfig& config) {
  const auto train = data::open_data_part(config.data, data::Part::train,
                                          {.train_limit = config.train_limit,
                                           .divide_by = config.divide_by,
                                           .classes = static_cast<int>(config.classes),
                                           .format = data::format_named(config.format)});
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

/// One plan, with all that is said about it.
struct Findings {
  const PlanArguments& arguments;
  const Records& records;
  const TrainingPlan& chosen;
  const data::PlanFacts& facts;
  const data::PlanProof& proof;
};

ordered_json ids_json(const data::Plan& plan, std::uint64_t epoch) {
  const std::uint64_t ranks = plan.options().ranks;
  if (plan.examples_per_epoch() > most_ids || plan.steps() > most_ids / ranks) {
    throw ConfigError("--ids: " + grouped(plan.examples_per_epoch()) + " ids in " +
                          counted(plan.steps(), "step") + " of " + counted(ranks, "rank") +
                          "; it lists up to " + grouped(most_ids),
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
  std::vector<double> bytes;  // a product may be more than an integer holds
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
      {"multiplicity", {{"min", facts.multiplicity.least}, {"max", facts.multiplicity.most}}},
      {"proof", {{"enumerated", found.proof.enumerated}, {"text", found.proof.text}}}};
  add_bytes(json, found);
  if (found.arguments.ids) json["ids"] = ids_json(plan, found.arguments.epoch);
  return json;
}

/// "128, 128, 128, ..., 8": the first steps' examples and the last one's.
std::string sizes_text(const data::Plan& plan) {
  constexpr std::uint64_t listed = 6;
  std::string text;
  const std::uint64_t last = plan.steps() - 1;
  for (std::uint64_t step = 0; step < std::min(listed, last); ++step) {
    text += grouped(plan.examples(step)) + " | ";
  }
  return text + (last > listed ? "... | " : "") + grouped(plan.examples(last));
}

/// "6 records" where all ranks have as many, else "5 to 7 records".
std::string share_text(const std::vector<std::uint64_t>& counts) {
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  return *least == *most ? counted(*most, "record")
                         : grouped(*least) + " to " + counted(*most, "record");
}

Banner banner(const Findings& found) {
  const data::Plan& plan = found.chosen.plan;
  const auto& options = plan.options();
  const auto& facts = found.facts;
  const auto most = *std::max_element(facts.records_per_rank.begin(), facts.records_per_rank.end());
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: the plan of {}", version, counted(options.ranks, "rank"));
  const auto add = [&](const char* label, std::string text) {
    banner.rows.emplace_back(label, std::move(text));
  };
  const auto files = found.records.files.size();
  add("data",
      fmt::format("{}: {} {}", found.records.from, counted(options.records, "record"),
                  files == 0 ? "that do not come from files" : "in " + counted(files, "file")));
  add("policy", fmt::format("{}: {}; shuffle {}", data::name_of(options.policy),
                            found.chosen.reason, found.arguments.config.shuffle));
  add("batch", fmt::format("{} global, rebatch {}; at most {} a rank, in leaves of {}",
                           grouped(options.batch_size), data::name_of(options.rebatch),
                           grouped(plan.largest_piece()), plan.leaf(0)));
  add("steps", fmt::format("{} an epoch, of {} examples", grouped(plan.steps()), sizes_text(plan)));
  add("each rank",
      share_text(facts.records_per_rank) +
          (found.records.record_bytes
               ? fmt::format(", at most {}",
                             bytes_text(static_cast<double>(most) *
                                        static_cast<double>(*found.records.record_bytes)))
               : ""));
  add("idle", fmt::format("{}; {:.1f} % of the places for examples stay empty",
                          counted(facts.empty_batches, "empty piece"), 100 * facts.idle_share));
  add("proof", found.proof.text);
  add("digest", to_hex(plan.digest()));
  return banner;
}

int show_plan(const PlanArguments& arguments) {
  const Records records = records_of(arguments);
  const TrainingPlan chosen =
      training_plan(arguments.config, records.count, records.files,
                    train::mesh_of(arguments.config, arguments.config.ranks).batch);
  if (!chosen.warning.empty()) launch::print_warning(chosen.warning);
  const data::PlanFacts facts = data::facts_of(chosen.plan);
  const data::PlanProof proof = data::prove(chosen.plan, facts, arguments.epoch);
  const Findings found{arguments, records, chosen, facts, proof};
  if (arguments.json) {
    fmt::print("{}\n", to_json(found).dump());
  } else {
    banner(found).print();
    const auto columns = terminal_columns();
    fmt::print("\n{}", plan_picture(chosen.plan, arguments.epoch,
                                    columns ? static_cast<std::size_t>(*columns) : usual_columns));
  }
  return static_cast<int>(ExitCode::success);
}

}  // namespace

int plan_command(const std::vector<std::string>& words) {
  const auto launch = comm::detect_launcher();
  if (launch && launch->rank != 0) return static_cast<int>(ExitCode::success);  // one speaks
  PlanArguments arguments = parse_plan_arguments(words);
  const bool started = launch && launch->launcher != "sbatch" && launch->ranks > 0;
  if (started && !arguments.ranks_given) {
    arguments.config.ranks = static_cast<std::uint64_t>(launch->ranks);
  }
  if (!arguments.help) return show_plan(arguments);
  fmt::print("{}", plan_help());
  return static_cast<int>(ExitCode::success);
}

}  // namespace lockstep::apps
