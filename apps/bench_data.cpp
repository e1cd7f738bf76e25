#include "apps/bench_data.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli.hpp"
#include "apps/training_plan.hpp"
#include "collectives/agreement.hpp"
#include "data/batches.hpp"
#include "data/source.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/launch/launch.hpp"

namespace lockstep::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t most_seconds = 86'400;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What one rank read, and how long it took.
struct Reading {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  double open_seconds = 0;
  double seconds = 0;
};

/// One rank's source and plan.
struct Bench {
  std::unique_ptr<data::Source> source;
  std::optional<TrainingPlan> planned;
  double open_seconds = 0;
};

Bench make_bench(const train::RunConfig& config, comm::Communicator& comm) {
  Bench bench;
  comm::together(comm, [&] {
    const auto begin = Clock::now();
    bench.source = data::open_data_part(config.data, data::Part::train,
                                        {.train_limit = config.train_limit,
                                         .divide_by = config.divide_by,
                                         .classes = static_cast<int>(config.classes),
                                         .format = data::format_named(config.format)});
    bench.open_seconds = seconds_since(begin);
  });
  comm::require_equal(comm, "the data of ranks", {{"training set", bench.source->identity()}},
                      "give all hosts the same files");
  comm::together(comm, [&] {
    bench.planned = training_plan(config, bench.source->records(), bench.source->file_records(),
                                  static_cast<std::uint64_t>(comm.size()));
  });
  if (!bench.planned->warning.empty() && comm.rank() == 0) {
    launch::print_warning(bench.planned->warning);
  }
  return bench;
}

/// Reads one epoch, and further ones until `seconds` are over. Ranks begin together.
Reading read(Bench& bench, std::uint64_t seconds, comm::Communicator& comm) {
  const data::Plan& plan = bench.planned->plan;
  Reading reading{.open_seconds = bench.open_seconds};
  comm.all_agree(true);
  comm::together(comm, [&] {
    data::BatchReader reader(*bench.source, plan, comm.rank());
    std::vector<float> x(plan.largest_piece() * reader.features());
    const auto begin = Clock::now();
    for (std::uint64_t epoch = 0; epoch == 0 || reading.seconds < static_cast<double>(seconds);
         ++epoch) {
      for (std::uint64_t step = 0; step < plan.steps(); ++step) {
        const std::size_t rows = reader.piece(step).size();
        reader.read(epoch, step, std::span(x).first(rows * reader.features()));
        reading.records += rows;
      }
      reading.seconds = seconds_since(begin);
    }
    reading.bytes = bench.source->bytes_read();
  });
  return reading;
}

/// Those of all ranks, in their order. Collective.
std::vector<Reading> gather(const Reading& mine, comm::Communicator& comm) {
  constexpr std::size_t figures = 4;
  std::vector<double> all(figures * static_cast<std::size_t>(comm.size()));
  const auto at = figures * static_cast<std::size_t>(comm.rank());
  all[at] = static_cast<double>(mine.records);
  all[at + 1] = static_cast<double>(mine.bytes);
  all[at + 2] = mine.open_seconds;
  all[at + 3] = mine.seconds;
  comm.all_gather(std::span(all));
  std::vector<Reading> readings;
  for (std::size_t i = 0; i < all.size(); i += figures) {
    readings.push_back({static_cast<std::uint64_t>(all[i]), static_cast<std::uint64_t>(all[i + 1]),
                        all[i + 2], all[i + 3]});
  }
  return readings;
}

double per_second(std::uint64_t amount, double seconds) {
  return seconds > 0 ? static_cast<double>(amount) / seconds : 0;
}

/// Over all ranks: their sums, and the times of the slowest.
Reading together(const std::vector<Reading>& readings) {
  Reading sum;
  for (const Reading& one : readings) {
    sum.records += one.records;
    sum.bytes += one.bytes;
    sum.open_seconds = std::max(sum.open_seconds, one.open_seconds);
    sum.seconds = std::max(sum.seconds, one.seconds);
  }
  return sum;
}

nlohmann::ordered_json to_json(const Reading& reading) {
  return {{"records", reading.records},
          {"bytes", reading.bytes},
          {"open_seconds", reading.open_seconds},
          {"seconds", reading.seconds},
          {"records_per_second", per_second(reading.records, reading.seconds)},
          {"bytes_per_second", per_second(reading.bytes, reading.seconds)}};
}

void print_table(const std::vector<Reading>& readings) {
  fmt::print("\n{:<8} {:>12} {:>12} {:>10} {:>10} {:>14} {:>12}\n", "", "records", "bytes", "open",
             "read", "records/s", "bytes/s");
  const auto row = [](const std::string& name, const Reading& one) {
    fmt::print("{:<8} {:>12} {:>12} {:>8.3f} s {:>8.3f} s {:>14} {:>10}/s\n", name,
               grouped(one.records), bytes_text(static_cast<double>(one.bytes)), one.open_seconds,
               one.seconds,
               grouped(static_cast<std::uint64_t>(per_second(one.records, one.seconds))),
               bytes_text(per_second(one.bytes, one.seconds)));
  };
  for (std::size_t i = 0; i < readings.size(); ++i) row(fmt::format("rank {}", i), readings[i]);
  if (readings.size() > 1) row("all", together(readings));
}

std::uint64_t seconds_of(const Arguments& arguments) {
  if (!arguments.given("seconds")) return 0;
  try {
    return parse_count(arguments.value("seconds", ""), 1, most_seconds);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string("--seconds: ") + error.what());
  }
}

void bench_on(const Arguments& arguments, const train::RunConfig& config,
              comm::Communicator& comm) {
  std::uint64_t seconds = 0;
  comm::together(comm, [&] { seconds = seconds_of(arguments); });
  Bench bench = make_bench(config, comm);
  const auto readings = gather(read(bench, seconds, comm), comm);
  if (comm.rank() != 0) return;
  if (arguments.given("json")) {
    auto json = to_json(together(readings));
    json["ranks"] = nlohmann::ordered_json::array();
    for (const Reading& one : readings) json["ranks"].push_back(to_json(one));
    fmt::print("{}\n", json.dump());
    return;
  }
  const auto& plan = bench.planned->plan;
  fmt::print("{}: {} of {} features, read in steps of {} with shuffle {}\n", config.data,
             counted(plan.options().records, "record"), grouped(bench.source->features()),
             grouped(plan.options().batch_size), config.shuffle);
  print_table(readings);
}

Syntax bench_data_syntax() {
  Syntax syntax;
  syntax.command = "lockstep bench data";
  syntax.does = "Reads the training set as `lockstep train` would, and says how fast that was.";
  syntax.usage = "[CONFIG.toml] [flags]   (flags override the file, the file the defaults)";
  syntax.operand = "run file";
  syntax.run_file = true;
  syntax.settings = {"data",       "format",         "train-limit", "classes", "divide-by",
                     "batch-size", "drop-remainder", "seed",        "shuffle", "shard-policy",
                     "rebatch",    "leaf",           "backend",     "ranks"};
  syntax.flags = {{"seconds", "N", "read further epochs until N seconds are over [one epoch]"},
                  {"json", "", "print one line of JSON instead"}};
  return syntax;
}

}  // namespace

int bench_data_command(const std::vector<std::string>& words) {
  return run_on_ranks(bench_data_syntax(), words, bench_on);
}

}  // namespace lockstep::apps
