// `lockstep train`: runs training from the configuration to the closing table.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/resume.hpp"
#include "apps/run_file.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/run_directory.hpp"
#include "lockstep/train/trainer.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

/// The objects that one rank trains with.
struct TrainJob {
  data::DataSet data;
  std::optional<data::Plan> plan;
  std::string policy_reason;  ///< the reason for the plan's policy
  int threads = 1;            ///< of this rank's products
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<train::Replica> replica;
  std::unique_ptr<data::Transform> transform;  ///< of training batches; null: none
  std::unique_ptr<data::BatchReader> train;
  std::unique_ptr<data::BatchReader> test;
  Decisive decisive;  ///< what determines the results
};

std::unique_ptr<data::Transform> make_transform(const RunConfig& config,
                                                const data::Source& source) {
  const auto augmentation = data::parse_augmentation(config.augment);
  if (!augmentation.any()) return nullptr;
  try {
    return std::make_unique<data::Transform>(augmentation, config.seed, source.shape());
  } catch (const ConfigError& error) {
    throw ConfigError("augment " + config.augment + ": " + error.what());
  }
}

void require_fitting_data(const data::DataSet& data) {
  if (data.train->features() == data.test->features()) return;
  throw DataError("training records have " + std::to_string(data.train->features()) +
                      " features, test records " + std::to_string(data.test->features()),
                  "give parts of one data set");
}

/// Opens the data, creates the plan and the replica.
///
/// Errors   throws comm::AgreedError on every rank: settings that are not supported here (2), bad
///          data (65), data that differs between ranks (2), too little memory (2).
/// Ranks    collective.
TrainJob make_job(const RunConfig& config, comm::Communicator& comm) {
  TrainJob job;
  const auto sizes = [&] { return mesh_of(config, static_cast<std::uint64_t>(comm.size())); };
  comm::together(comm, [&] {
    sizes();
    job.threads = threads_of(config, comm);
    job.data = data::open_data_set(config.data, {.train_limit = config.train_limit,
                                                 .test_limit = config.test_limit,
                                                 .divide_by = config.divide_by,
                                                 .classes = static_cast<int>(config.classes),
                                                 .format = data::format_named(config.format)});
    require_fitting_data(job.data);
  });
  const std::string train_identity = job.data.train->identity();  // reads samples of the files
  const std::string test_identity = job.data.test->identity();
  comm::require_equal(comm, "the data of ranks",
                      {{"training set", train_identity}, {"test set", test_identity}},
                      "give all hosts the same files");
  job.mesh = train::make_mesh(comm, sizes());
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  std::optional<nn::NetworkShape> shape;
  comm::together(comm, [&] {
    auto chosen = training_plan(config, job.data.train->records(), job.data.train->file_records(),
                                static_cast<std::uint64_t>(batch.size()));
    if (!chosen.warning.empty() && comm.rank() == 0) launch::print_warning(chosen.warning);
    job.plan = std::move(chosen.plan);
    job.policy_reason = std::move(chosen.reason);
    job.decisive = decisive_of(config, train_identity, test_identity, *job.plan, comm);
    shape = network_of(config, job.data.train->shape());
    job.transform = make_transform(config, *job.data.train);
    job.train = std::make_unique<data::BatchReader>(*job.data.train, *job.plan, batch.rank(),
                                                    job.transform.get());
    const auto test_plan = train::evaluation_plan(job.data.test->records(), batch.size());
    job.test = std::make_unique<data::BatchReader>(*job.data.test, test_plan, batch.rank());
  });
  job.replica = std::make_unique<train::Replica>(*shape, *job.plan, *job.mesh,
                                                 replica_options(config, job.threads));
  warn_of_staging(*job.replica);
  return job;
}

/// The hosts in rank order: "2 ranks on 1 host (alpha: 2)".
std::string ranks_text(comm::Communicator& comm) {
  const auto hosts = comm::gather_text(comm, comm.place().host);
  std::vector<std::pair<std::string, int>> counts;
  for (const auto& host : hosts) {
    if (counts.empty() || counts.back().first != host) counts.emplace_back(host, 0);
    ++counts.back().second;
  }
  constexpr std::size_t max_named = 8;
  std::string names;
  for (std::size_t i = 0; i < std::min(counts.size(), max_named); ++i) {
    names += fmt::format("{}{}: {}", i == 0 ? "" : ", ", counts[i].first, counts[i].second);
  }
  if (counts.size() > max_named) names += ", ...";
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
  facts.settings = job.decisive;
  return facts;
}

/// The bytes of the training set that each rank read. Collective.
std::vector<std::uint64_t> bytes_read(const data::Source& train, comm::Communicator& comm) {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(comm.size()));
  bytes[static_cast<std::size_t>(comm.rank())] = train.bytes_read();
  comm.all_gather(std::span(bytes));
  return bytes;
}

/// Sets the replica to the checkpoint's state. Collective.
void restore(const Resume& resume, TrainJob& job, comm::Communicator& comm) {
  if (resume.checkpoint.empty()) return;
  std::optional<train::SavedNetwork> saved;
  comm::together(comm, [&] {
    require_same_data(resume, job.decisive);
    saved = train::read_description(resume.checkpoint);
    const auto total = train::total_steps(resume.config.epochs, resume.config.steps, *job.plan);
    if (saved->info.step <= total) return;
    throw ConfigError(
        fmt::format("--resume: the checkpoint is of step {}, but this job ends after {}",
                    saved->info.step, counted(total, "step")),
        "train for longer: --resume-with epochs=N, or steps=N");
  });
  job.replica->restore(*saved, resume.state);
}

std::string resume_text(const Resume& resume, const TrainJob& job) {
  if (resume.checkpoint.empty()) {
    return resume.run.string() + " has no valid checkpoint: training starts from the beginning";
  }
  return fmt::format("{}, after {}", resume.checkpoint.string(),
                     counted(job.replica->steps(), "step"));
}

/// The folder to record in: that of the run which is continued, unless another one is given.
std::string run_dir_of(const RunConfig& config, const std::optional<Resume>& resume) {
  const bool own = config.run_dir != "auto" || !resume || resume->run.empty();
  return own ? config.run_dir : resume->run.string();
}

std::optional<train::Continued> continued_of(const std::optional<Resume>& resume,
                                             const TrainJob& job) {
  if (!resume || !resume->found()) return std::nullopt;
  return train::Continued{resume->checkpoint, job.replica->steps(), resume->state.position.epoch};
}

void warn_of_missing_records(const train::RunDirectory& directory, const train::Replica& replica) {
  if (directory.recorded_steps() == replica.steps()) return;
  launch::print_warning(fmt::format("{} records {} of the {} before the checkpoint",
                                    (directory.path() / "metrics.jsonl").string(),
                                    grouped(directory.recorded_steps()),
                                    counted(replica.steps(), "step")));
}

/// Records what this rank does, and ends the job when a rank hangs.
class Recording {
 public:
  Recording(const RunConfig& config, comm::Communicator& comm)
      : comm_(comm),
        recorder_(comm.rank(), comm.size()),
        watchdog_(recorder_, comm.rank(), static_cast<double>(config.timeout),
                  launch::is_rank(comm::detect_launcher())) {
    comm_.record_in(&recorder_);
  }
  ~Recording() { comm_.record_in(nullptr); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  FlightRecorder& recorder() noexcept { return recorder_; }

  /// Continues in the run's folder, which only rank 0 knows. Collective.
  void write_to(const std::optional<train::RunDirectory>& directory) {
    std::string run;
    if (directory) {
      const auto folder = directory->path() / "flight";
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);  // of a job with other ranks
      make_folder(folder);
      run = directory->path().string();
    }
    const auto folder = std::filesystem::path(comm::broadcast_text(comm_, run)) / "flight";
    try {
      recorder_.write_to(folder / flight_name(comm_.rank()));
    } catch (const OutputError&) {  // a host that does not share the folder records in memory
    }
    watchdog_.read_recorders_in(folder);
  }

 private:
  comm::Communicator& comm_;
  FlightRecorder recorder_;
  launch::Watchdog watchdog_;
};

/// Decides, before each step, whether a rank wants to stop: after a signal, and on rank 0 before
/// the time is over.
class StopClock {
 public:
  /// `weights`: those of the network, which take time to save.
  StopClock(const RunConfig& config, double weights, bool is_rank_0) {
    if (!is_rank_0) return;
    if (config.max_time) deadline_ = static_cast<double>(*config.max_time);
    if (const char* const end = std::getenv("SLURM_JOB_END_TIME")) {
      const double left = std::strtod(end, nullptr) - static_cast<double>(std::time(nullptr));
      deadline_ = std::min(deadline_, process_age_seconds() + left);
    }
    constexpr double seconds_a_byte = 1 / 50e6;  // of a slow disk
    reserve_ = 1 + 3 * sizeof(float) * weights * seconds_a_byte;
  }

  static constexpr std::uint64_t out_of_time = 1000;

  /// A signal's number, out_of_time, or 0.
  std::uint64_t operator()() {
    if (const int signal = requests_.signal(); signal != 0) {
      return static_cast<std::uint64_t>(signal);
    }
    if (!std::isfinite(deadline_)) return 0;
    longest_ =
        std::max(longest_, since_last_.take());  // with evaluation and waits, if there were any
    return process_age_seconds() + 2 * longest_ + reserve_ < deadline_ ? 0 : out_of_time;
  }

 private:
  StopRequests requests_;
  double deadline_ = std::numeric_limits<double>::infinity();  // seconds since the process began
  double reserve_ = 0;
  double longest_ = 0;
  train::Lap since_last_;
};

/// Throws the error of a stop that all ranks agreed on. Collective.
[[noreturn]] void end_stopped(const train::RunReport& report,
                              const std::optional<train::RunDirectory>& directory,
                              comm::Communicator& comm) {
  const std::string run =
      comm::broadcast_text(comm, directory ? directory->path().string() : std::string());
  const auto checkpoint =
      std::filesystem::path(run) / "checkpoints" / train::checkpoint_name(report.steps);
  const std::string why =
      report.stop == StopClock::out_of_time
          ? "stopped before the time limit"
          : fmt::format("stopped by SIG{}", ::sigabbrev_np(static_cast<int>(report.stop)));
  throw comm::AgreedError(ExitCode::stopped,
                          fmt::format("{} after {}; saved in {}", why,
                                      counted(report.steps, "step"), checkpoint.string()),
                          "continue with --resume " + run);
}

/// One rank's part of the command, from its configuration to the closing table.
void train_on(const Arguments& arguments, const RunConfig& given, comm::Communicator& comm) {
  const bool is_rank_0 = comm.rank() == 0;
  const std::optional<Resume> resume = find_resume(arguments, given, comm);
  const RunConfig& config = resume ? resume->config : given;
  if (arguments.given("print-config")) {
    if (is_rank_0) fmt::print("{}", to_toml(config));
    return;
  }
  Recording recording(config, comm);
  TrainJob job = make_job(config, comm);
  if (resume) restore(*resume, job, comm);
  Banner shown = banner(config, job, comm);
  if (resume && resume->found()) shown.rows.emplace_back("resume", resume_text(*resume, job));
  const Progress progress = progress_of(config.progress);
  if (is_rank_0 && progress != Progress::off) shown.print();
  if (arguments.given("dry-run")) return;
  const std::uint64_t total = train::total_steps(config.epochs, config.steps, *job.plan);
  if (resume && resume->complete && job.replica->steps() == total) {
    if (is_rank_0 && progress != Progress::off) {
      fmt::print("{}: complete after {}; nothing is left to train\n", resume->run.string(),
                 counted(total, "step"));
    }
    return;
  }

  std::optional<train::RunDirectory> directory;
  std::optional<Console> console;
  std::vector<train::Observer*> observers;
  comm::together(comm, [&] {
    if (!is_rank_0) return;
    directory.emplace(run_dir_of(config, resume), to_toml(config),
                      facts_of(config, job, comm.size()),
                      train::Retention{config.keep, config.keep_every}, continued_of(resume, job));
    warn_of_missing_records(*directory, *job.replica);
    console.emplace(progress, config.epochs, total);
    observers = {&*directory, &*console};
  });
  recording.write_to(directory);
  StopClock stop(config, job.replica->shape().weights(), is_rank_0);
  train::Trainer trainer({config.epochs, config.steps, config.checkpoint_every, config.hash_every,
                          [&] { return stop(); }, &recording.recorder()},
                         *job.replica, *job.train, *job.test,
                         resume ? resume->state.position : train::TrainingPosition());
  train::RunReport report = trainer.run(observers);
  if (report.stop != 0) end_stopped(report, directory, comm);
  report.bytes_read = bytes_read(*job.data.train, comm);
  if (!is_rank_0) return;
  directory->finish(report);
  console->finish(report, directory->last_checkpoint().string());
}

Syntax train_syntax() {
  Syntax syntax = run_file_syntax("lockstep train", "Trains a network on all ranks of this job.");
  for (const auto& setting : settings()) syntax.settings.push_back(setting.name);
  syntax.flags = {
      {"print-config", "", "print the resolved run file and end"},
      {"resume-with", "KEY=VALUE",
       "with --resume: change a setting that determines the results, such as epochs"},
      {"dry-run", "", "check configuration, data and agreement between ranks, and end"}};
  return syntax;
}

}  // namespace

int train_command(const std::vector<std::string>& words) {
  return run_on_ranks(train_syntax(), words, train_on);
}

}  // namespace lockstep::apps
