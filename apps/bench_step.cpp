// `lockstep bench step`: the phases of a training step, beside the arithmetic and the bandwidth
// that the same cores reach at the same time, and its share of the limit that these set.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "apps/bench.hpp"
#include "apps/console.hpp"
#include "apps/fault_injection.hpp"
#include "apps/library_options.hpp"
#include "apps/train_job.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/numerics/machine.hpp"
#include "lockstep/train/cost.hpp"
#include "lockstep/train/plot.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/step.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

/// The phases of a step, in order, with their work; "other" is what lies between them.
struct PhaseOfStep {
  const char* name;
  train::Work train::StepWork::*work;  ///< null: none
  double (*seconds)(const train::PhaseSeconds& step);
};

constexpr std::array phases = {
    PhaseOfStep{"data", &train::StepWork::data, [](auto& step) { return step.data; }},
    PhaseOfStep{"forward", &train::StepWork::forward, [](auto& step) { return step.forward; }},
    PhaseOfStep{"backward", &train::StepWork::backward,
                [](auto& step) { return step.compute - step.forward; }},
    PhaseOfStep{"exchange", &train::StepWork::exchange,
                [](auto& step) { return step.reduce - step.publish; }},
    PhaseOfStep{"update", &train::StepWork::update, [](auto& step) { return step.update; }},
    PhaseOfStep{"publish", &train::StepWork::publish, [](auto& step) { return step.publish; }},
    PhaseOfStep{"other", nullptr, [](auto& step) {
                  return step.total - step.data - step.compute - step.reduce - step.update;
                }}};

constexpr std::size_t cache_bytes = std::size_t{1} << 18;  // of a thread: fits in level 2

/// What one rank measured, or the means of all ranks. Medians of rounds.
struct StepFigures {
  std::array<double, phases.size()> seconds = {};
  double step = 0;             ///< seconds of the whole step
  double flops = 0;            ///< per second, of multiply-adds of all ranks together
  double bandwidth = 0;        ///< bytes per second, over as many bytes as each rank touches
  double cache_bandwidth = 0;  ///< over cache_bytes for each thread
};

/// Each figure of the result is `reduce` of that figure in `all`.
template <class Reduce>
StepFigures reduced(const std::vector<StepFigures>& all, Reduce reduce) {
  const auto of = [&](const auto& figure) {
    std::vector<double> values(all.size());
    std::transform(all.begin(), all.end(), values.begin(), figure);
    return reduce(values);
  };
  StepFigures found;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    found.seconds[p] = of([p](const StepFigures& one) { return one.seconds[p]; });
  }
  for (const auto figure : {&StepFigures::step, &StepFigures::flops, &StepFigures::bandwidth,
                            &StepFigures::cache_bandwidth}) {
    found.*figure = of(std::mem_fn(figure));
  }
  return found;
}

StepFigures median_of(const std::vector<StepFigures>& all) {
  return reduced(all, train::median<double>);
}

StepFigures mean_of(const std::vector<StepFigures>& all) {
  return reduced(all, [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  });
}

/// How much is measured.
struct Amount {
  std::uint64_t rounds = 0;
  std::uint64_t steps = 0;  ///< of a round
};

/// The work of all ranks per second: of a host's from its first rank's begin to its last one's end,
/// because ranks that share cores may work one after the other. Collective.
double rate_of_all(const TimedWork& mine, comm::Communicator& comm) {
  struct RankWork {
    int node;
    TimedWork work;
  };
  std::map<int, TimedWork> hosts;
  for (const auto& [node, work] : comm::gather_each(comm, RankWork{comm.place().node, mine})) {
    TimedWork& host = hosts.try_emplace(node, TimedWork{0, work.begin, 0}).first->second;
    host.amount += work.amount;
    host.begin = std::min(host.begin, work.begin);
    host.end = std::max(host.end, work.end);
  }
  double rate = 0;
  for (const auto& [node, work] : hosts) rate += work.rate();
  return rate;
}

/// One rank's part of the measurement. All functions are collective.
class StepBench {
 public:
  StepBench(const train::ReplicaOptions& options, TrainJob& job, const train::StepWork& work,
            FlightRecorder& recorder, comm::Communicator& comm)
      : job_(job),
        recorder_(recorder),
        comm_(comm),
        simd_(options.simd),
        precision_(options.precision),
        replica_probe_(static_cast<std::size_t>(work.resident)),
        cache_probe_(cache_bytes * static_cast<std::size_t>(job.threads)) {}

  /// `steps` of a round: 0: as many as take a fifth of a second.
  Amount warm_up(std::uint64_t rounds, std::uint64_t steps) {
    constexpr std::uint64_t timed = 5;
    constexpr double round_seconds = 0.2;
    constexpr std::uint64_t most_steps = 5000;
    double once = median_of(run_steps(0, train::warm_up_steps + timed)).step;
    comm_.all_reduce(std::span(&once, 1), comm::Op::max);
    if (steps == 0) {
      steps = std::clamp(static_cast<std::uint64_t>(round_seconds / once), timed, most_steps);
    }
    return {rounds, steps};
  }

  /// Runs the rounds; the medians of this rank.
  StepFigures run(const Amount& amount) {
    std::vector<StepFigures> rounds;
    for (std::uint64_t round = 0; round < amount.rounds; ++round) {
      StepFigures& now = rounds.emplace_back(median_of(run_steps(round, amount.steps)));
      constexpr double probe_seconds = 0.01;
      comm_.barrier();
      now.flops = rate_of_all(measured_flops(simd_, precision_, probe_seconds), comm_);
      comm_.barrier();
      now.bandwidth = rate_of_all(replica_probe_.measured(simd_, probe_seconds), comm_);
      comm_.barrier();
      now.cache_bandwidth = rate_of_all(cache_probe_.measured(simd_, probe_seconds), comm_);
    }
    return median_of(rounds);
  }

  double probed_bytes() const noexcept { return static_cast<double>(replica_probe_.bytes()); }

 private:
  /// Trains `count` steps from the beginning of epoch `epoch`. The times of those over a full
  /// batch, of which the first step is one.
  std::vector<StepFigures> run_steps(std::uint64_t epoch, std::uint64_t count) {
    train::Replica& replica = *job_.replica;
    const data::Plan& plan = job_.train->plan();
    data::Prefetch batches = replica.prefetch(*job_.train, epoch * plan.steps() + count);
    comm::together(comm_, [&] { batches.start(); });
    comm_.barrier();
    std::vector<StepFigures> steps;
    train::Lap whole;
    for (std::uint64_t i = 0; i < count; ++i) {
      recorder_.enter(Phase::step, i);
      train::PhaseSeconds seconds;
      train::Lap phase;
      const data::Batch batch = replica.load(batches, epoch + i / plan.steps(), i % plan.steps());
      seconds.data = phase.take();
      replica.train(batch, seconds);
      seconds.total = whole.take();
      if (batch.global_examples < plan.examples(0)) continue;
      StepFigures& step = steps.emplace_back();
      step.step = seconds.total;
      for (std::size_t p = 0; p < phases.size(); ++p) step.seconds[p] = phases[p].seconds(seconds);
    }
    replica.drop_staged();
    return steps;
  }

  TrainJob& job_;
  FlightRecorder& recorder_;
  comm::Communicator& comm_;
  Simd simd_;
  Precision precision_;
  BandwidthProbe replica_probe_;
  BandwidthProbe cache_probe_;
};

/// All that is reported.
struct StepFindings {
  const TrainJob& job;
  const RunConfig& config;
  std::string backend;
  int hosts;
  const char* simd;
  Amount amount;
  train::StepWork work;
  double probed_bytes;
  StepFigures all;
  std::vector<StepFigures> ranks;

  double arithmetic_seconds() const { return work.flops() / all.flops; }
  double bytes_seconds() const { return work.bytes() / all.bandwidth; }
  double limit_share() const { return (arithmetic_seconds() + bytes_seconds()) / all.step; }
  double examples() const { return static_cast<double>(job.plan->examples(0)); }
};

train::Work work_in(const PhaseOfStep& phase, const train::StepWork& work) {
  return phase.work == nullptr ? train::Work() : work.*phase.work;
}

nlohmann::ordered_json json_of(const StepFindings& found) {
  nlohmann::ordered_json json = {
      {"version", version},
      {"ranks", found.ranks.size()},
      {"hosts", found.hosts},
      {"backend", found.backend},
      {"model_ranks", found.job.replica->groups().model_ranks()},
      {"threads", found.job.threads},
      {"network", found.job.replica->shape().text()},
      {"parameters", found.job.replica->shape().parameters()},
      {"batch_size", found.job.plan->examples(0)},
      {"leaf", found.job.plan->leaf(0)},
      {"exchanged_values", found.job.replica->shape().exchanged_values()},
      {"reduction", found.job.replica->reduction()},
      {"products", found.job.replica->products()},
      {"precision", found.config.precision},
      {"zeros", found.config.zeros},
      {"micro_batch", found.config.micro_batch.value_or(0)},
      {"simd", found.simd},
      {"rounds", found.amount.rounds},
      {"round_steps", found.amount.steps},
      {"step_seconds", found.all.step},
      {"examples_per_second", found.examples() / found.all.step},
      {"peak",
       {{"flops_per_second", found.all.flops},
        {"bytes_per_second", found.all.bandwidth},
        {"bytes", found.probed_bytes},
        {"cache_bytes_per_second", found.all.cache_bandwidth},
        {"cache_bytes", cache_bytes}}},
      {"caches", {cache_sizes().first, cache_sizes().second}},
      {"limit",
       {{"arithmetic_seconds", found.arithmetic_seconds()},
        {"bytes_seconds", found.bytes_seconds()},
        {"share", found.limit_share()}}}};
  for (std::size_t p = 0; p < phases.size(); ++p) {
    const double seconds = found.all.seconds[p];
    const train::Work work = work_in(phases[p], found.work);
    const auto rate = [&](double amount) { return seconds > 0 ? amount / seconds : 0; };
    json["phases"][phases[p].name] = {
        {"seconds", seconds},
        {"flops", work.flops},
        {"flops_per_second", rate(work.flops)},
        {"share_of_peak", rate(work.flops) / found.all.flops},
        {"bytes", work.bytes},
        {"bytes_per_second", rate(work.bytes)},
        {"share_of_bandwidth", rate(work.bytes) / found.all.bandwidth}};
  }
  json["seconds_of_ranks"] = nlohmann::ordered_json::array();
  for (const StepFigures& one : found.ranks) {
    nlohmann::ordered_json& rank = json["seconds_of_ranks"].emplace_back();
    for (std::size_t p = 0; p < phases.size(); ++p) rank[phases[p].name] = one.seconds[p];
    rank["step"] = one.step;
  }
  return json;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", 1e3 * seconds); }
std::string giga(double rate) { return fmt::format("{:.1f}", 1e-9 * rate); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::vector<std::string> row_of(const StepFindings& found, const std::string& name, double seconds,
                                const train::Work& work) {
  std::vector<std::string> cells = {name, milliseconds(seconds), percent(seconds / found.all.step)};
  if (work.flops > 0 && seconds > 0) {
    const double rate = work.flops / seconds;
    cells.insert(cells.end(), {giga(rate), percent(rate / found.all.flops)});
  } else {
    cells.insert(cells.end(), {"", ""});
  }
  if (work.bytes > 0 && seconds > 0) {
    const double rate = work.bytes / seconds;
    cells.insert(cells.end(),
                 {bytes_text(work.bytes), giga(rate), percent(rate / found.all.bandwidth)});
  } else {
    cells.insert(cells.end(), {"", "", ""});
  }
  return cells;
}

void print(const StepFindings& found, const std::string& where) {
  const StepFigures& all = found.all;
  const CacheSizes caches = cache_sizes();
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: a step on {}, backend {}", version, where, found.backend);
  const train::Replica& replica = *found.job.replica;
  const auto parameters = grouped(replica.shape().parameters());
  banner.rows = {
      {"network", replica.shape().text() + ", " + parameters + " parameters"},
      {"batch", grouped(found.job.plan->examples(0)) + " global" +
                    (found.config.micro_batch
                         ? ", at most " + grouped(*found.config.micro_batch) + " of a rank at once"
                         : "")},
      {"reduction", fmt::format("{}{}; {} and {} a rank", reduction_text(found.job, found.config),
                                found.config.zeros == "dense" ? ", zeros computed" : "", found.simd,
                                counted(static_cast<std::uint64_t>(found.job.threads), "thread"))},
      {"measured",
       fmt::format("{} of {}: medians, means of the ranks", counted(found.amount.rounds, "round"),
                   counted(found.amount.steps, "step"))},
      {"peak", fmt::format("{} GFLOP/s of multiply-adds, on all ranks at once between the rounds",
                           giga(all.flops))},
      {"bandwidth", fmt::format("{} GB/s over {} a rank; {} GB/s over {} a thread",
                                giga(all.bandwidth), bytes_text(found.probed_bytes),
                                giga(all.cache_bandwidth), bytes_text(cache_bytes))},
      {"caches", fmt::format("{} and {} a core, for which the strict products are cut",
                             bytes_text(static_cast<double>(caches.first)),
                             bytes_text(static_cast<double>(caches.second)))}};
  if (replica.groups().model_ranks() > 1) {
    banner.rows.insert(banner.rows.begin() + 1, {"mesh", mesh_text(replica.groups())});
  }
  banner.print();
  fmt::print("\n");
  std::vector<std::vector<std::string>> lines = {
      {"phase", "time", "of step", "GFLOP/s", "of peak", "bytes", "GB/s", "of bandwidth"}};
  for (std::size_t p = 0; p < phases.size(); ++p) {
    lines.push_back(row_of(found, phases[p].name, all.seconds[p], work_in(phases[p], found.work)));
  }
  lines.push_back(row_of(found, "step", all.step, {.flops = found.work.flops()}));
  print_table(lines);
  fmt::print(
      "\nlimit: {} of dense arithmetic at the peak, and {} for the bytes of the phases without "
      "it:\n"
      "{} of the step, at {} examples/s\n",
      milliseconds(found.arithmetic_seconds()), milliseconds(found.bytes_seconds()),
      percent(found.limit_share()),
      grouped(static_cast<std::uint64_t>(found.examples() / all.step)));
}

/// The network for a title of one line: its layers, or how many there are.
std::string short_text(const nn::NetworkShape& shape) {
  constexpr std::size_t most_bytes = 80;
  const std::string text = shape.text();
  if (text.size() <= most_bytes) return text;
  return counted(shape.layers.size(), "layer") + ", " + counted(shape.parameters(), "parameter");
}

/// The roofline of Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785: arithmetic per
/// second against arithmetic per byte.
train::Panel roofline(const StepFindings& found) {
  train::Panel panel = {
      .title = fmt::format("Step of {} at batch {} on {}", short_text(found.job.replica->shape()),
                           found.job.plan->examples(0), counted(found.ranks.size(), "rank")),
      .x_name = "floating-point operations per byte that has to move",
      .y_name = "GFLOP/s",
      .is_logarithmic = true};
  const double peak = 1e-9 * found.all.flops;
  double least = 1;
  double greatest = 1;
  std::vector<train::Curve> points;
  const auto point = [&](const std::string& name, const train::Work& work, double seconds) {
    if (work.flops == 0 || work.bytes == 0 || seconds <= 0) return;
    const double intensity = work.flops / work.bytes;
    least = std::min(least, intensity);
    greatest = std::max(greatest, intensity);
    const double rate = 1e-9 * work.flops / seconds;
    points.push_back({.name = fmt::format("{}: {:.0f} GFLOP/s, {:.0f} % of the peak", name, rate,
                                          100 * rate / peak),
                      .color = points.size() + 2,
                      .is_line = false,
                      .points = {{intensity, rate}}});
  };
  train::Work whole;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    const train::Work work = work_in(phases[p], found.work);
    whole.flops += work.flops;
    whole.bytes += work.bytes;
    point(phases[p].name, work, found.all.seconds[p]);
  }
  point("whole step", whole, found.all.step);
  const auto roof = [&](const std::string& name, double bandwidth, std::size_t color) {
    const double ridge = found.all.flops / bandwidth;
    panel.curves.push_back(
        {.name = name,
         .color = color,
         .points = {{least, 1e-9 * bandwidth * least}, {ridge, peak}, {greatest, peak}}});
  };
  least = std::min(least, found.all.flops / found.all.cache_bandwidth / 4);
  greatest = std::max(greatest, 4 * found.all.flops / found.all.bandwidth);
  roof(fmt::format("{} GB/s over {} a thread", giga(found.all.cache_bandwidth),
                   bytes_text(cache_bytes)),
       found.all.cache_bandwidth, 0);
  roof(fmt::format("{} GB/s over {} a rank", giga(found.all.bandwidth),
                   bytes_text(found.probed_bytes)),
       found.all.bandwidth, 1);
  for (train::Curve& one : points) panel.curves.push_back(std::move(one));
  return panel;
}

/// Throws for settings of which the limits are not known.
void require_measurable(const RunConfig& config) {
  if (config.device == "cuda") {
    throw ConfigError("--device cuda: the limits that are measured are those of processors",
                      "leave --device out");
  }
}

}  // namespace

Syntax bench_step_syntax() {
  Syntax syntax = run_file_syntax(
      "lockstep bench step",
      "Runs steps of training, and prints what their phases take beside what these cores can do.");
  syntax.example = "mpirun -n 2 lockstep bench step --batch-size 512 --roofline step.svg";
  const std::set<std::string> others = {"epochs", "steps", "patience", "monitor", "validation"};
  for (const Setting& setting : settings()) {
    const bool is_beside_steps = setting.scope == Scope::init || setting.scope == Scope::run ||
                                 setting.scope == Scope::job || others.contains(setting.name);
    if (!is_beside_steps) syntax.settings.push_back(setting.name);
  }
  syntax.flags = {
      {"rounds", "N", "rounds of steps to run; peak and bandwidth are measured between them", "5"},
      {"round-steps", "N", "steps of a round [as many as take 0.2 s]"},
      {"roofline", "FILE", "draw arithmetic against bytes: *.svg or *.png"},
      {"json", "", "print one line of JSON instead"}};
  return syntax;
}

void bench_step(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  Recording recording(config, comm);
  const RecordedIn recorded(recording.recorder(), comm);
  std::uint64_t rounds = 0;
  std::uint64_t steps = 0;
  const char* simd = nullptr;
  comm::together(comm, [&] {
    rounds = arguments.number("rounds", 1, 10'000).value();
    steps = arguments.number("round-steps", 1, 1'000'000).value_or(0);
    require_measurable(config);
    if (comm.rank() == 0 && arguments.given("roofline")) {
      train::require_drawable(arguments.value("roofline"));
    }
    const train::ReplicaOptions options = replica_options(config, /*threads=*/1);
    simd = simd_in_use(options.simd, options.precision);
  });
  TrainData data = open_data(config, comm, /*may_lack_test=*/true);
  FaultInjection faults(comm);
  TrainJob job = make_job(config, data, faults, comm);
  const double feature_bytes = data.sets.train->element() == data::Element::byte ? 1 : 4;
  train::ReplicaOptions options = replica_options(config, job.threads);
  options.optimizer = job.replica->optimizer();
  const train::StepWork work = train::work_of(job.replica->shape(), *job.plan, options,
                                              feature_bytes, job.replica->groups().model_ranks());
  StepBench bench(options, job, work, recording.recorder(), comm);
  const Amount amount = bench.warm_up(rounds, steps);
  const auto ranks = comm::gather_each(comm, bench.run(amount));
  const std::string where = ranks_text(comm);
  const StepFindings found = {job,    config, comm.backend(),       comm.place().nodes, simd,
                              amount, work,   bench.probed_bytes(), mean_of(ranks),     ranks};
  comm::together(comm, [&] {
    if (comm.rank() != 0) return;
    if (arguments.given("json")) {
      fmt::print("{}\n", json_of(found).dump());
    } else {
      print(found, where);
    }
    if (!arguments.given("roofline")) return;
    train::draw(std::array{roofline(found)}, arguments.value("roofline"));
  });
}

}  // namespace lockstep::apps
