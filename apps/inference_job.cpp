#include "apps/inference_job.hpp"

#include <spdlog/fmt/fmt.h>

#include <new>

#include "apps/device.hpp"
#include "apps/resources.hpp"
#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {
namespace {

constexpr const char* fewer = "use fewer ranks a host, or hosts with more memory";

void require_words(const Arguments& arguments) {
  if (arguments.operand.empty()) {
    throw ConfigError("no checkpoint",
                      "name one: RUN/checkpoints/step-NNNNNNNN, or the run's folder");
  }
  if (!arguments.given("data")) {
    throw ConfigError("no --data", "say which data: a data folder, or `--data synthetic`");
  }
}

/// The test set as the network was trained to see it.
std::unique_ptr<data::Source> open_test_set(const RunConfig& config,
                                            const train::SavedNetwork& saved) {
  auto test = data::open_data_part(config.data, data::Part::test,
                                   {.test_limit = config.test_limit,
                                    .divide_by = saved.info.divide_by,
                                    .classes = static_cast<int>(saved.shape.classes),
                                    .format = data::format_named(config.format)});
  if (test->features() != saved.shape.features) {
    throw DataError(
        fmt::format("{}: its records have {} features, but the network in {} takes {}", config.data,
                    test->features(), saved.folder.string(), saved.shape.features),
        "give data of the kind that the network was trained on");
  }
  return test;
}

void load(const RunConfig& config, const comm::Communicator& comm, InferenceJob& job) {
  const train::Groups groups(*job.mesh);
  const auto plan = train::evaluation_plan(job.test->records(), groups.batch.size());
  const std::uint64_t rows = job.device_options ? 0 : plan.largest_piece();
  require_memory(job.saved.shape, {.rows = rows, .model_ranks = groups.model_ranks()}, comm.place(),
                 fewer);
  set_product_threads(threads_of(config, comm));
  job.products = make_strict_products(simd_of(config));
  try {
    job.network = std::make_unique<nn::Network<float>>(
        job.saved.shape, rows, *job.products, 1, *std::pmr::new_delete_resource(),
        train::make_layers_of(job.saved.shape, groups));
    train::read_weights(job.saved, *job.network);
    if (!job.device_options)
      job.processor = std::make_unique<train::NetworkInference>(*job.network);
  } catch (const std::bad_alloc&) {
    throw ConfigError("out of memory on " + comm.place().host, fewer);
  }
  job.reader = std::make_unique<data::BatchReader>(*job.test, plan, groups.batch.rank());
}

void make_device(InferenceJob& job) {
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  job.device_options->rows = job.reader->plan().largest_piece();
  job.device_options->exchange = train::DeviceExchange::staged;  // of nothing: there are no sums
  job.device = train::make_device_replica(*job.network, *job.device_options, batch);
}

}  // namespace

Syntax inference_syntax() {
  Syntax syntax;
  syntax.operand = "checkpoint";
  syntax.settings = {"data",  "format", "test-limit",   "mesh",    "backend",
                     "ranks", "device", "share-device", "threads", "simd"};
  return syntax;
}

InferenceJob make_inference_job(const Arguments& arguments, const RunConfig& config,
                                comm::Communicator& comm) {
  InferenceJob job;
  comm::together(comm, [&] {
    require_words(arguments);
    job.device_options = device_options(config, static_cast<std::uint64_t>(comm.size()));
    if (config.backend == "nccl") {
      throw ConfigError("backend nccl: there is nothing to exchange between devices here",
                        "leave --backend out");
    }
    mesh_of(config, static_cast<std::uint64_t>(comm.size()));
    job.saved = train::read_description(train::find_checkpoint(arguments.operand));
    job.test = open_test_set(config, job.saved);
  });
  comm::require_equal(comm, "what ranks read",
                      {{"checkpoint", job.saved.folder.filename().string()},
                       {"the weights' hash", to_hex(job.saved.weights_hash)},
                       {"the loss", job.saved.loss},
                       {"test set", job.test->identity()}},
                      "give all hosts the same files");
  job.mesh = train::make_mesh(comm, mesh_of(config, static_cast<std::uint64_t>(comm.size())));
  comm::together(comm, [&] { load(config, comm, job); });
  if (job.device_options) make_device(job);
  return job;
}

std::vector<std::pair<std::string, std::string>> subject_rows(const InferenceJob& job,
                                                              const RunConfig& config) {
  return {{"checkpoint", fmt::format("{}: after {}", job.saved.folder.string(),
                                     counted(job.saved.info.step, "step"))},
          {"network",
           fmt::format("{}, {} parameters, weights {}", job.saved.shape.text(),
                       grouped(job.saved.shape.parameters()), to_hex(job.saved.weights_hash))},
          {"data", fmt::format("{}: {} test records, divided by {}", config.data,
                               grouped(job.test->records()), job.saved.info.divide_by)}};
}

}  // namespace lockstep::apps
