#include "apps/library_options.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/trainer.hpp"

namespace lockstep::apps {
namespace {

/// Shapes {rows, columns} and {rows, columns, channels} are images.
nn::FeatureShape input_of(const std::vector<std::uint64_t>& shape) {
  std::size_t size = 1;
  for (const auto dimension : shape) size *= dimension;
  if (shape.size() == 2) return {shape[0], shape[1], 1, true};
  if (shape.size() == 3) return {shape[0], shape[1], shape[2], true};
  return nn::flat(size);
}

void require_one_model(const RunConfig& config) {
  const bool listed = config.model == "layers";
  if (listed && config.layer_list.empty()) {
    throw ConfigError("model layers without a list of layers",
                      "give a run file with [[layer]] tables");
  }
  if (!listed && !config.layer_list.empty()) {
    throw ConfigError("model " + config.model + " beside a [[layer]] list",
                      "leave one of them out");
  }
  if (config.model != "mlp" && config.layers != RunConfig().layers) {
    throw ConfigError("layers with model " + config.model + ": they are the widths of model mlp",
                      "leave `layers` out, or use `model=mlp`");
  }
}

}  // namespace

nn::NetworkShape network_of(const RunConfig& config, const std::vector<std::uint64_t>& shape,
                            std::uint64_t outputs) {
  require_one_model(config);
  const nn::FeatureShape input = input_of(shape);
  if (config.model == "mlp") {
    return {input.size(), {config.layers.begin(), config.layers.end()}, outputs};
  }
  try {
    return {input, config.model == "lenet" ? nn::lenet_layers() : config.layer_list, outputs};
  } catch (const ConfigError& error) {
    throw ConfigError("model " + config.model + ": " + error.what());
  }
}

std::uint64_t outputs_of(const RunConfig& config, const data::DataSet& data,
                         const std::vector<std::uint64_t>& counts) {
  if (data.train->targets() > 0) return data.train->targets();
  const std::uint64_t classes = data.train->classes();
  if (const auto pictures = data.train->pictures(); pictures != nullptr) {
    if (config.classes.value_or(classes) == classes) return classes;
    throw ConfigError(
        fmt::format("classes {}: the pictures have {} classes", *config.classes, classes),
        "leave `classes` out");
  }
  if (config.classes || data.train->table() != nullptr || counts.empty()) return classes;
  const auto counts_in = [](const data::Source* source) {
    return source != nullptr ? data::label_counts(*source) : std::vector<std::uint64_t>();
  };
  const auto there = counts_in(data.test.get());
  const auto held_out = counts_in(data.validation.get());
  const auto fail = [](const data::Source& source, std::size_t label, const std::string& problem) {
    std::uint64_t id = 0;
    while (source.known_label(id) != static_cast<std::int32_t>(label)) ++id;
    throw DataError(fmt::format("{} has label {}, but {}", source.place_of(id), label, problem),
                    fmt::format("mend the labels; or, if they are right, `classes={}`", label + 1));
  };
  if (there.size() > classes) {
    fail(*data.test, there.size() - 1,
         fmt::format("those of the training set go up to {}", classes - 1));
  }
  for (std::size_t label = 0; label < counts.size(); ++label) {
    const auto is_in = [label](const auto& set) { return label < set.size() && set[label] > 0; };
    if (is_in(counts) || is_in(there) || is_in(held_out)) continue;
    fail(*data.train, counts.size() - 1, fmt::format("no record has label {}", label));
  }
  return classes;
}

train::MeshSizes mesh_of(const RunConfig& config, std::uint64_t ranks) {
  const MeshDimensions given = mesh_dimensions(config.mesh);
  train::MeshSizes sizes;
  sizes.model = given.model.value_or(1);
  sizes.batch = given.batch.value_or(ranks / sizes.model);
  if (sizes.batch * sizes.model == ranks) return sizes;
  const std::string there = counted(ranks, "rank");
  throw ConfigError(
      "mesh " + config.mesh + ": " +
          (given.batch ? "its " + std::to_string(sizes.batch * sizes.model) +
                             " places are not the " + there + " that there are"
                       : there + " cannot be cut into groups of " + std::to_string(sizes.model)),
      "start as many ranks as the mesh has places, or use another mesh");
}

std::vector<std::string> column_names(const std::string& place, const std::string& text) {
  std::vector<std::string> names;
  if (text.empty()) return names;
  std::string scratch;
  const auto fail = [&](const std::string& reason) {
    throw ConfigError(place + ": " + reason,
                      "write names with commas between them; put one that has a comma into double "
                      "quotes, and write its own double quotes twice");
  };
  const auto take = [&](std::size_t, std::string_view name) { names.emplace_back(trimmed(name)); };
  data::split_csv(text, ',', scratch, take, fail);
  return names;
}

data::DataSetOptions data_options(const RunConfig& config) {
  static const std::map<std::string, char> separators = {
      {"auto", '\0'}, {"comma", ','}, {"semicolon", ';'}, {"tab", '\t'}};
  data::TableOptions table;
  table.separator = separators.at(config.separator);
  table.has_header = config.header == "first";
  table.task = data::task_named(config.task);
  const auto columns = [](const char* place, const std::string& text) {
    return text == "none" ? std::vector<std::string>() : column_names(place, text);
  };
  table.label_columns = columns("`label_column`", config.label_column);
  const auto weights = columns("`weight_column`", config.weight_column);
  if (weights.size() > 1) {
    throw ConfigError("`weight_column=" + config.weight_column + "`: more than one column",
                      "name one");
  }
  if (!weights.empty()) table.weight_column = weights.front();
  table.ignored = columns("`ignore_columns`", config.ignore_columns);
  table.categories = columns("`category_columns`", config.category_columns);
  table.missing = *data::missing_named(config.missing);
  if (config.standardize != "auto") table.standardize = config.standardize == "true";
  data::DataSetOptions options;
  options.train_limit = config.train_limit;
  options.test_limit = config.test_limit;
  options.divide_by = config.divide_by;
  options.classes.reset();
  if (config.classes) options.classes = static_cast<int>(*config.classes);
  options.format = data::format_named(config.format);
  options.table = std::move(table);
  options.pictures.size = data::parse_image_size(config.image_size);
  if (config.image_channels != "auto") {
    options.pictures.channels = config.image_channels == "gray" ? 1 : 3;
  }
  if (config.test_split) options.test_split = shortest_double(*config.test_split);
  if (config.validation) options.validation = shortest_double(*config.validation);
  options.seed = config.seed;
  return options;
}

data::OpeningRanks opening_ranks(comm::Exchange& exchange) {
  return {.rank = exchange.rank(),
          .ranks = exchange.size(),
          .gather = [&exchange](std::string_view mine) { return exchange.gather(mine); }};
}

void require_used(const RunConfig& config, const data::Source& train) {
  using C = RunConfig;
  struct Kind {
    const char* name;
    bool is_given;
  };
  const auto schema = train.pictures();
  const bool is_table = train.table() != nullptr;
  const bool names_pictures = schema != nullptr && !schema->path_column.empty();
  const Kind table = {"table", is_table || names_pictures};
  const Kind values = {"table of numbers and words", is_table};
  const Kind pictures = {"folder of pictures", schema != nullptr};
  struct Use {
    const char* setting;
    std::string C::*value;
    const Kind& kind;
    std::string_view any = {};  ///< a value that applies to data of any kind
  };
  const std::array<Use, 11> uses{{{"label_column", &C::label_column, table},
                                  {"header", &C::header, table},
                                  {"separator", &C::separator, table},
                                  {"ignore_columns", &C::ignore_columns, table},
                                  {"task", &C::task, values, "classification"},
                                  {"weight_column", &C::weight_column, values},
                                  {"standardize", &C::standardize, values, "false"},
                                  {"missing", &C::missing, values},
                                  {"category_columns", &C::category_columns, values},
                                  {"image_size", &C::image_size, pictures},
                                  {"image_channels", &C::image_channels, pictures}}};
  const RunConfig defaults;
  for (const Use& use : uses) {
    const std::string& value = config.*use.value;
    if (use.kind.is_given || value == defaults.*use.value || value == use.any) continue;
    throw ConfigError(
        fmt::format("`{}={}`: {} is not a {}", use.setting, value, config.data, use.kind.name),
        fmt::format("leave it out, or give a {}", use.kind.name));
  }
}

void print_warnings(const data::DataSet& sets) {
  std::set<std::string> texts;  // those of both parts of a split are the same
  for (const auto* part : {sets.train.get(), sets.test.get()}) {
    if (part == nullptr) continue;
    for (std::string& text : part->warnings()) texts.insert(std::move(text));
  }
  for (const std::string& text : texts) launching::print_warning(text);
}

TrainingPlan training_plan(const RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks) {
  auto choice =
      data::choose_policy(data::policy_named(config.shard_policy), file_records.size(), ranks);
  data::Plan plan(
      {.records = records,
       .batch_size = config.batch_size,
       .ranks = ranks,
       .leaf = config.leaf.value_or(0),
       .max_leaf = config.precision == "bf16" ? data::bf16_leaf : data::float32_leaf,
       .drop_remainder = config.drop_remainder,
       .shuffle = config.shuffle == "global" ? data::Shuffle::global : data::Shuffle::none,
       .seed = config.seed,
       .policy = choice.policy,
       .rebatch = data::rebatch_named(config.rebatch),
       .file_records = std::move(file_records),
       .balance = config.balance});
  if (plan.steps() == 0) {
    const bool by_rank = choice.policy == data::ShardPolicy::file;
    throw ConfigError("drop-remainder: batch-size " + std::to_string(config.batch_size) +
                          " leaves no step of " + std::to_string(records) + " records" +
                          (by_rank ? " in " + std::to_string(ranks) + " streams" : ""),
                      "use a smaller --batch-size, or keep the remainder");
  }
  return {std::move(plan), std::move(choice.reason), std::move(choice.warning)};
}

namespace {

/// A loss of the setting `loss` for what is predicted.
struct LossChoice {
  const char* setting;
  nn::TargetKind kind;
  std::string name;  ///< as nn::built_in_loss() takes it
};

/// All that fit `kind`; the first is the default.
std::vector<LossChoice> losses_of(const RunConfig& config, nn::TargetKind kind) {
  using Kind = nn::TargetKind;
  const std::string entropy =
      config.label_smoothing == 0 ? nn::default_loss : nn::smoothed_loss(config.label_smoothing);
  std::vector<LossChoice> all = {{"cross-entropy", Kind::label, entropy},
                                 {"squared-error", Kind::label, nn::squared_error},
                                 {"binary-cross-entropy", Kind::flags, nn::binary_cross_entropy},
                                 {"squared-error", Kind::values, nn::regression_loss},
                                 {"absolute-error", Kind::values, nn::absolute_error},
                                 {"huber", Kind::values, nn::huber_loss(config.huber_delta)}};
  std::erase_if(all, [&](const LossChoice& choice) { return choice.kind != kind; });
  return all;
}

/// The name of the loss as nn::built_in_loss() takes it. Throws ConfigError.
std::string loss_name(const RunConfig& config, nn::TargetKind kind) {
  const auto choices = losses_of(config, kind);
  const auto chosen = std::find_if(choices.begin(), choices.end(), [&](const LossChoice& choice) {
    return config.loss == "auto" || config.loss == choice.setting;
  });
  if (chosen == choices.end()) {
    std::vector<std::string> names(choices.size());
    std::transform(choices.begin(), choices.end(), names.begin(),
                   [](const LossChoice& choice) { return choice.setting; });
    const char* const there = kind == nn::TargetKind::label    ? "classes"
                              : kind == nn::TargetKind::values ? "numbers"
                                                               : "several labels";
    throw ConfigError(
        fmt::format("`loss={}`: there are {} to predict", config.loss, there),
        fmt::format("use {}; of a table `task` says what is predicted", fmt::join(names, " or ")));
  }
  const std::string loss = chosen->setting;
  if (loss != "huber" && config.huber_delta != RunConfig().huber_delta) {
    throw ConfigError("`huber_delta` without the Huber loss", "add `loss=huber`, or leave it out");
  }
  if (loss != "cross-entropy" && config.label_smoothing != 0) {
    throw ConfigError("`label_smoothing` with `loss=" + loss + "`", "leave `label_smoothing` out");
  }
  return chosen->name;
}

}  // namespace

const nn::Loss<float>& loss_of(const RunConfig& config, const data::Source& train) {
  const auto table = train.table();
  const auto kind = train.targets() == 0                          ? nn::TargetKind::label
                    : table != nullptr && table->is_multi_label() ? nn::TargetKind::flags
                                                                  : nn::TargetKind::values;
  const std::string name = loss_name(config, kind);
  if (const auto* const loss = nn::built_in_loss<float>(name); loss != nullptr) return *loss;
  if (config.label_smoothing == 0) nn::HuberLoss<float>{config.huber_delta};  // which throws
  throw ConfigError("`label_smoothing=" + shortest(config.label_smoothing) + "`: outside [0, 1)",
                    "give at least 0 and less than 1");
}

std::vector<train::Metric> metrics_of(const std::string& names, nn::TargetKind kind,
                                      std::size_t outputs) {
  std::vector<train::Metric> metrics;
  if (names == "none") return metrics;
  for (const std::string& name : split_list(names)) {
    const auto same = [&](const train::Metric& metric) { return metric.name == name; };
    if (std::any_of(metrics.begin(), metrics.end(), same)) {
      throw ConfigError(fmt::format("`metrics={}`: {} twice", names, name), "name each once");
    }
    metrics.push_back(train::metric_named(name, kind, outputs));
  }
  return metrics;
}

namespace {

/// The records of `source` with each label; empty: unknown.
std::vector<std::uint64_t> records_with(const data::Source& source, std::size_t outputs) {
  std::vector<std::uint64_t> counts = data::label_counts(source);
  if (source.targets() == 0) {
    if (!counts.empty()) counts.resize(outputs);
    return counts;
  }
  counts.resize(outputs);
  std::vector<float> flags(outputs);
  for (std::uint64_t id = 0; id < source.records(); ++id) {
    source.target_values(id, flags);
    for (std::size_t label = 0; label < outputs; ++label) {
      if (flags[label] != 0) ++counts[label];
    }
  }
  return counts;
}

}  // namespace

void require_labels(const data::Source& set, const std::string& what,
                    const std::vector<std::string>& names,
                    const std::vector<train::Metric>& metrics, std::size_t outputs) {
  const auto is_area = [](const train::Metric& metric) { return metric.name == "auc"; };
  if (std::none_of(metrics.begin(), metrics.end(), is_area)) return;
  const auto counts = records_with(set, outputs);
  for (std::size_t label = 0; label < counts.size(); ++label) {
    if (counts[label] > 0 && counts[label] < set.records()) continue;
    throw DataError(
        fmt::format("metric auc: {} record of the {} set has label {}",
                    counts[label] == 0 ? "no" : "every", what,
                    label < names.size() ? in_quotes(names[label]) : std::to_string(label)),
        "give a set in which some records have each label and some do not, or leave the metric "
        "out");
  }
}

namespace {

train::Validation validation_of(const RunConfig& config, const std::vector<train::Metric>& metrics,
                                data::BatchReader* reader) {
  if (reader == nullptr) {
    const RunConfig defaults;
    const char* const given = config.patience                      ? "patience"
                              : config.keep_best                   ? "keep_best"
                              : config.monitor != defaults.monitor ? "monitor"
                                                                   : nullptr;
    if (given != nullptr) {
      throw ConfigError(fmt::format("`{}`: there is no validation set", given),
                        "give `validation=0.1`, or leave it out");
    }
    return {};
  }
  std::vector<std::string> known = {"loss", "score"};
  for (const train::Metric& metric : metrics) known.push_back(metric.name);
  if (!contains(known, config.monitor)) {
    throw ConfigError(
        fmt::format("`monitor={}`: is none of {}", config.monitor, fmt::join(known, "|")),
        "name a metric in `metrics`, too");
  }
  return {.reader = reader,
          .monitored = config.monitor,
          .patience = config.patience,
          .keeps_best = config.keep_best};
}

}  // namespace

train::TrainerOptions trainer_options(const RunConfig& config, const nn::Loss<float>& loss,
                                      std::size_t outputs, data::BatchReader* validation) {
  if (config.keep_every && !config.checkpoint_every && !config.keep_best) {
    throw ConfigError("`keep_every`: no checkpoints are saved before the last one",
                      "add `checkpoint_every`, or leave it out");
  }
  if (config.snapshot_every != RunConfig().snapshot_every && !config.survive) {
    throw ConfigError("`snapshot_every` without `survive`", "add `survive`, or leave it out");
  }
  train::TrainerOptions options;
  options.epochs = config.epochs;
  options.steps = config.steps;
  options.checkpoint_every = config.checkpoint_every;
  options.hash_every = config.hash_every;
  options.snapshot_every = config.snapshot_every;
  options.metrics = metrics_of(config.metrics, loss.target(), outputs);
  options.validation = validation_of(config, options.metrics, validation);
  return options;
}

namespace {

/// Throws the current exception, `error`, which begins with an option of the library; if a run file
/// gives that setting, with its line and its name there: "run.toml:3: weight-decay=-1: ...".
[[noreturn]] void throw_with_place(const RunConfig& config, const ConfigError& error) {
  std::string problem = error.problem();
  std::erase(problem, '`');
  std::replace(problem.begin(), problem.end(), '_', '-');
  const auto place = config.places.find(problem.substr(0, problem.find_first_of(" =:")));
  if (place == config.places.end()) throw;
  throw ConfigError(place->second + ": " + problem, error.remedy());
}

}  // namespace

optim::OptimizerOptions optimizer_options(const RunConfig& config, const data::Plan& plan) {
  const std::uint64_t each = plan.steps();
  const auto kind = *optim::optimizer_named(config.optimizer);
  const auto schedule = *optim::schedule_named(config.schedule);
  const bool has_interval =
      schedule == optim::ScheduleKind::step || schedule == optim::ScheduleKind::exponential;
  const bool decays = kind == optim::OptimizerKind::adamw || kind == optim::OptimizerKind::lamb;
  optim::OptimizerOptions options = {
      .kind = kind,
      .learning_rate = static_cast<double>(config.learning_rate),
      .schedule = {.kind = schedule,
                   .warmup = steps_in(config.warmup, each),
                   .steps = train::total_steps(config.epochs, config.steps, plan),
                   .last = config.final_rate,
                   .decay = config.decay,
                   .every =
                       has_interval ? steps_in(config.decay_every, each) : optim::Schedule().every},
      .beta1 = config.beta1,
      .beta2 = config.beta2,
      .epsilon = config.epsilon,
      .momentum = config.momentum.value_or(kind == optim::OptimizerKind::lars ? 0.9 : 0),
      .nesterov = config.nesterov,
      .weight_decay = config.weight_decay.value_or(decays ? 0.01 : 0),
      .trust = config.trust,
      .clip_norm = config.clip_norm,
      .clip_value = config.clip_value};
  try {
    optim::require_used("decay_every", has_interval, config.decay_every == RunConfig().decay_every,
                        "schedule=" + config.schedule, "step or exponential");
    optim::require_valid(options);
  } catch (const ConfigError& error) {
    throw_with_place(config, error);
  }
  return options;
}

train::ReplicaOptions replica_options(const RunConfig& config, int threads) {
  train::ReplicaOptions options;
  options.seed = {config.seed, config.seed + 1};
  options.reduction = *named<train::Reduction>(train::reduction_words, config.reduction);
  options.exchange = *named<train::Exchange>(train::exchange_words, config.exchange);
  options.audit_every = config.audit_every;
  options.sentinel_steps = config.sentinel_steps;
  options.keeps_snapshots = config.survive;
  options.on_nonfinite = *named<train::OnNonfinite>(train::nonfinite_words, config.on_nonfinite);
  options.products = *named<train::ProductsChoice>(train::products_words, config.products);
  options.precision = *named<Precision>(precision_words, config.precision);
  options.simd = *named<Simd>(simd_words, config.simd);
  options.zeros = *named<Zeros>(zeros_words, config.zeros);
  options.micro_batch = config.micro_batch.value_or(0);
  options.prefetch = config.prefetch;
  options.share_device = config.share_device;
  if (config.backend == "nccl") options.device_exchange = train::DeviceExchange::nccl;
  if (config.device != "cuda") {
    options.threads = threads;
    return options;
  }
  options.device = train::Device::cuda;
  options.threads = config.threads ? threads : 0;
  // The watchdog's limit is shorter, and its message has the cause.
  const double longest = launching::start_limit(static_cast<double>(config.timeout));
  options.nccl_timeout =
      std::chrono::seconds(static_cast<std::int64_t>(longest)) + std::chrono::minutes(1);
  if (config.backend != "nccl" && config.backend != "auto") {
    options.device_exchange = train::DeviceExchange::staged;
  }
  return options;
}

int threads_of(const RunConfig& config, int own_cores) {
  if (!config.threads) return own_cores;
  constexpr std::uint64_t max = 1024;
  if (*config.threads > max) {
    throw ConfigError(
        "`threads` " + std::to_string(*config.threads) + " is more than " + std::to_string(max),
        "give at most one for each core");
  }
  return static_cast<int>(*config.threads);
}

int threads_of(const RunConfig& config, const comm::Communicator& comm) {
  return threads_of(config, comm.own_cores());
}

void warn_of_threads(int threads, const comm::Communicator& comm) {
  const int own = comm.own_cores();
  if (threads <= own || comm.rank() != 0) return;
  const auto launch = comm::detect_launcher();
  launching::print_warning(
      fmt::format("{} threads a rank on {}, oversubscribed{}", threads,
                  counted(static_cast<std::uint64_t>(own), "core"),
                  launch && launch->launcher == "mpirun"
                      ? "; `mpirun --bind-to none` unbinds ranks from their cores"
                      : ""));
}

}  // namespace lockstep::apps
