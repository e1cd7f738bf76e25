// `lockstep evaluate` and `lockstep predict`: a checkpoint on a test set.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/library_options.hpp"
#include "apps/predictions.hpp"
#include "apps/settings.hpp"
#include "apps/start_from_saved.hpp"
#include "apps/subcommands.hpp"
#include "apps/train_job.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/run_directory.hpp"

namespace lockstep::apps {
namespace {

/// A saved network, ready for inference on a test set. Its products are strict, as in canonical
/// training, so its results are the same bits on any number of ranks.
struct InferenceJob {
  train::SavedNetwork saved;
  /// The settings of training as TOML literals; none where there are weights alone.
  comm::KeyValues trained_with;
  RunConfig config;  ///< given, with some of those
  std::shared_ptr<data::Source> test;
  std::unique_ptr<data::Source> first;  ///< records of `test`, if only these are read
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<train::Replica> replica;
  std::unique_ptr<data::BatchReader> reader;
};

void require_words(const Arguments& arguments, const RunConfig& config) {
  if (arguments.operands.empty()) {
    throw ConfigError("no checkpoint",
                      "name one: RUN/checkpoints/step-NNNNNNNN, or the run's folder");
  }
  if (!arguments.given("data")) {
    throw ConfigError("no --data", "say which data: a table, a data folder, or `--data synthetic`");
  }
  require_split_for_seed(arguments, config);
}

/// What the network predicts; labels, if its loss is none of lockstep's own.
nn::TargetKind kind_of(const train::SavedNetwork& saved) {
  const auto* const loss = nn::built_in_loss<float>(saved.loss);
  return loss == nullptr ? nn::TargetKind::label : loss->target();
}

/// How the network's data is read. Columns of a table are those that it was trained on.
data::DataSetOptions options_of(const RunConfig& config, const train::SavedNetwork& saved,
                                bool needs_labels, int threads) {
  data::DataSetOptions options = data_options(config);
  const bool has_classes = needs_labels && kind_of(saved) == nn::TargetKind::label;
  options.classes = has_classes ? static_cast<int>(saved.shape.classes)
                                : std::numeric_limits<std::int32_t>::max();  // any label
  options.divide_by = saved.info.divide_by;
  options.schema = saved.info.table;
  options.features = saved.shape.features;
  options.picture_schema = saved.info.pictures;
  if (const auto& input = saved.shape.input; saved.info.pictures == nullptr && input.image &&
                                             (input.channels == 1 || input.channels == 3)) {
    options.pictures = {data::ImageSize{input.rows, input.columns}, input.channels};
  }
  options.threads = threads;
  options.needs_labels = needs_labels;
  if (saved.info.table == nullptr) options.table.reset();
  return options;
}

/// Gives a setting the value that it had in training; its default where there are weights alone.
void set_as_trained(RunConfig& config, const std::string& name, const InferenceJob& job) {
  set_value(config, (job.saved.folder / "state.json").string(), name,
            saved_value(job.trained_with, name));
}

/// `config` with what the training run had and the user did not give: the seed, so that a test
/// split is the one that it had, and bf16, so that the loss is the one that it recorded. Throws
/// ConfigError for a precision in which device cuda does not evaluate.
RunConfig with_settings_of(const InferenceJob& job, const RunConfig& config,
                           const Arguments& arguments) {
  RunConfig merged = config;
  if (config.test_split && !arguments.given("seed")) set_as_trained(merged, "seed", job);
  const bool is_bf16 = saved_value(job.trained_with, "precision") == "\"bf16\"";
  if (is_bf16 && !arguments.given("precision")) merged.precision = "bf16";
  if (config.device == "cuda" && merged.precision != "float32") {
    throw ConfigError(arguments.given("precision")
                          ? "--precision " + merged.precision + " with --device cuda"
                          : "the network was trained in bf16, which device cuda does not evaluate",
                      "give --precision float32");
  }
  return merged;
}

/// Throws DataError for a set without names of columns and classes, if the network in `saved`,
/// which was trained on a table, cannot read its features, or its labels, without them.
void require_readable_without_names(const std::string& data, const train::SavedNetwork& saved,
                                    bool needs_labels) {
  const data::TableSchema& table = *saved.info.table;
  const std::string network = "the network in " + saved.folder.string();
  const std::string give_table = "give a table with the columns that the network was trained on";
  if (table.task != data::Task::classification) {
    throw DataError(data + ": is not a table, as " + network + " was trained on", give_table);
  }
  if (table.standardized) {
    throw DataError(
        data + ": is not a table, but the columns that " + network + " takes were standardized",
        give_table + "; or train with `standardize=false`");
  }
  if (!needs_labels) return;
  for (std::size_t i = 0; i < table.classes.size(); ++i) {
    if (table.classes[i] == std::to_string(i)) continue;
    throw DataError(fmt::format("{}: is not a table, so its labels are numbers of classes from 0, "
                                "but {} was trained on the classes {}",
                                data, network, listed(table.classes)),
                    give_table + "; or train with the labels 0, 1, ...");
  }
}

/// The test set, preprocessed as in training.
std::unique_ptr<data::Source> open_test_set(const RunConfig& config,
                                            const train::SavedNetwork& saved, bool needs_labels,
                                            bool is_stdin, int threads,
                                            const data::OpeningRanks& ranks) {
  data::DataSetOptions options = options_of(config, saved, needs_labels, threads);
  options.ranks = &ranks;
  if (is_stdin) options.pictures.folder.emplace();  // the working directory
  std::unique_ptr<data::Source> test;
  try {
    test = data::open_data_part(config.data, data::Part::test, options);
  } catch (const Error& error) {  // the number of classes is the network's
    if (error.remedy().find("`image_size=") != std::string::npos) {
      throw DataError(error.problem(), "give pictures of one size");
    }
    if (error.remedy().find("`classes=") == std::string::npos) throw;
    throw DataError(error.problem(), "give data with the labels that the network was trained on");
  }
  if (needs_labels && test->pictures() != nullptr && saved.info.pictures == nullptr) {
    throw DataError(
        fmt::format("{}: classes of pictures have names, which the network in {} does not know",
                    config.data, saved.folder.string()),
        "give data of the kind that the network was trained on; `lockstep predict` needs no names");
  }
  if (test->table() == nullptr && saved.info.table != nullptr) {
    require_readable_without_names(config.data, saved, needs_labels);
  }
  if (needs_labels && kind_of(saved) != nn::TargetKind::label &&
      test->targets() != saved.shape.classes) {
    throw DataError(config.data + ": has labels, but the network predicts " +
                        (kind_of(saved) == nn::TargetKind::values ? "numbers" : "several of them"),
                    "evaluate it with the program that trained it");
  }
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
  syntax.note = "(a checkpoint; or a run: its last one; or RUN/best: of its best epoch)";
  syntax.other_help = {
      {"seed", "of the test split"},
      {"backend", "communication between ranks, as in training, but for nccl"},
      {"timeout", "end the job with code 86 if a rank makes no progress for five times N seconds"}};
  syntax.other_default = {{"data", "required"},
                          {"seed", "that of training"},
                          {"precision", "bf16 after training in bf16, else float32"}};
  syntax.settings = {"data",         "format",  "test-limit", "test-split", "seed",
                     "separator",    "mesh",    "backend",    "ranks",      "device",
                     "share-device", "threads", "precision",  "simd",       "timeout"};
  return syntax;
}

/// A message about the copy of stdin at `path`, with the name stdin.
std::string with_stdin(std::string text, const std::string& path) {
  const std::size_t at = text.find(path);
  return at == std::string::npos ? text : text.replace(at, path.size(), "stdin");
}

/// Lets the job read all records of `source`.
void read_from(data::Source& source, InferenceJob& job) {
  comm::Communicator& batch = train::Groups(*job.mesh).batch;
  job.reader = std::make_unique<data::BatchReader>(
      source, train::evaluation_plan(source.records(), batch.size()), batch.rank());
}

/// Reads the checkpoint, opens the data and loads the weights.
///
/// Errors   throws comm::AgreedError on every rank: no checkpoint or no --data given, settings that
///          are not supported here (2); a damaged checkpoint, bad data, data with another number of
///          features than the network (65); files that differ between ranks (2).
/// Ranks    collective.
InferenceJob make_inference_job(const Arguments& arguments, const RunConfig& config,
                                bool needs_labels, comm::Communicator& comm) {
  InferenceJob job;
  train::MeshSizes sizes;
  int threads = 1;
  std::string identity;
  comm::together(comm, [&](comm::Exchange& exchange) {
    require_words(arguments, config);
    if (config.backend == "nccl") {
      throw ConfigError("backend nccl: there is nothing to exchange between devices here",
                        "leave --backend out");
    }
    sizes = mesh_of(config, static_cast<std::uint64_t>(comm.size()));
    threads = threads_of(config, comm);
    warn_of_threads(threads, comm);
    job.saved = train::read_description(train::find_checkpoint(arguments.operand()));
    if (std::filesystem::exists(job.saved.folder / "state.json")) {
      job.trained_with = train::read_state(job.saved.folder).settings;
    }
    if (arguments.given("separator") && job.saved.info.table == nullptr) {
      throw ConfigError("--separator: the network in " + job.saved.folder.string() +
                            " was not trained on a table of numbers and words",
                        "leave it out: the separator is found");
    }
    job.config = with_settings_of(job, config, arguments);
    job.test = open_test_set(job.config, job.saved, needs_labels, arguments.value("data") == "-",
                             threads, opening_ranks(exchange));
    data::require_weight(*job.test);
    identity = job.test->identity();
  });
  comm::require_equal(
      comm, "what ranks read",
      {{"the loss", job.saved.loss}, {"precision", job.config.precision}, {"test set", identity}},
      "give all hosts the same files");
  if (comm.rank() == 0) {
    const bool is_copy = arguments.value("data") == "-";
    for (const std::string& text : job.test->warnings()) {
      launching::print_warning(is_copy ? with_stdin(text, job.config.data) : text);
    }
  }
  job.mesh = train::make_mesh(comm, sizes);
  job.replica =
      std::make_unique<train::Replica>(job.saved, *job.mesh, replica_options(job.config, threads));
  read_from(*job.test, job);
  return job;
}

/// How the features of the data were read.
std::string reading_text(const InferenceJob& job) {
  const train::CheckpointInfo& info = job.saved.info;
  if (job.test->table() != nullptr) return ", with the columns of training";
  const std::string pictures = info.pictures == nullptr ? "" : " as " + info.pictures->text();
  const std::string order =
      info.table == nullptr ? "" : ", without names of columns: taken in the order of training's";
  return fmt::format("{}{}, divided by {}", pictures, order, info.divide_by);
}

/// "label  text" rows about the checkpoint, the data and the ranks.
std::vector<std::pair<std::string, std::string>> subject_rows(const InferenceJob& job) {
  const RunConfig& config = job.config;
  return {{"checkpoint", fmt::format("{}: after {}", job.saved.folder.string(),
                                     counted(job.saved.info.step, "step"))},
          {"network",
           fmt::format("{}, {} parameters, weights {}{}", job.saved.shape.text(),
                       grouped(job.saved.shape.parameters()), to_hex(job.saved.weights_hash),
                       config.precision == "float32" ? "" : ", products in " + config.precision)},
          {"data", fmt::format("{}: {} test records{}", config.data, grouped(job.test->records()),
                               reading_text(job))}};
}

}  // namespace

Syntax evaluate_syntax() {
  Syntax syntax = inference_syntax();
  syntax.command = "lockstep evaluate";
  syntax.does =
      "Loss and accuracy, or R2, of a checkpoint on a test set, every example counted once.";
  syntax.usage = "CHECKPOINT --data PATH [flags]";
  syntax.example = "lockstep evaluate runs/latest --data iris.csv --test-split 0.2";
  syntax.settings.emplace_back("metrics");
  syntax.flags = {{"report", "", report_help}, {"json", "", "print one line of JSON instead"}};
  return syntax;
}

namespace {

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

std::string json_text(const train::Evaluation& result, const std::vector<train::Metric>& metrics,
                      const train::SavedNetwork& saved, bool has_report) {
  const bool is_regression = !result.values.empty();
  nlohmann::ordered_json json = {{"examples", result.examples},
                                 {"loss", result.loss()},
                                 {is_regression ? "r2" : "accuracy", result.score()},
                                 {"ids_digest", to_hex(result.ids_digest)},
                                 {"weights_hash", to_hex(saved.weights_hash)}};
  for (std::size_t m = 0; m < metrics.size(); ++m) json[metrics[m].name] = result.metrics[m];
  if (is_regression || has_report) {
    json[is_regression ? "targets" : "classes"] = train::scores_json(result, saved.info);
  }
  return json.dump();
}

void print_evaluation(const train::Evaluation& result, const std::vector<train::Metric>& metrics,
                      const InferenceJob& job) {
  Banner table;
  table.headline = fmt::format("loss {:.6f}, {} {:.4f} on {}", result.loss(),
                               result.values.empty() ? "accuracy" : "R2", result.score(),
                               counted(result.examples, "example"));
  table.rows = subject_rows(job);
  for (std::size_t m = 0; m < metrics.size(); ++m) {
    table.rows.emplace_back(metrics[m].name, fmt::format("{:.6f}", result.metrics[m]));
  }
  if (job.saved.loss != nn::default_loss) table.rows.emplace_back("loss", job.saved.loss);
  table.rows.emplace_back("test", error_in_words(result, names_of(job.saved.info)));
  table.whole = "test";  // a regression has its scores here, of each target
  table.rows.emplace_back("examples", fmt::format("each evaluated exactly once: ids digest {}",
                                                  to_hex(result.ids_digest)));
  table.print();
}

/// Warns if the network was trained on a part of the data, and more than the rest is evaluated.
void warn_of_trained_records(const InferenceJob& job) {
  if (job.config.data != job.saved.info.data) return;
  if (saved_value(job.trained_with, "test-split") == "\"none\"") return;
  RunConfig trained;
  set_as_trained(trained, "test-split", job);
  set_as_trained(trained, "seed", job);
  const float trained_split = trained.test_split.value();
  const auto& split = job.config.test_split;  // a smaller one is a part of it
  if (split && *split <= trained_split && job.config.seed == trained.seed) return;
  launching::print_warning(
      fmt::format("{}: the network was trained on some of these records; `--test-split {}`{} "
                  "leaves them out",
                  job.config.data, shortest(trained_split),
                  split && job.config.seed != trained.seed ? " without `--seed`" : ""));
}

void evaluate_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  Recording recording(config, comm);
  const RecordedIn recorded(recording.recorder(), comm);
  InferenceJob job = make_inference_job(arguments, config, true, comm);
  require_loss(job);
  const bool has_report = arguments.given("report");
  std::vector<train::Metric> metrics;
  comm::together(comm, [&] {
    if (comm.rank() == 0) warn_of_trained_records(job);
    metrics = metrics_of(config.metrics, kind_of(job.saved), job.saved.shape.classes);
    require_labels(*job.test, "test", job.saved.info.class_names(), metrics,
                   job.saved.shape.classes);
    if (has_report) require_reportable(job.saved.shape.classes, job.saved.info.table.get());
  });
  const train::Evaluation result = job.replica->evaluate(*job.reader, metrics);
  require_finite(result);
  if (comm.rank() != 0) return;
  if (arguments.given("json")) {
    fmt::print("{}\n", json_text(result, metrics, job.saved, has_report));
  } else {
    print_evaluation(result, metrics, job);
    if (has_report) print_report(result, job.saved.info.class_names());
  }
}

}  // namespace

Syntax predict_syntax() {
  Syntax syntax = inference_syntax();
  syntax.command = "lockstep predict";
  syntax.does =
      "Predicts the label or value of every record, in the order of the data, which may lack "
      "labels.";
  syntax.usage = "CHECKPOINT --data PATH [--output FILE] [flags]";
  syntax.example = "lockstep predict runs/latest --data new.csv --output predictions.csv";
  syntax.flags = {
      {"output", "FILE", "write all predictions to FILE, - for stdout; else the first are printed"},
      {"output-format", "auto|csv|jsonl|npy", "auto: by the ending of FILE, else csv", "auto"},
      {"probabilities", "", "the probability of every class or label, too"},
      {"keep-columns", "all|NAME,...", "write these columns of the data, too"}};
  syntax.other_help["data"] = "a table (FILE.csv; - for stdin), a data folder, or a pattern";
  return syntax;
}

namespace {

/// Throws comm::AgreedError for probabilities of a regression.
train::Predicted predicted_of(const Arguments& arguments, const InferenceJob& job) {
  const bool wants_probabilities = arguments.given("probabilities");
  const nn::TargetKind kind = kind_of(job.saved);
  if (kind == nn::TargetKind::flags) return train::Predicted::flags;
  if (kind == nn::TargetKind::label) {
    return wants_probabilities ? train::Predicted::probabilities : train::Predicted::label;
  }
  if (!wants_probabilities) return train::Predicted::values;
  throw comm::AgreedError(ExitCode::usage, "--probabilities: the network predicts numbers",
                          "leave --probabilities out");
}

/// True if `file` is `place`, or in it.
bool is_in(const std::filesystem::path& place, std::filesystem::path file) {
  std::error_code ignored;
  for (; file.has_relative_path(); file = file.parent_path()) {
    if (std::filesystem::equivalent(file, place, ignored)) return true;
  }
  return false;
}

/// The files of the data, and its folders of pictures.
std::vector<std::filesystem::path> places_of(const RunConfig& config) {
  std::vector<std::filesystem::path> places;
  for (const data::Part part : {data::Part::train, data::Part::test}) {
    try {
      const auto found = data::find_files(config.data, {.format = data::format_named(config.format),
                                                        .only = part,
                                                        .may_lack_test = true,
                                                        .needs_labels = false});
      for (const auto* files : {&found.train, &found.test}) {
        for (const auto& [records, labels] : *files) {
          places.push_back(data::archive_of(records));
          if (!labels.empty()) places.push_back(data::archive_of(labels));
        }
      }
    } catch (const Error&) {  // there is no such part
    }
  }
  return places;
}

/// Throws ConfigError for an output that would replace what is read, or what its run has saved, or
/// that would be read next time.
void require_not_read(const std::string& output, const RunConfig& config,
                      const train::SavedNetwork& saved) {
  std::error_code error;
  const auto target = std::filesystem::weakly_canonical(std::filesystem::absolute(output), error);
  if (error) return;  // it cannot be reached, and so not be written
  const auto refuse = [&](const std::string& what, const char* is = "is") {
    throw ConfigError(fmt::format("--output {}: {} a file of {}", output, is, what),
                      "give it another name");
  };
  if (is_in(saved.folder, target)) refuse("the checkpoint " + saved.folder.string());
  if (const auto run = train::run_of(saved.folder); !run.empty()) {
    for (const char* name : train::run_entries) {
      if (is_in(run / name, target)) refuse("the run " + run.string());
    }
  }
  std::vector<std::filesystem::path> places;
  if (std::filesystem::exists(target, error)) places = places_of(config);
  if (std::any_of(places.begin(), places.end(),
                  [&](const auto& place) { return is_in(place, target); })) {
    refuse("the data " + config.data);
  }
  const bool is_found =
      data::drawn_set(config.data) == nullptr && data::would_find(config.data, target);
  if (is_found) refuse("the data " + config.data, "would be");
}

PredictionOutput output_of(const Arguments& arguments, const RunConfig& config,
                           const InferenceJob& job, train::Predicted predicted) {
  PredictionOutput output;
  output.path = arguments.value("output");
  output.format = arguments.value("output-format");
  output.outputs = job.saved.shape.classes;
  output.names = names_of(job.saved.info);
  output.predicted = predicted;
  output.has_probabilities = arguments.given("probabilities");
  if (predicted == train::Predicted::values) {  // of a program's own data: by number, as they are
    for (std::size_t i = output.names.targets.size(); i < output.outputs; ++i) {
      output.names.targets.push_back({.name = std::to_string(i)});
    }
  }
  output.records = job.test->records();
  if (job.test->pictures() != nullptr) {
    output.file_of = [&job](std::uint64_t id) { return job.test->place_of(id); };
  }
  output.kept_columns = column_names("--keep-columns", arguments.value("keep-columns"));
  if (output.kept_columns.empty()) return output;
  if (config.test_split) {
    throw ConfigError("--keep-columns with --test-split: records are not those of the file",
                      "predict the whole file");
  }
  if (job.saved.info.table == nullptr) {
    throw ConfigError("--keep-columns: the network was not trained on a table of numbers and words",
                      output.file_of ? "leave it out: the path of each picture is written as `file`"
                                     : "leave --keep-columns out");
  }
  if (job.test->table() == nullptr) {
    throw ConfigError("--keep-columns: the data has no columns", "only tables have them");
  }
  const auto files =
      data::find_files(config.data, {.format = data::Format::csv, .only = data::Part::test});
  for (const auto& file : files.test) output.files.emplace_back(file.records);
  output.has_header = job.saved.info.table->has_header;
  output.separator = data_options(config).table->separator;
  return output;
}

/// Lets the job read no more records than a table of predictions shows.
void read_shown_records(InferenceJob& job) {
  std::vector<std::uint64_t> ids(std::min(job.test->records(), shown_predictions));
  std::iota(ids.begin(), ids.end(), std::uint64_t{0});
  job.first = std::make_unique<data::SubsetSource>(job.test, std::move(ids), "the first records");
  read_from(*job.first, job);
}

void predict_from(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  Recording recording(config, comm);
  const RecordedIn recorded(recording.recorder(), comm);
  InferenceJob job = make_inference_job(arguments, config, false, comm);
  std::unique_ptr<PredictionWriter> writer;
  const train::Predicted predicted = predicted_of(arguments, job);
  comm::together(comm, [&] {
    const std::string& path = arguments.value("output");
    if (!path.empty() && path != "-") require_not_read(path, config, job.saved);
    const PredictionOutput output = output_of(arguments, config, job, predicted);
    if (comm.rank() == 0) writer = PredictionWriter::make(output);
    if (path.empty()) read_shown_records(job);
  });
  job.replica->predict(
      *job.reader, [&](std::span<const train::Prediction> batch) { writer->write(batch); },
      predicted);
  comm::together(comm, [&] {
    if (writer) writer->finish();
  });
  const std::string path = arguments.value("output");
  if (comm.rank() != 0 || path.empty() || path == "-") return;
  fmt::print("{}: {}\n", path, counted(job.test->records(), "prediction"));
}

/// Predicts a copy of rank 0's stdin. Messages about the copy name stdin.
void predict_stdin(const Arguments& arguments, const RunConfig& given, comm::Communicator& comm) {
  std::optional<StdinCopy> copy;
  comm::together(comm, [&] {
    if (comm.place().nodes > 1) {
      throw ConfigError("--data -: stdin is that of rank 0 alone, and there are several hosts",
                        "write the data to a file that all hosts see");
    }
    if (comm.rank() == 0) copy.emplace();
  });
  RunConfig config = given;
  config.data = comm::broadcast_text(comm, copy ? copy->path().string() : "");
  try {
    predict_from(arguments, config, comm);
  } catch (const comm::AgreedError& error) {
    throw comm::AgreedError(error.code(), with_stdin(error.problem(), config.data), error.remedy());
  }
}

void predict_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  (config.data == "-" ? predict_stdin : predict_from)(arguments, config, comm);
}

}  // namespace

int evaluate_command(const std::vector<std::string>& words) {
  return run_on_ranks(evaluate_syntax(), words, evaluate_on);
}

int predict_command(const std::vector<std::string>& words) {
  return run_on_ranks(predict_syntax(), words, predict_on);
}

}  // namespace lockstep::apps
