#include "apps/inference_job.hpp"

#include <spdlog/fmt/fmt.h>

#include "apps/train_job.hpp"
#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {
namespace {

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
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  train::ReplicaOptions options = replica_options(config, threads_of(config, comm));
  options.loss = nn::built_in_loss<float>(job.saved.loss);  // null: only predict() can do without
  job.replica = std::make_unique<train::Replica>(
      job.saved.shape, *job.mesh, options,
      [&](nn::Network<float>& network) { train::read_weights(job.saved, network); });
  job.reader = std::make_unique<data::BatchReader>(
      *job.test, train::evaluation_plan(job.test->records(), batch.size()), batch.rank());
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
