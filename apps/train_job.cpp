#include "apps/train_job.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/console.hpp"
#include "apps/flag_names.hpp"
#include "apps/library_options.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/device.hpp"

namespace lockstep::apps {
namespace {

void require_fitting_data(const data::DataSet& data) {
  if (data.test == nullptr || data.train->features() == data.test->features()) return;
  throw DataError("training records have " + std::to_string(data.train->features()) +
                      " features, test records " + std::to_string(data.test->features()),
                  "give parts of one data set");
}

/// Warns if a table's labels look like numbers to predict: whole ones, each of few records.
void warn_of_numbers(const data::Source& train) {
  const auto table = train.table();
  if (table == nullptr || table->task != data::Task::classification) return;
  constexpr std::uint64_t few = 5;
  const auto is_number = [](const std::string& text) {
    return number_in<double>(text).has_value();
  };
  if (train.records() < few * table->classes.size() &&
      std::all_of(table->classes.begin(), table->classes.end(), is_number)) {
    launching::print_warning(fmt::format(
        "the labels are whole numbers, and {} have {}: "
        "`--task regression` predicts them as numbers",
        counted(train.records(), "record"),
        table->classes.size() == 1 ? "1 class" : grouped(table->classes.size()) + " classes"));
  }
}

/// The setting `class_weights` for a training set with `counts` records of each label (empty:
/// unknown) and a network of `outputs`; empty for none. Throws ConfigError for values to predict,
/// `balanced` without counts, another number of weights, or weights that cannot be used. Local.
std::vector<float> class_weights_of(const RunConfig& config, const data::Source& train,
                                    const std::vector<std::uint64_t>& counts,
                                    std::uint64_t outputs) {
  if (config.class_weights == "none") return {};
  const auto fail = [&](const std::string& problem, const std::string& remedy) {
    throw ConfigError("`class_weights=" + config.class_weights + "`: " + problem, remedy);
  };
  if (train.targets() > 0) {
    fail(train.table()->is_multi_label() ? "there are several labels" : "there are no classes",
         "leave `class_weights` out");
  }
  std::vector<float> weights;
  if (config.class_weights == "balanced") {
    if (counts.empty()) fail("this data does not count its labels", "give a weight for each class");
    const auto records = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    for (std::size_t label = 0; label < outputs; ++label) {
      const std::uint64_t count = label < counts.size() ? counts[label] : 0;
      const auto share = static_cast<double>(outputs) * static_cast<double>(count);
      weights.push_back(count == 0 ? 0.0F
                                   : static_cast<float>(static_cast<double>(records) / share));
    }
    return weights;
  }
  for (const std::string& text : split_list(config.class_weights)) {
    const auto weight = data::parse_float(text);
    if (!weight || *weight < 0)
      fail("'" + text + "' is not a number of at least 0", "use 1,2.5,...");
    weights.push_back(*weight);
  }
  if (weights.size() != outputs) {
    fail(
        counted(weights.size(), "weight") + " of " + counted(outputs, "output") + " of the network",
        "give one for each class, in the order of the banner");
  }
  if (std::all_of(weights.begin(), weights.end(), [](float weight) { return weight == 0; })) {
    fail("nothing is left to train on", "give one class a weight above 0");
  }
  return weights;
}

/// The random changes of training images; null: none. Throws ConfigError.
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

/// Warns, on rank 0, if devices exchange data through host memory.
void warn_of_staging(const train::Replica& replica) {
  const auto* device = replica.device();
  if (device == nullptr || replica.groups().all.rank() != 0) return;
  if (!device->exchange().starts_with("staged")) return;
  launching::print_warning(fmt::format(
      "devices exchange through memory of the host ({}){}: each step copies gradients and weights "
      "out and in, at the speed of PCI Express",
      device->exchange(), device->shares_device() ? ", because ranks share a device" : ""));
}

}  // namespace

TrainData open_data(const RunConfig& config, comm::Communicator& comm, bool may_lack_test) {
  TrainData data;
  comm::together(comm, [&](comm::Exchange& exchange) {
    mesh_of(config, static_cast<std::uint64_t>(comm.size()));
    const data::OpeningRanks ranks = opening_ranks(exchange);
    data::DataSetOptions options = data_options(config);
    options.threads = threads_of(config, comm);
    warn_of_threads(options.threads, comm);
    options.ranks = &ranks;
    options.may_lack_test = may_lack_test;
    data.sets = data::open_data_set(config.data, options);
    require_fitting_data(data.sets);
    require_used(config, *data.sets.train);
    for (const auto* set : {&data.sets.train, &data.sets.test, &data.sets.validation}) {
      if (*set) data::require_weight(**set);
    }
    data.label_counts = data::label_counts(*data.sets.train);
    data.outputs = outputs_of(config, data.sets, data.label_counts);
    data.train_identity = data.sets.train->identity();  // reads samples of the files
    if (data.sets.test) data.test_identity = data.sets.test->identity();
  });
  if (comm.rank() == 0) {
    print_warnings(data.sets);
    if (data.outputs == 1 && data.sets.train->targets() == 0) {
      launching::print_warning("there is one class: nothing can be learned");
    }
    if (config.task == "auto") warn_of_numbers(*data.sets.train);
  }
  comm::require_equal(comm, "the data of ranks",
                      {{"training set", data.train_identity}, {"test set", data.test_identity}},
                      "give all hosts the same files");
  return data;
}

TrainJob make_job(const RunConfig& config, const TrainData& data, FaultInjection& faults,
                  comm::Communicator& comm) {
  TrainJob job;
  train::ReplicaOptions options;
  data::Source& train = *data.sets.train;
  job.threads = threads_of(config, comm);
  train::MeshSizes sizes = {.batch = static_cast<std::uint64_t>(comm.size())};
  comm::together(comm, [&] {
    // open_data() has checked the mesh. Under `survive` a mesh of replicas may have lost some
    // since.
    const bool is_of_replicas = mesh_dimensions(config.mesh).model.value_or(1) == 1;
    if (!config.survive || !is_of_replicas) sizes = mesh_of(config, sizes.batch);
  });
  job.mesh = train::make_mesh(comm, sizes);
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  std::optional<nn::NetworkShape> shape;
  comm::together(comm, [&] {
    auto chosen = training_plan(config, train.records(), train.file_records(),
                                static_cast<std::uint64_t>(batch.size()));
    if (!chosen.warning.empty() && comm.rank() == 0) launching::print_warning(chosen.warning);
    job.plan = std::move(chosen.plan);
    job.policy_reason = std::move(chosen.reason);
    job.decisive = decisive_of(config, data.train_identity, data.test_identity, *job.plan, comm);
    shape = network_of(config, train.shape(), data.outputs);
    job.transform = make_transform(config, train);
    job.train =
        std::make_unique<data::BatchReader>(train, *job.plan, batch.rank(), job.transform.get());
    const auto reader = [&](data::Source& source) {
      const auto plan = train::evaluation_plan(source.records(), batch.size());
      return std::make_unique<data::BatchReader>(source, plan, batch.rank());
    };
    if (data.sets.test) job.test = reader(*data.sets.test);
    if (data.sets.validation) job.validation = reader(*data.sets.validation);
    options = faults.wrap(replica_options(config, job.threads));
    options.optimizer = optimizer_options(config, *job.plan);
    options.class_weights = class_weights_of(config, train, data.label_counts, data.outputs);
    options.loss = &loss_of(config, train);
    job.training = trainer_options(config, *options.loss, data.outputs, job.validation.get());
    const train::CheckpointInfo info = {.table = train.table(), .pictures = train.pictures()};
    for (const auto& [set, what] : {std::pair{data.sets.test.get(), "test"},
                                    std::pair{data.sets.validation.get(), "validation"}}) {
      if (set == nullptr) continue;
      require_labels(*set, what, info.class_names(), job.training.metrics, data.outputs);
    }
  });
  job.replica = std::make_unique<train::Replica>(*shape, *job.plan, *job.mesh, options);
  warn_of_staging(*job.replica);
  return job;
}

std::string reduction_text(const TrainJob& job, const RunConfig& config) {
  return fmt::format("{}; {} products in {}", job.replica->reduction(), job.replica->products(),
                     config.precision);
}

std::string mesh_text(const train::Groups& groups) {
  return fmt::format("{} of {} ranks, which share out the weights of dense layers",
                     counted(groups.batch.size(), "replica"), groups.model_ranks());
}

Recording::Recording(const RunConfig& config, comm::Communicator& comm)
    : recorder_(comm.world_rank(comm.rank()), comm.size()) {
  comm::together(comm, [&] {
    watchdog_.emplace(recorder_, comm.world_rank(comm.rank()), static_cast<double>(config.timeout),
                      launching::is_rank(comm::detect_launcher()), config.survive);
  });
}

void Recording::write_to(const std::filesystem::path& run, const comm::Communicator& comm) {
  const auto folder = run / "flight";
  if (comm.rank() == 0) {
    std::set<std::string> names;
    for (const int rank : comm.world_ranks()) names.insert(flight_name(rank));
    std::error_code ignored;
    for (const auto& entry : list_folder(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("rank-") || names.contains(name)) continue;
      std::filesystem::remove(entry.path(), ignored);
    }
  }
  if (is_written_) return;
  try {
    recorder_.write_to(folder / flight_name(comm.world_rank(comm.rank())));
  } catch (const OutputError&) {  // a host that does not share the folder records in memory
  }
  is_written_ = true;
  watchdog_->read_recorders_in(folder);
}

namespace {

/// The end of the Slurm job in seconds since this process began, below 0 in a step that began in
/// its grace time; nullopt: there is none, or it is ignored, with a warning.
std::optional<double> slurm_job_end() {
  const char* const end = std::getenv("SLURM_JOB_END_TIME");
  if (end == nullptr || *end == '\0') return std::nullopt;
  if (const auto time = whole_number(end)) {
    const double left = static_cast<double>(*time) - wall_clock();
    const double since_start = process_age_seconds() + left;
    if (since_start > 0 || std::getenv("SLURM_STEP_ID") != nullptr) return since_start;
  }
  launching::print_warning(fmt::format(
      "SLURM_JOB_END_TIME={} is ignored: it is not a time after the start of this process, in "
      "seconds since 1970; unset it, or start the run in a job that has not ended",
      in_quotes(end)));
  return std::nullopt;
}

}  // namespace

StopClock::StopClock(const StopRequests& requests, const RunConfig& config, double weights,
                     bool is_rank_0)
    : requests_(requests) {
  if (!is_rank_0) return;
  if (config.max_time) deadline_ = static_cast<double>(*config.max_time);
  if (const auto end = slurm_job_end(); end && *end < deadline_) {
    deadline_ = *end;
    reason_ = job_ends;
  }
  constexpr double seconds_a_byte = 1 / 50e6;  // of a slow disk
  reserve_ = 1 + 3 * sizeof(float) * weights * seconds_a_byte;
}

std::uint64_t StopClock::operator()() {
  if (const int signal = requests_.signal(); signal != 0) {
    return static_cast<std::uint64_t>(signal);
  }
  if (!std::isfinite(deadline_)) return 0;
  longest_ = std::max(longest_, since_last_.take());  // of steps, batches of evaluations, and waits
  return process_age_seconds() + 2 * longest_ + reserve_ < deadline_ ? 0 : reason_;
}

namespace {

/// The command that continues the run on ranks like these. What the run does not keep is in it; its
/// other settings are in the checkpoint. With another launcher than mpirun it is that for one rank.
std::string command_to_continue(const std::string& run, const RunConfig& config,
                                const comm::Communicator& comm) {
  std::vector<std::string> words = mpirun_words();
  words.insert(words.end(), {program_invocation_name, "train", "--resume", run});
  if (std::string_view(comm.backend()) == "threads" && comm.size() > 1) {
    words.insert(words.end(), {"--ranks", std::to_string(comm.size())});
  }
  static const std::set<std::string> given = {"ranks", "run-dir", "resume"};  // above
  for (const Setting& setting : settings()) {
    const bool is_kept = setting.scope != Scope::launch && setting.scope != Scope::job;
    if (is_kept || given.contains(setting.name) || is_default(setting, config)) continue;
    const std::string value = flag_value(setting, config);
    words.push_back("--" + setting.name + (value == "true" ? "" : "=" + value));
  }
  for (std::string& word : words) word = in_shell(word);
  return joined(words, " ");
}

}  // namespace

void end_stopped(const train::RunReport& report, const std::string& run, const RunConfig& config,
                 const comm::Communicator& comm) {
  const auto checkpoint =
      std::filesystem::path(run) / "checkpoints" / train::checkpoint_name(report.steps);
  const std::string why =
      report.stop == StopClock::out_of_time ? "stopped before the time limit, `max_time`,"
      : report.stop == StopClock::job_ends
          ? "stopped before the job's time limit, SLURM_JOB_END_TIME,"
          : fmt::format("stopped by SIG{}", ::sigabbrev_np(static_cast<int>(report.stop)));
  throw comm::AgreedError(ExitCode::stopped,
                          fmt::format("{} after {}; saved in {}; continue with `{}`", why,
                                      counted(report.steps, "step"), checkpoint.string(),
                                      command_to_continue(run, config, comm)));
}

}  // namespace lockstep::apps
