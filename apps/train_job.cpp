#include "apps/train_job.hpp"

#include <spdlog/fmt/fmt.h>

#include "apps/plan.hpp"
#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/launch/launch.hpp"

namespace lockstep::apps {
namespace {

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

}  // namespace

train::ReplicaOptions replica_options(const RunConfig& config, int threads) {
  train::ReplicaOptions options;
  options.seed = {config.seed, config.seed + 1};
  options.adam.learning_rate = static_cast<double>(config.learning_rate);
  options.reduction =
      config.reduction == "canonical" ? train::Reduction::canonical : train::Reduction::allreduce;
  options.exchange = config.exchange == "activations" ? train::Exchange::activations
                     : config.exchange == "sums"      ? train::Exchange::partial_sums
                                                      : train::Exchange::automatic;
  options.audit_every = config.audit_every;
  options.sentinel_steps = config.sentinel_steps;
  options.products = config.products == "strict"    ? train::ProductsChoice::strict
                     : config.products == "library" ? train::ProductsChoice::library
                                                    : train::ProductsChoice::automatic;
  options.precision = config.precision == "tf32"   ? Precision::tf32
                      : config.precision == "bf16" ? Precision::bf16
                                                   : Precision::float32;
  options.simd = config.simd == "scalar"   ? Simd::scalar
                 : config.simd == "avx2"   ? Simd::avx2
                 : config.simd == "avx512" ? Simd::avx512
                                           : Simd::automatic;
  options.prefetch = config.prefetch;
  options.share_device = config.share_device;
  if (config.backend == "nccl") options.device_exchange = train::DeviceExchange::nccl;
  if (config.device != "cuda") {
    options.threads = threads;
    return options;
  }
  options.device = train::Device::cuda;
  options.threads = config.threads ? threads : 0;
  if (config.backend != "nccl" && config.backend != "auto") {
    options.device_exchange = train::DeviceExchange::staged;
  }
  return options;
}

int threads_of(const RunConfig& config, const comm::Communicator& comm) {
  const int own = train::own_cores(comm);
  if (!config.threads) return own;
  constexpr std::uint64_t most = 1024;
  if (*config.threads > most) {
    throw ConfigError("threads: " + std::to_string(*config.threads) + " is more than " +
                      std::to_string(most));
  }
  const int threads = static_cast<int>(*config.threads);
  if (threads > own && comm.rank() == 0) {
    launch::print_warning(
        fmt::format("{} threads a rank on {} core{}, oversubscribed; `mpirun --bind-to none` "
                    "unbinds ranks from their cores",
                    threads, own, own == 1 ? "" : "s"));
  }
  return threads;
}

void warn_of_staging(const train::Replica& replica) {
  const auto* device = replica.device();
  if (device == nullptr || replica.groups().all.rank() != 0) return;
  if (device->exchange().rfind("staged", 0) != 0) return;
  launch::print_warning(fmt::format(
      "devices exchange through memory of the host ({}){}: each step copies gradients and weights "
      "out and in, at the speed of PCI Express",
      device->exchange(), device->shares_device() ? ", because ranks share a device" : ""));
}

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
  comm::require_equal(
      comm, "the data of ranks",
      {{"training set", job.data.train->identity()}, {"test set", job.data.test->identity()}},
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

}  // namespace lockstep::apps
