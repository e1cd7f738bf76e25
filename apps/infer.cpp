// `lockstep evaluate` and `lockstep predict`: a checkpoint on a test set.
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/replica.hpp"

namespace lockstep::apps {
namespace {

/// A saved network, ready for inference on a test set. Its products are strict, as in canonical
/// training, so its results are the same bits on any number of ranks.
struct InferenceJob {
  train::SavedNetwork saved;
  std::unique_ptr<data::Source> test;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<train::Replica> replica;
  std::unique_ptr<data::BatchReader> reader;
};

void require_words(const Arguments& arguments) {
  if (arguments.operands.empty()) {
    throw ConfigError("no checkpoint",
                      "name one: RUN/checkpoints/step-NNNNNNNN, or the run's folder");
  }
  if (!arguments.given("data")) {
    throw ConfigError("no --data", "say which data: a data folder, or `--data synthetic`");
  }
}

/// The test set, preprocessed as in training.
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

/// The options shared by `evaluate` and `predict`; the caller adds command, sentence and flags.
Syntax inference_syntax() {
  Syntax syntax;
  syntax.operand = "checkpoint";
  syntax.note = "(a checkpoint, or a run: its last one)";
  syntax.settings = {"data",  "format", "test-limit",   "mesh",    "backend",
                     "ranks", "device", "share-device", "threads", "simd"};
  return syntax;
}

/// Reads the checkpoint, opens the data and loads the weights.
///
/// Errors   throws comm::AgreedError on every rank: no checkpoint or no --data given, settings that
///          are not supported here (2); a damaged checkpoint, bad data, data with another number of
///          features than the network (65); files that differ between ranks (2).
/// Ranks    collective.
InferenceJob make_inference_job(const Arguments& arguments, const RunConfig& config,
                                comm::Communicator& comm) {
  InferenceJob job;
  int threads = 1;
  comm::together(comm, [&] {
    require_words(arguments);
    if (config.backend == "nccl") {
      throw ConfigError("backend nccl: there is nothing to exchange between devices here",
                        "leave --backend out");
    }
    mesh_of(config, static_cast<std::uint64_t>(comm.size()));
    threads = threads_of(config, comm);
    job.saved = train::read_description(train::find_checkpoint(arguments.operand()));
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
  train::ReplicaOptions options = replica_options(config, threads);
  options.loss = nn::built_in_loss<float>(job.saved.loss);  // null: sufficient for predict() only
  job.replica = std::make_unique<train::Replica>(
      job.saved.shape, *job.mesh, options,
      [&](nn::Network<float>& network) { train::read_weights(job.saved, network); });
  job.reader = std::make_unique<data::BatchReader>(
      *job.test, train::evaluation_plan(job.test->records(), batch.size()), batch.rank());
  return job;
}

/// "label  text" rows about the checkpoint, the data and the ranks.
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

Syntax evaluate_syntax() {
  Syntax syntax = inference_syntax();
  syntax.command = "lockstep evaluate";
  syntax.does = "Loss and accuracy of a checkpoint on a test set, every example counted once.";
  syntax.usage = "CHECKPOINT --data PATH [flags]";
  syntax.flags = {{"json", "", "print one line of JSON instead"}};
  return syntax;
}

/// Throws if the loss that the network was trained for is not built in. The same on every rank.
void require_loss(const InferenceJob& job) {
  if (nn::built_in_loss<float>(job.saved.loss) != nullptr) return;
  throw comm::AgreedError(
      ExitCode::data,
      (job.saved.folder / "network.json").string() + ": was trained for the loss '" +
          job.saved.loss + "', which is none of lockstep's own",
      "evaluate it with the program that trained it; `lockstep predict` needs no loss");
}

/// Throws if a result is not finite. The same on every rank.
void require_finite(const train::Evaluation& result) {
  if (std::isfinite(result.loss_sum)) return;
  throw comm::AgreedError(ExitCode::diverged, "the loss on the test set is not finite",
                          "look for extreme values in the data, or use an earlier checkpoint");
}

std::string json_text(const train::Evaluation& result, std::uint64_t weights_hash) {
  const nlohmann::ordered_json json = {{"examples", result.examples},
                                       {"loss", result.loss()},
                                       {"accuracy", result.accuracy()},
                                       {"ids_digest", to_hex(result.ids_digest)},
                                       {"weights_hash", to_hex(weights_hash)}};
  return json.dump();
}

void print_table(const train::Evaluation& result, const InferenceJob& job,
                 const RunConfig& config) {
  Banner table;
  table.headline = fmt::format("loss {:.6f}, accuracy {:.4f} on {}", result.loss(),
                               result.accuracy(), counted(result.examples, "example"));
  table.rows = subject_rows(job, config);
  if (job.saved.loss != nn::default_loss) table.rows.emplace_back("loss", job.saved.loss);
  table.rows.emplace_back("test", error_in_words(result));
  table.rows.emplace_back("examples", fmt::format("each evaluated exactly once: ids digest {}",
                                                  to_hex(result.ids_digest)));
  table.print();
}

void evaluate_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  InferenceJob job = make_inference_job(arguments, config, comm);
  require_loss(job);
  const train::Evaluation result = job.replica->evaluate(*job.reader);
  require_finite(result);
  if (comm.rank() != 0) return;
  if (arguments.given("json")) {
    fmt::print("{}\n", json_text(result, job.saved.weights_hash));
  } else {
    print_table(result, job, config);
  }
}

Syntax predict_syntax() {
  Syntax syntax = inference_syntax();
  syntax.command = "lockstep predict";
  syntax.does = "Writes a checkpoint's label for every example of a test set, in the set's order.";
  syntax.usage = "CHECKPOINT --data PATH --output FILE [flags]";
  syntax.flags = {{"output", "FILE", "CSV to write: id,label,probability"}};
  return syntax;
}

/// The target of `output` with symbolic links resolved, so that a link is kept. An existing target
/// must be a regular file: others cannot be replaced atomically.
std::filesystem::path target_of(const std::string& output) {
  std::error_code error;
  const auto status = std::filesystem::status(output, error);
  if (status.type() == std::filesystem::file_type::not_found) return output;
  if (error) {
    throw OutputError(output + ": cannot be examined: " + error.message(),
                      "choose a folder that can be written to");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw OutputError(output + ": is no regular file", "give --output the name of a file");
  }
  return std::filesystem::canonical(output);
}

/// A file of id,label,probability: written incrementally, renamed when complete.
class PredictionFile {
 public:
  explicit PredictionFile(const std::string& output) : file_(target_of(output)) {
    text_ = "id,label,probability\n";
  }

  void write(std::span<const train::Prediction> predictions) {
    for (const auto& prediction : predictions) {
      fmt::format_to(std::back_inserter(text_), "{},{},{}\n", prediction.id, prediction.label,
                     shortest(prediction.probability));
    }
    file_.write(std::as_bytes(std::span(text_)));
    text_.clear();
  }

  void finish() {
    file_.finish();
    file_.publish();
  }

 private:
  NewFile file_;
  std::string text_;
};

void predict_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  const std::string output = arguments.value("output");
  std::optional<PredictionFile> file;
  comm::together(comm, [&] {
    if (output.empty()) throw ConfigError("no --output", "say which file to write");
  });
  InferenceJob job = make_inference_job(arguments, config, comm);
  comm::together(comm, [&] {
    if (comm.rank() == 0) file.emplace(output);
  });
  job.replica->predict(*job.reader,
                       [&](std::span<const train::Prediction> batch) { file->write(batch); });
  comm::together(comm, [&] {
    if (file) file->finish();
  });
  if (comm.rank() != 0) return;
  fmt::print("{}: {}\n", output, counted(job.test->records(), "prediction"));
}

}  // namespace

int evaluate_command(const std::vector<std::string>& words) {
  return run_on_ranks(evaluate_syntax(), words, evaluate_on);
}

int predict_command(const std::vector<std::string>& words) {
  return run_on_ranks(predict_syntax(), words, predict_on);
}

}  // namespace lockstep::apps
