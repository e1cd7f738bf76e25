#include "apps/train_job.hpp"

#include <algorithm>
#include <new>

#include "apps/device.hpp"
#include "apps/plan.hpp"
#include "apps/resources.hpp"
#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/launch/launch.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {
namespace {

const char* const narrower =
    "use narrower layers, a smaller --batch-size or --prefetch, or fewer ranks a host";

std::unique_ptr<Products<float>> make_products(const RunConfig& config) {
  const bool strict = wants_strict(config, library_products_name());
  if (!strict && config.simd != "auto") {
    throw ConfigError("simd " + config.simd + " with products library: " + library_products_name() +
                          " chooses for itself",
                      "use --products strict");
  }
  if (!strict) return make_library_products<float>();
  return make_strict_products(simd_of(config));
}

/// What only the canonical reduction can honour.
void require_canonical(const RunConfig& config, const train::Groups& groups) {
  const char* const remedy = "use --reduction canonical, or leave it out";
  if (groups.model != nullptr) {
    throw ConfigError(
        "mesh " + config.mesh +
            " with reduction allreduce: its sums have no fixed order, so the ranks of "
            "model would drift apart in what they hold in common",
        remedy);
  }
  if (config.audit_every) {
    throw ConfigError(
        "audit-every with reduction allreduce: its ranks see their own examples alone", remedy);
  }
  if (config.exchange != "auto") {
    throw ConfigError("exchange " + config.exchange + " with reduction allreduce", remedy);
  }
}

train::Exchange exchange_of(const RunConfig& config, const train::CanonicalOptions& options,
                            const nn::NetworkShape& shape) {
  const auto asked = config.exchange == "activations" ? train::Exchange::activations
                     : config.exchange == "sums"      ? train::Exchange::partial_sums
                                                      : train::Exchange::automatic;
  return train::chosen_exchange(asked, options, shape);
}

/// Rows of all slots of data::Prefetch.
std::uint64_t prefetched_rows(const RunConfig& config, const data::Plan& plan) {
  return config.prefetch == 0 ? 0 : (config.prefetch + 1) * plan.largest_piece();
}

bool is_canonical(const RunConfig& config) { return config.reduction == "canonical"; }

train::CanonicalOptions canonical_options(const RunConfig& config, const TrainJob& job) {
  return {
      {.learning_rate = static_cast<double>(config.learning_rate)}, &*job.plan, config.audit_every};
}

void require_fitting_mesh(const RunConfig& config, const train::Groups& groups) {
  if (!is_canonical(config)) require_canonical(config, groups);
  if (groups.model == nullptr) return;
  if (config.audit_every) {
    throw ConfigError("audit-every with mesh " + config.mesh + ": an auditor needs whole layers",
                      "use a mesh of batch alone, or leave the audit out");
  }
}

/// Weights on the host, as a replica on a device stores them; it computes on its own.
void make_weights(const RunConfig& config, const nn::NetworkShape& shape, std::uint64_t test_rows,
                  TrainJob& job) {
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  const auto rows =
      std::max(test_rows, train::rows_needed(train::Exchange::partial_sums, *job.plan));
  const std::uint64_t staged = (config.prefetch + 2) * job.plan->largest_piece();
  require_memory(shape, {.prefetched_rows = staged + rows}, batch.place(), narrower);
  job.device_options->rows = rows;
  job.products = job.device_options->strict ? make_strict_products(Simd::automatic)
                                            : make_library_products<float>();
  job.network = std::make_unique<nn::Network<float>>(
      shape, 0, *job.products, is_canonical(config) ? static_cast<std::size_t>(batch.size()) : 1);
  nn::initialise(*job.network, {config.seed, config.seed + 1});
}

/// Products, first weights, and the step. `test_rows`: what evaluation needs.
void make_replica(const RunConfig& config, const nn::NetworkShape& shape, std::uint64_t test_rows,
                  TrainJob& job) {
  const train::Groups groups(*job.mesh);
  require_fitting_mesh(config, groups);
  if (job.device_options) return make_weights(config, shape, test_rows, job);
  comm::Communicator& batch = groups.batch;
  const bool canonical = is_canonical(config);
  const train::CanonicalOptions options = canonical_options(config, job);
  const auto exchange = exchange_of(config, options, shape);
  const auto rows = std::max(
      test_rows, canonical ? train::rows_needed(exchange, *job.plan) : job.plan->largest_piece());
  require_memory(shape,
                 {.rows = rows,
                  .prefetched_rows = prefetched_rows(config, *job.plan),
                  .sum_blocks = canonical ? train::sum_blocks(exchange, *job.plan) : 0,
                  .model_ranks = groups.model_ranks()},
                 groups.all.place(), narrower);
  job.products = make_products(config);
  job.network = std::make_unique<nn::Network<float>>(
      shape, rows, *job.products, canonical ? static_cast<std::size_t>(batch.size()) : 1,
      batch.memory(), train::make_layers_of(shape, groups));
  nn::initialise(*job.network, {config.seed, config.seed + 1});
  job.step = canonical ? train::make_canonical_step(*job.network, exchange, options, batch)
                       : train::make_allreduce_step(*job.network, options.adam, batch);
  job.processor = std::make_unique<train::NetworkInference>(*job.network);
}

/// The replica on this rank's device, from the weights on the host. Collective.
void make_device(const RunConfig& config, TrainJob& job) {
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  job.device = train::make_device_replica(*job.network, *job.device_options, batch);
  comm::together(batch, [&] {
    job.step = job.device->make_step(is_canonical(config), canonical_options(config, job));
  });
  warn_of_staging(*job.device, batch);
}

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

TrainJob make_job(const RunConfig& config, comm::Communicator& comm) {
  TrainJob job;
  comm::together(comm, [&] {
    job.device_options = device_options(config, static_cast<std::uint64_t>(comm.size()));
    mesh_of(config, static_cast<std::uint64_t>(comm.size()));
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
  job.mesh = train::make_mesh(comm, mesh_of(config, static_cast<std::uint64_t>(comm.size())));
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  comm::together(comm, [&] {
    auto chosen = training_plan(config, job.data.train->records(), job.data.train->file_records(),
                                static_cast<std::uint64_t>(batch.size()));
    if (!chosen.warning.empty() && comm.rank() == 0) launch::print_warning(chosen.warning);
    job.plan = std::move(chosen.plan);
    job.policy_reason = std::move(chosen.reason);
    const auto test_plan = train::evaluation_plan(job.data.test->records(), batch.size());
    const nn::NetworkShape shape = network_of(config, job.data.train->shape());
    set_product_threads(job.threads);
    try {
      make_replica(config, shape, test_plan.largest_piece(), job);
    } catch (const std::bad_alloc&) {
      throw ConfigError("layers: out of memory on " + comm.place().host, narrower);
    }
    job.transform = make_transform(config, *job.data.train);
    job.train = std::make_unique<data::BatchReader>(*job.data.train, *job.plan, batch.rank(),
                                                    job.transform.get());
    job.test = std::make_unique<data::BatchReader>(*job.data.test, test_plan, batch.rank());
  });
  if (job.device_options) make_device(config, job);
  return job;
}

}  // namespace lockstep::apps
