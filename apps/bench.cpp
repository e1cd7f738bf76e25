// `lockstep bench`: measures one part by itself; and `bench data`, reading.
#include "apps/bench.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/library_options.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::apps {
namespace {

constexpr std::uint64_t max_seconds = 86'400;

/// The amount that one rank read, and its duration.
struct Reading {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  double open_seconds = 0;
  double seconds = 0;
};

/// One rank's source and plan, and the time to open them.
struct Bench {
  std::unique_ptr<data::Source> source;
  std::optional<TrainingPlan> planned;
  double open_seconds = 0;
};

Bench make_bench(const RunConfig& config, comm::Communicator& comm) {
  Bench bench;
  comm::together(comm, [&](comm::Exchange& exchange) {
    train::Lap lap;
    const data::OpeningRanks ranks = opening_ranks(exchange);
    data::DataSetOptions options = data_options(config);
    options.ranks = &ranks;
    options.threads = comm.own_cores();
    bench.source = data::open_data_part(config.data, data::Part::train, options);
    require_used(config, *bench.source);
    bench.open_seconds = lap.take();
  });
  comm::require_equal(comm, "the data of ranks", {{"training set", bench.source->identity()}},
                      "give all hosts the same files");
  comm::together(comm, [&] {
    bench.planned = training_plan(config, bench.source->records(), bench.source->file_records(),
                                  static_cast<std::uint64_t>(comm.size()));
  });
  if (!bench.planned->warning.empty() && comm.rank() == 0) {
    launching::print_warning(bench.planned->warning);
  }
  return bench;
}

/// Reads one epoch, then more until `seconds` have passed. Ranks start together.
Reading read(Bench& bench, std::uint64_t seconds, comm::Communicator& comm) {
  const data::Plan& plan = bench.planned->plan;
  Reading reading{.open_seconds = bench.open_seconds};
  comm.barrier();
  comm::together(comm, [&] {
    data::BatchReader reader(*bench.source, plan, comm.rank());
    std::vector<float> x(plan.largest_piece() * reader.features());
    train::Lap lap;
    for (std::uint64_t epoch = 0; epoch == 0 || reading.seconds < static_cast<double>(seconds);
         ++epoch) {
      for (std::uint64_t step = 0; step < plan.steps(); ++step) {
        const std::size_t rows = reader.piece(step).size();
        reader.read(epoch, step, std::span(x).first(rows * reader.features()));
        reading.records += rows;
      }
      reading.seconds += lap.take();
    }
    reading.bytes = bench.source->bytes_read();
  });
  return reading;
}

double per_second(std::uint64_t amount, double seconds) {
  return seconds > 0 ? static_cast<double>(amount) / seconds : 0;
}

/// Sums over all ranks, with the slowest rank's times.
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

void print_readings(const std::vector<Reading>& readings) {
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

}  // namespace

Syntax bench_data_syntax() {
  Syntax syntax = run_file_syntax(
      "lockstep bench data",
      "Reads the training set as `lockstep train` would, and prints how fast that was.");
  syntax.settings = {"data",       "format",         "train-limit", "classes", "divide-by",
                     "batch-size", "drop-remainder", "seed",        "shuffle", "shard-policy",
                     "rebatch",    "leaf",           "backend",     "ranks",   "test-split",
                     "validation", "precision"};
  syntax.take_table_settings();
  syntax.flags = {{"seconds", "N", "read further epochs until N seconds are over [one epoch]"},
                  {"json", "", "print one line of JSON instead"}};
  return syntax;
}

void bench_data(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  std::uint64_t seconds = 0;
  comm::together(comm, [&] { seconds = arguments.number("seconds", 1, max_seconds).value_or(0); });
  Bench bench = make_bench(config, comm);
  const auto readings = comm::gather_each(comm, read(bench, seconds, comm));
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
  print_readings(readings);
}

namespace {

/// A part that can be measured.
struct Part {
  const char* name;
  const char* does;
  Syntax (*syntax)();
  void (*run)(const Arguments&, const RunConfig&, comm::Communicator&);
};

constexpr std::array parts = {
    Part{"data", "reading the training set, without training", bench_data_syntax, bench_data},
    Part{"collectives", "communication between ranks, beside MPI's own", bench_collectives_syntax,
         bench_collectives},
    Part{"step", "the phases of a training step, beside what these cores can do", bench_step_syntax,
         bench_step}};

void print_parts() {
  fmt::print("Measures one part of Lockstep by itself.\n\nusage: lockstep bench PART [flags]\n\n");
  for (const Part& part : parts) fmt::print("  {:<12} {}\n", part.name, part.does);
  fmt::print("\n`lockstep bench PART --help` lists its flags.\n");
}

}  // namespace

Syntax bench_syntax() {
  Syntax syntax = bench_step_syntax();
  syntax.command = "lockstep bench";
  syntax.usage = "data|collectives|step";
  for (const Part& part : parts) {
    const Syntax own = part.syntax();
    syntax.settings.insert(syntax.settings.end(), own.settings.begin(), own.settings.end());
    syntax.flags.insert(syntax.flags.end(), own.flags.begin(), own.flags.end());
  }
  return syntax;
}

int bench_command(const std::vector<std::string>& words) {
  const std::string name = words.empty() ? "" : words[0];
  std::vector<std::string> names;
  for (const Part& part : parts) {
    if (name == part.name) {
      return run_on_ranks(part.syntax(), {words.begin() + 1, words.end()}, part.run);
    }
    names.emplace_back(part.name);
  }
  if (!is_rank_0()) return static_cast<int>(ExitCode::success);  // rank 0 prints
  if (name == "--help" || name == "-h") {
    print_parts();
    return static_cast<int>(ExitCode::success);
  }
  throw ConfigError(name.empty() ? "nothing to measure" : "'" + name + "' cannot be measured",
                    "`lockstep bench PART` measures one of " + listed(names));
}

}  // namespace lockstep::apps
