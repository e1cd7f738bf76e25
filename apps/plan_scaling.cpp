#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/console.hpp"
#include "apps/plan.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/scaling.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

using train::Layout;
using train::PredictedStep;

/// The arguments of --predict.
struct ScalingArguments {
  std::string file;                ///< of `bench step --json`
  std::uint64_t max_ranks = 4096;  ///< that are predicted
  std::uint64_t ranks_a_host = 0;
  double latency = 0;                  ///< seconds between hosts
  double bandwidth = 0;                ///< bytes per second between hosts
  std::optional<std::uint64_t> batch;  ///< nullopt: as measured
  bool json = false;
};

/// "5,12" -> {5, 12}, both greater than 0.
std::pair<double, double> numbers_in(const std::string& flag, const std::string& text) {
  const auto words = split_list(text);
  std::vector<double> numbers;
  for (const std::string& word : words) {
    const auto number = number_in<double>(word);
    if (!number || !(*number > 0) || *number > 1e9) break;
    numbers.push_back(*number);
  }
  if (words.size() == 2 && numbers.size() == 2) return {numbers[0], numbers[1]};
  throw ConfigError("--" + flag + ": " + in_quotes(text) + " is not LATENCY,BANDWIDTH",
                    "give microseconds and GB/s, such as 5,12");
}

/// One line: the same batch on more ranks, and as many examples a rank on more ranks.
struct ScalingRow {
  Layout fixed;
  Layout growing;
  PredictedStep of_fixed;
  PredictedStep of_growing;
};

double rate_of(const Layout& layout, const PredictedStep& step) {
  return layout.batch / step.total();
}

std::vector<ScalingRow> scaling_rows(const ScalingArguments& arguments,
                                     const train::MeasuredStep& measured) {
  const train::Link between = {arguments.latency, arguments.bandwidth};
  const auto on_a_host = static_cast<double>(arguments.ranks_a_host);
  const double batch = arguments.batch ? static_cast<double>(*arguments.batch) : measured.batch;
  std::vector<ScalingRow> rows;
  const auto most = static_cast<double>(arguments.max_ranks);
  for (double ranks = measured.ranks; ranks <= most; ranks = std::min(2 * ranks, most)) {
    ScalingRow row;
    row.fixed = {ranks, on_a_host, batch};
    row.growing = {ranks, on_a_host, batch * ranks / measured.ranks};
    row.of_fixed = train::predicted_step(measured, row.fixed, between);
    row.of_growing = train::predicted_step(measured, row.growing, between);
    rows.push_back(row);
    if (ranks == most) break;
  }
  if (!rows.empty()) return rows;
  throw ConfigError(fmt::format("--ranks: the step was measured on more, {:.0f}", measured.ranks),
                    "give a greater number");
}

/// The least number of ranks from which on communication takes more than half of the step: the
/// share falls where the exchange changes from activations to sums.
std::optional<double> dominated_from(const std::vector<ScalingRow>& rows,
                                     PredictedStep ScalingRow::*step) {
  const auto last_below = std::find_if_not(
      rows.rbegin(), rows.rend(), [&](const ScalingRow& row) { return (row.*step).share() > 0.5; });
  const auto found = last_below.base();
  if (found == rows.end()) return std::nullopt;
  return found->fixed.ranks;
}

void add_cells(std::vector<std::string>& cells, const Layout& layout, const PredictedStep& step,
               double rate_of_a_rank) {
  const double rate = rate_of(layout, step);
  cells.insert(cells.end(), {fmt::format("{:.3f} ms", 1e3 * step.total()),
                             fmt::format("{:.0f} %", 100 * step.share()), count_text(rate),
                             fmt::format("{:.0f} %", 100 * rate / layout.ranks / rate_of_a_rank)});
}

std::string dominance_text(const std::string& what, std::optional<double> ranks, double max) {
  return ranks ? fmt::format("{}: communication takes more than half of the step from {} ranks on",
                             what, count_text(*ranks))
               : fmt::format("{}: communication takes no more than half of the step on {}", what,
                             counted(static_cast<std::uint64_t>(max), "rank"));
}

nlohmann::ordered_json json_of(const Layout& layout, const PredictedStep& step) {
  return {{"batch_size", layout.batch},
          {"compute_seconds", step.compute},
          {"communication_seconds", step.communication},
          {"exchange", step.by_activations ? "activations" : "sums"},
          {"examples_per_second", rate_of(layout, step)}};
}

void print_json(const std::vector<ScalingRow>& rows, const train::MeasuredStep& measured) {
  const auto from = [&](PredictedStep ScalingRow::*step) {
    const auto ranks = dominated_from(rows, step);
    return ranks ? nlohmann::ordered_json(*ranks) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json json = {{"backend", measured.backend},
                                 {"communication_dominates_from",
                                  {{"same_batch", from(&ScalingRow::of_fixed)},
                                   {"same_examples_a_rank", from(&ScalingRow::of_growing)}}}};
  for (const ScalingRow& row : rows) {
    json["ranks"].push_back({{"ranks", row.fixed.ranks},
                             {"same_batch", json_of(row.fixed, row.of_fixed)},
                             {"same_examples_a_rank", json_of(row.growing, row.of_growing)}});
  }
  fmt::print("{}\n", json.dump());
}

}  // namespace

const std::vector<Flag>& scaling_flags() {
  static const std::vector<Flag> flags = {
      {"predict", "FILE",
       "predict the step of --ranks ranks [4096] from FILE, the output of `bench step --json`"},
      {"ranks-a-host", "N", "with --predict: ranks on each host", "8"},
      {"between-hosts", "US,GB/S", "with --predict: latency and bandwidth of a host", "5,12"}};
  return flags;
}

namespace {

/// Throws ConfigError for settings and flags that have no effect with --predict.
ScalingArguments scaling_arguments(const Arguments& given) {
  const std::set<std::string> used = {"predict",      "ranks",         "batch-size",
                                      "ranks-a-host", "between-hosts", "json"};
  for (const auto* pairs : {&given.settings, &given.flags}) {
    for (const auto& [name, value] : *pairs) {
      if (used.contains(name)) continue;
      throw ConfigError("--" + name + " with --predict, which uses only the measured step",
                        "leave it out");
    }
  }
  if (!given.operand().empty()) {
    throw ConfigError("a run file with --predict, which uses only the measured step",
                      "leave it out");
  }
  ScalingArguments arguments;
  arguments.file = given.value("predict");
  arguments.max_ranks = given.number("ranks", 1, train::max_ranks).value_or(arguments.max_ranks);
  arguments.batch = given.number("batch-size", 1, train::max_batch);
  arguments.ranks_a_host = *given.number("ranks-a-host", 1, train::max_ranks);
  const auto [latency, bandwidth] = numbers_in("between-hosts", given.value("between-hosts"));
  arguments.latency = 1e-6 * latency;
  arguments.bandwidth = 1e9 * bandwidth;
  arguments.json = given.given("json");
  return arguments;
}

}  // namespace

void print_scaling(const Arguments& given) {
  const ScalingArguments arguments = scaling_arguments(given);
  const train::MeasuredStep measured = train::read_measured_step(arguments.file);
  const auto rows = scaling_rows(arguments, measured);
  if (arguments.json) return print_json(rows, measured);
  const Layout& first = rows.front().fixed;
  const std::string fixed = fmt::format("batch {}", count_text(first.batch));
  const double each = first.batch / first.ranks;
  const bool is_whole = each == std::floor(each);
  const std::string growing =
      (is_whole ? count_text(each) : fmt::format("{:.4g}", each)) + " a rank";
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: the step of {} on more ranks", version, arguments.file);
  banner.rows = {
      {"measured",
       fmt::format("{} parameters on {} at batch {}, backend {}", count_text(measured.weights),
                   counted(static_cast<std::uint64_t>(measured.ranks), "rank"),
                   count_text(measured.batch), printable(measured.backend))},
      {"hosts", fmt::format("{} each; {:.3g} us and {:.3g} GB/s between them",
                            counted(arguments.ranks_a_host, "rank"), 1e6 * arguments.latency,
                            1e-9 * arguments.bandwidth)}};
  banner.print();
  fmt::print("\n");
  std::vector<std::vector<std::string>> lines = {{"ranks", "hosts", fixed, "communication",
                                                  "examples/s", "efficiency", growing,
                                                  "communication", "examples/s", "efficiency"}};
  const double rate_of_a_rank = rate_of(first, rows.front().of_fixed) / first.ranks;
  for (const ScalingRow& row : rows) {
    std::vector<std::string>& cells = lines.emplace_back();
    cells = {count_text(row.fixed.ranks),
             count_text(std::ceil(row.fixed.ranks / row.fixed.ranks_a_host))};
    add_cells(cells, row.fixed, row.of_fixed, rate_of_a_rank);
    add_cells(cells, row.growing, row.of_growing, rate_of_a_rank);
  }
  print_table(lines);
  const double max = rows.back().fixed.ranks;
  fmt::print("\n{}\n{}\n", dominance_text(fixed, dominated_from(rows, &ScalingRow::of_fixed), max),
             dominance_text(growing, dominated_from(rows, &ScalingRow::of_growing), max));
}

}  // namespace lockstep::apps
