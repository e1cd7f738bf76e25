// `lockstep train`: from the configuration to the closing table.
#include <spdlog/fmt/fmt.h>

#include <optional>
#include <span>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/subcommands.hpp"
#include "apps/train_job.hpp"
#include "collectives/agreement.hpp"
#include "lib/base/text.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/trainer.hpp"
#include "lib/version.hpp"

namespace lockstep::apps {
namespace {

/// Hosts in the order of their ranks: "2 ranks on 1 host (alpha: 2)".
std::string ranks_text(comm::Communicator& comm) {
  const auto hosts = comm::gather_text(comm, comm.place().host);
  std::vector<std::pair<std::string, int>> counts;
  for (const auto& host : hosts) {
    if (counts.empty() || counts.back().first != host) counts.emplace_back(host, 0);
    ++counts.back().second;
  }
  constexpr std::size_t most_named = 8;
  std::string names;
  for (std::size_t i = 0; i < std::min(counts.size(), most_named); ++i) {
    names += fmt::format("{}{}: {}", i == 0 ? "" : ", ", counts[i].first, counts[i].second);
  }
  if (counts.size() > most_named) names += ", ...";
  return fmt::format("{} on {} ({})", counted(static_cast<std::uint64_t>(comm.size()), "rank"),
                     counted(static_cast<std::uint64_t>(comm.place().nodes), "host"), names);
}

std::string network_text(const nn::NetworkShape& shape) {
  return fmt::format("{}, {} parameters", shape.text(), grouped(shape.parameters()));
}

std::string batch_text(const TrainJob& job) {
  const auto& plan = *job.plan;
  const bool data = plan.options().policy == data::ShardPolicy::data;
  return fmt::format("{} global, at most {} a rank in leaves of {}; {} an epoch",
                     grouped(data ? plan.examples(0) : plan.options().batch_size),
                     grouped(plan.largest_piece()), plan.leaf(0), counted(plan.steps(), "step"));
}

std::string device_text(const TrainJob& job) {
  const auto* device = job.replica->device();
  if (device == nullptr) {
    return fmt::format("cpu, {} a rank",
                       counted(static_cast<std::uint64_t>(job.threads), "thread"));
  }
  const auto& exchange = device->exchange();
  return fmt::format("cuda, {} on rank 0{}", device->device(),
                     exchange.empty() ? "" : "; exchange " + exchange);
}

Banner banner(const RunConfig& config, const TrainJob& job, comm::Communicator& comm) {
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: {}, backend {}", version, ranks_text(comm), comm.backend());
  const auto add = [&](const char* label, std::string text) {
    banner.rows.emplace_back(label, std::move(text));
  };
  add("device", device_text(job));
  add("data", fmt::format("{}: {} training and {} test records of {} features", config.data,
                          grouped(job.data.train->records()), grouped(job.data.test->records()),
                          grouped(job.data.train->features())));
  add("policy", fmt::format("{}: {}; {}shuffle {}", data::name_of(job.plan->options().policy),
                            job.policy_reason,
                            config.rebatch == "ceil" ? "" : "rebatch " + config.rebatch + "; ",
                            config.shuffle));
  if (job.transform) add("augment", config.augment + ", a function of seed, epoch and record");
  add("network", network_text(job.replica->shape()));
  const train::Groups& groups = job.replica->groups();
  const auto model = groups.model_ranks();
  if (model > 1) {
    add("mesh", fmt::format("{} of {} ranks, which share out the weights of dense layers",
                            counted(groups.batch.size(), "replica"), model));
  }
  add("batch", batch_text(job));
  if (const auto idle = job.plan->idle_ranks(); idle > 0) {
    const bool data = job.plan->options().policy == data::ShardPolicy::data;
    add("idle", fmt::format("{} of {} ranks: {}", idle * model, comm.size(),
                            data ? "a full batch has fewer leaves than ranks need; a smaller "
                                   "--leaf or a larger --batch-size would employ them"
                                 : "their files leave them no record"));
  }
  add("reduction", fmt::format("{}; {} products in {}", job.replica->reduction(),
                               job.replica->products(), config.precision));
  return banner;
}

train::RunFacts facts_of(const RunConfig& config, const TrainJob& job, int ranks) {
  train::RunFacts facts;
  facts.version = version;
  facts.ranks = ranks;
  facts.device = job.replica->device() != nullptr ? job.replica->device()->device() : "cpu";
  facts.parameters = job.replica->shape().parameters();
  facts.plan_digest = job.plan->digest();
  facts.checkpoint.divide_by = job.data.train->divisor();
  facts.checkpoint.data = config.data;
  return facts;
}

/// What each rank read of the training set. Collective.
std::vector<std::uint64_t> bytes_read(const data::Source& train, comm::Communicator& comm) {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(comm.size()));
  bytes[static_cast<std::size_t>(comm.rank())] = train.bytes_read();
  comm.all_gather(std::span(bytes));
  return bytes;
}

/// One rank's part of the command, from its configuration to the closing table.
void train_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  const bool speaks = comm.rank() == 0;
  if (arguments.given("print-config")) {
    if (speaks) fmt::print("{}", to_toml(config));
    return;
  }
  TrainJob job = make_job(config, comm);
  const Banner shown = banner(config, job, comm);
  const Progress progress = progress_of(config.progress);
  if (speaks && progress != Progress::off) shown.print();
  if (arguments.given("dry-run")) return;

  std::optional<train::RunDirectory> directory;
  std::optional<Console> console;
  std::vector<train::Observer*> observers;
  comm::together(comm, [&] {
    if (!speaks) return;
    directory.emplace(config.run_dir, to_toml(config), facts_of(config, job, comm.size()));
    console.emplace(progress, config.epochs,
                    train::total_steps(config.epochs, config.steps, *job.plan));
    observers = {&*directory, &*console};
  });
  train::Trainer trainer({config.epochs, config.steps, config.checkpoint_every, config.hash_every},
                         *job.replica, *job.train, *job.test);
  train::RunReport report = trainer.run(observers);
  report.bytes_read = bytes_read(*job.data.train, comm);
  if (!speaks) return;
  directory->finish(report);
  console->finish(report, directory->last_checkpoint().string());
}

Syntax train_syntax() {
  Syntax syntax;
  syntax.command = "lockstep train";
  syntax.does = "Trains a network on all ranks of this job.";
  syntax.usage = "[CONFIG.toml] [flags]   (flags override the file, the file the defaults)";
  syntax.operand = "run file";
  syntax.run_file = true;
  syntax.flags = {
      {"print-config", "", "print the resolved run file and end"},
      {"dry-run", "", "check configuration, data and agreement between ranks, and end"}};
  return syntax;
}

}  // namespace

int train_command(const std::vector<std::string>& words) {
  return run_on_ranks(train_syntax(), words, train_on);
}

}  // namespace lockstep::apps
