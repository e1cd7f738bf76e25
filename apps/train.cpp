#include "apps/train.hpp"

#include <spdlog/fmt/fmt.h>

#include <exception>
#include <optional>

#include "apps/console.hpp"
#include "apps/train_job.hpp"
#include "apps/version.hpp"
#include "apps/world.hpp"
#include "collectives/agreement.hpp"
#include "collectives/launcher.hpp"
#include "collectives/self_communicator.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/trainer.hpp"

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
  std::string text;
  for (const auto width : shape.widths()) text += (text.empty() ? "" : "-") + std::to_string(width);
  return fmt::format("{}, {} parameters", text, grouped(shape.parameters()));
}

std::string batch_text(const TrainJob& job) {
  const auto& plan = *job.plan;
  const bool data = plan.options().policy == data::ShardPolicy::data;
  return fmt::format("{} global, at most {} a rank in leaves of {}; {} an epoch",
                     grouped(data ? plan.examples(0) : plan.options().batch_size),
                     grouped(plan.largest_piece()), plan.leaf(0), counted(plan.steps(), "step"));
}

Banner banner(const train::RunConfig& config, const TrainJob& job, comm::Communicator& comm) {
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: {}, backend {}", version, ranks_text(comm), comm.backend());
  const auto add = [&](const char* label, std::string text) {
    banner.rows.emplace_back(label, std::move(text));
  };
  add("device",
      fmt::format("cpu, {} a rank", counted(static_cast<std::uint64_t>(job.threads), "thread")));
  add("data", fmt::format("{}: {} training and {} test records of {} features", config.data,
                          grouped(job.data.train->records()), grouped(job.data.test->records()),
                          grouped(job.data.train->features())));
  add("policy", fmt::format("{}: {}; {}shuffle {}", data::name_of(job.plan->options().policy),
                            job.policy_reason,
                            config.rebatch == "ceil" ? "" : "rebatch " + config.rebatch + "; ",
                            config.shuffle));
  add("network", network_text(job.network->shape()));
  add("batch", batch_text(job));
  if (const auto idle = job.plan->idle_ranks(); idle > 0) {
    const bool data = job.plan->options().policy == data::ShardPolicy::data;
    add("idle", fmt::format("{} of {} ranks: {}", idle, comm.size(),
                            data ? "a full batch has fewer leaves than ranks need; a smaller "
                                   "--leaf or a larger --batch-size would employ them"
                                 : "their files leave them no record"));
  }
  add("reduction",
      fmt::format("{}; {} products in float32", job.step->name(), job.products->name()));
  return banner;
}

train::RunFacts facts_of(const train::RunConfig& config, const TrainJob& job, int ranks) {
  train::RunFacts facts;
  facts.version = version;
  facts.ranks = ranks;
  facts.parameters = job.network->shape().parameters();
  facts.plan_digest = job.plan->digest();
  facts.checkpoint.divide_by = job.data.train->divisor();
  facts.checkpoint.data = config.data;
  return facts;
}

/// One rank's part of the command, from its configuration to the closing table.
void train_on(const TrainArguments& arguments, const train::RunConfig& config,
              comm::Communicator& comm) {
  const bool speaks = comm.rank() == 0;
  if (arguments.print_config) {
    if (speaks) fmt::print("{}", train::to_toml(config));
    return;
  }
  TrainJob job = make_job(config, comm);
  const Banner shown = banner(config, job, comm);
  const Progress progress = progress_of(config.progress);
  if (speaks && progress != Progress::off) shown.print();
  if (arguments.dry_run) return;

  std::optional<train::RunDirectory> directory;
  std::optional<Console> console;
  std::vector<train::Observer*> observers;
  comm::together(comm, [&] {
    if (!speaks) return;
    directory.emplace(config.run_dir, train::to_toml(config), facts_of(config, job, comm.size()));
    console.emplace(progress, config.epochs, job.total_steps(config));
    observers = {&*directory, &*console};
  });
  train::Trainer trainer({config.epochs, config.steps, config.checkpoint_every, config.hash_every,
                          config.sentinel_steps},
                         *job.network, *job.step, *job.train, *job.test, comm);
  const train::RunReport report = trainer.run(observers);
  if (!speaks) return;
  directory->finish(report);
  console->finish(report, directory->last_checkpoint().string());
}

/// Settings that contradict the way this process was started; the same on every rank.
void require_fitting_launch(const train::RunConfig& config, const comm::Communicator& comm) {
  const bool asks_for_threads = config.backend == "threads" || config.ranks != 1;
  if (!asks_for_threads) return;
  throw comm::AgreedError(
      ExitCode::usage,
      fmt::format("ranks as threads (--ranks, --backend threads) under a launcher, which started "
                  "{}",
                  counted(static_cast<std::uint64_t>(comm.size()), "rank")),
      "leave --ranks out (or say --ranks 1, where a run file has more): the launcher says how many "
      "there are; or start without it");
}

/// A batch script's own shell is one process where the job has room for many.
void require_step(const TrainArguments& arguments, const std::optional<comm::Launch>& launch) {
  if (!launch || launch->launcher != "sbatch" || !arguments.value("ranks", "").empty()) return;
  throw ConfigError(
      fmt::format("this is one process in the shell of a Slurm job of {} tasks", launch->ranks),
      "start it with `srun --mpi=pmix -K lockstep train ...`, or say --ranks N to train with N "
      "threads of this process alone");
}

/// As processes without a launcher there is one rank, whatever was asked for.
void require_one_rank(const train::RunConfig& config) {
  if (config.ranks == 1) return;
  throw ConfigError(
      fmt::format("backend {} with ranks = {}, but no launcher", config.backend, config.ranks),
      fmt::format("start it with `mpirun -n {}`, or leave --backend out to train with "
                  "threads",
                  config.ranks));
}

/// A Slurm step of one task, such as an interactive shell: without PMIx, MPI would not even start.
bool is_lone_step(const comm::Launch& launch) { return launch.ranks == 1 && !launch.pmix; }

}  // namespace

int train_command(const std::vector<std::string>& words) {
  const auto launch = comm::detect_launcher();
  TrainArguments arguments;
  std::exception_ptr parse_error;
  try {
    arguments = parse_train_arguments(words);
  } catch (const ConfigError&) {
    parse_error = std::current_exception();
  }
  if (arguments.help) {
    if (!launch || launch->rank == 0) fmt::print("{}", train_help());
    return static_cast<int>(ExitCode::success);
  }
  if (launch && launch->launcher != "sbatch" && !is_lone_step(*launch)) {
    return run_over_mpi(launch, [&](comm::MpiCommunicator& mpi) {
      comm::together(mpi, [&] {
        if (parse_error) std::rethrow_exception(parse_error);
      });
      const auto config = agreed_config(arguments, mpi);
      require_fitting_launch(config, mpi);
      const auto shared = share_nodes(config.backend, mpi);
      train_on(arguments, config, shared ? *shared : mpi);
    });
  }
  if (parse_error) std::rethrow_exception(parse_error);
  comm::SelfCommunicator self;
  const auto config = agreed_config(arguments, self);
  require_step(arguments, launch);
  if (config.backend == "mpi" || config.backend == "shared") {
    require_one_rank(config);
    return run_over_mpi(std::nullopt, [&](comm::MpiCommunicator& mpi) {
      const auto shared = share_nodes(config.backend, mpi);
      train_on(arguments, config, shared ? *shared : mpi);
    });
  }
  run_over_threads(config.ranks,
                   [&](comm::Communicator& comm) { train_on(arguments, config, comm); });
  return static_cast<int>(ExitCode::success);
}

}  // namespace lockstep::apps
