#include "apps/settings.hpp"

#include <spdlog/fmt/fmt.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "apps/flag_names.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/transform.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/replica_options.hpp"

namespace lockstep::apps {
namespace {

std::string literal(const toml::node& value) {
  using Flags = toml::format_flags;  // on one line, with one kind of quotes
  constexpr auto flags = toml::toml_formatter::default_flags & ~Flags::allow_literal_strings &
                         ~Flags::allow_multi_line_strings;
  std::ostringstream text;
  text << toml::toml_formatter(value, flags);
  return text.str();
}

std::string literal(const std::string& text) { return literal(toml::value<std::string>(text)); }

float positive_number(const std::string& text, const char* remedy) {
  const auto number = number_in<float>(text);
  if (!number || !std::isfinite(*number) || *number <= 0) {
    throw ConfigError("'" + text + "' is not a finite number above 0 (in float32)", remedy);
  }
  return *number;
}

double finite_number(const std::string& text) {
  const auto number = number_in<double>(text);
  if (!number || !std::isfinite(*number)) {
    throw ConfigError("'" + text + "' is not a finite number", "write one such as 0.9 or 1e-8");
  }
  return *number;
}

constexpr std::uint64_t max_prefetched = 1024;

using Count = std::uint64_t RunConfig::*;
using Text = std::string RunConfig::*;

Setting count(const char* name, Count member, std::uint64_t min, const char* help,
              std::uint64_t max = std::numeric_limits<std::int64_t>::max()) {
  return {name, "N", help,
          [=](RunConfig& c, const std::string& text) { c.*member = parse_count(text, min, max); },
          [=](const RunConfig& c) { return std::to_string(c.*member); }};
}

Setting number(const char* name, double RunConfig::*member, const char* help) {
  return {name, "X", help,
          [=](RunConfig& c, const std::string& text) { c.*member = finite_number(text); },
          [=](const RunConfig& c) { return shortest(c.*member); }};
}

std::string printed(std::uint64_t value) { return std::to_string(value); }
std::string printed(double value) { return shortest(value); }
std::string printed(float value) { return shortest(value); }

/// What `parse` reads from `argument`, or `word` for nullopt.
template <class Value, class Parse>
Setting optional_of(const std::string& word, const char* name, const char* argument,
                    std::optional<Value> RunConfig::*member, Parse parse, const char* help) {
  return {name, word + "|" + argument, help,
          [=](RunConfig& c, const std::string& text) {
            c.*member = text == word ? std::nullopt : std::optional<Value>(parse(text));
          },
          [=](const RunConfig& c) { return c.*member ? printed(*(c.*member)) : literal(word); }};
}

/// A count of at least 1, or `word`.
Setting count_or(const char* word, const char* name,
                 std::optional<std::uint64_t> RunConfig::*member, const char* help,
                 std::uint64_t max = std::numeric_limits<std::int64_t>::max()) {
  const auto parse = [max](const std::string& text) { return parse_count(text, 1, max); };
  return optional_of(word, name, "N", member, parse, help);
}

/// A number, or `word`.
Setting number_or(const char* word, const char* name, std::optional<double> RunConfig::*member,
                  const char* help) {
  return optional_of(word, name, "X", member, finite_number, help);
}

/// A text that `check` does not refuse.
template <class Check>
Setting checked_text(const char* name, const std::string& argument, Text member, Check check,
                     const char* help) {
  return {name, argument, help,
          [=](RunConfig& c, const std::string& value) {
            check(value);
            c.*member = value;
          },
          [=](const RunConfig& c) { return literal(c.*member); }};
}

/// Steps, or epochs.
Setting steps_or_epochs(const char* name, Text member, const char* help) {
  const auto check = [](const std::string& value) { steps_in(value, 1); };
  return checked_text(name, "N|Ne", member, check, help);
}

Setting text(const char* name, Text member, const char* argument, const char* help) {
  const auto check = [](const std::string& value) {
    if (value.empty()) throw ConfigError("the value is empty", "give one, or leave it out");
    require_utf8(value);
  };
  return checked_text(name, argument, member, check, help);
}

Setting choice(const char* name, Text member, const std::vector<std::string>& words,
               const char* help) {
  const std::string all = joined(words, "|");
  const auto check = [=](const std::string& value) {
    if (contains(words, value)) return;
    throw ConfigError("'" + value + "' is none of " + all,
                      did_you_mean(suggestion(value, words), "use one of them"));
  };
  return checked_text(name, all, member, check, help);
}

/// Of the words for an option of the library.
template <std::size_t N>
Setting choice(const char* name, Text member, const std::array<const char*, N>& words,
               const char* help) {
  return choice(name, member, std::vector<std::string>(words.begin(), words.end()), help);
}

Setting yes_or_no(const char* name, bool RunConfig::*member, const char* help) {
  return {name, "true|false", help,
          [=](RunConfig& c, const std::string& value) {
            if (value != "true" && value != "false") {
              throw ConfigError("'" + value + "' is neither true nor false", "write one of them");
            }
            c.*member = value == "true";
          },
          [=](const RunConfig& c) { return std::string(c.*member ? "true" : "false"); }};
}

constexpr const char* mesh_remedy = "use batch=N, or batch=N,model=M";

}  // namespace

std::uint64_t steps_in(const std::string& text, std::uint64_t steps_an_epoch) {
  const bool is_epochs = text.ends_with('e');
  constexpr std::uint64_t max = std::uint64_t{1} << 31;
  try {
    const auto number = parse_count(text.substr(0, text.size() - (is_epochs ? 1 : 0)), 0, max);
    return is_epochs ? number * steps_an_epoch : number;
  } catch (const ConfigError&) {
    throw ConfigError(
        "'" + text + "' is neither a number of steps up to 2^31 nor, as 2e, of epochs",
        "write one such as 500 or 2e");
  }
}

MeshDimensions mesh_dimensions(const std::string& text) {
  constexpr std::uint64_t max = 1 << 20;
  MeshDimensions dimensions;
  if (text == "auto") return dimensions;
  const auto words = split_list(text);
  if (words.empty()) throw ConfigError("mesh: no dimension", mesh_remedy);
  for (const auto& word : words) {
    const auto sign = word.find('=');
    const std::string name = word.substr(0, sign);
    if (name != "batch" && name != "model") {
      throw ConfigError("mesh " + text + ": '" + name + "' is not a dimension", mesh_remedy);
    }
    auto& size = name == "batch" ? dimensions.batch : dimensions.model;
    if (size) throw ConfigError("mesh " + text + ": " + name + " is given twice", mesh_remedy);
    try {
      size = parse_count(sign == std::string::npos ? "" : word.substr(sign + 1), 1, max);
    } catch (const ConfigError& error) {
      throw ConfigError("mesh " + text + ": " + name + ": " + error.problem(), mesh_remedy);
    }
  }
  return dimensions;
}

namespace {

Setting layers() {
  return {"layers", "700,500|none",
          "widths of the hidden layers of model mlp; none: a linear classifier",
          [](RunConfig& c, const std::string& value) {
            std::vector<std::uint64_t> widths;
            if (value != "none") {
              for (const auto& width : split_list(value)) widths.push_back(parse_count(width, 1));
              if (widths.empty()) {
                throw ConfigError("the value is empty", "give widths, or `none` for no layer");
              }
            }
            c.layers = widths;
          },
          [](const RunConfig& c) {
            toml::array list;
            for (const auto width : c.layers) list.push_back(static_cast<std::int64_t>(width));
            return literal(list);
          }};
}

/// Seconds, or HH:MM:SS.
std::uint64_t duration(const std::string& text) {
  constexpr std::uint64_t max = 1'000'000'000;
  std::istringstream words(text + ':');
  std::vector<std::uint64_t> parts;
  try {
    for (std::string word; std::getline(words, word, ':');) {
      parts.push_back(parse_count(word, 0, parts.empty() ? max : 59));
    }
  } catch (const ConfigError&) {
    parts.clear();
  }
  if (parts.size() == 3) parts = {3600 * parts[0] + 60 * parts[1] + parts[2]};
  if (parts.size() == 1 && parts[0] > 0 && parts[0] <= max) return parts[0];
  throw ConfigError("'" + text + "' is not a time from 1 to 10^9 seconds",
                    "write seconds, such as 3600, or HH:MM:SS, such as 01:00:00");
}

float factor_above_1(const std::string& text) {
  constexpr const char* remedy = "write one such as 1.5, or off";
  const float factor = positive_number(text, remedy);
  if (factor > 1) return factor;
  throw ConfigError("'" + text + "' is not above 1", remedy);
}

/// In (0, 1).
float share_below_1(const std::string& text) {
  constexpr const char* remedy = "write one such as 0.2, or none";
  const float number = positive_number(text, remedy);
  if (number < 1) return number;
  throw ConfigError("'" + text + "' is not below 1", remedy);
}

float divisor(const std::string& text) {
  return positive_number(text, "write one such as 255, or auto");
}

Setting learning_rate() {
  return {"learning-rate", "X", "the optimizer's rate, which the schedule multiplies",
          [](RunConfig& c, const std::string& value) {
            c.learning_rate = positive_number(value, "write one such as 0.001 or 1e-3");
          },
          [](const RunConfig& c) { return shortest(c.learning_rate); }};
}

std::vector<Setting> table() {
  using C = RunConfig;
  using enum Scope;
  std::vector<Setting> all;
  const char* group = "";
  const auto add = [&](Scope scope, Setting setting) {
    setting.group = group;
    setting.scope = scope;
    all.push_back(std::move(setting));
  };
  group = "Data";
  add(step, text("data", &C::data, "PATH|GLOB|synthetic|synthetic-rgb",
                 "a table (FILE.csv, of values or of paths of pictures), a data folder, a folder "
                 "of pictures, arrays (FILE.npz), a pattern for files, or built-in drawings: "
                 "digits of 28x28, objects in colour of 32x32"));
  add(step,
      choice("format", &C::format, {"auto", "idx", "csv", "tfrecord", "npy", "cifar", "picture"},
             "format of the files in the data folder; auto: the one that is there"));
  add(fixed, count_or("all", "train-limit", &C::train_limit, "use the first N training records"));
  add(fixed, count_or("all", "test-limit", &C::test_limit, "use the first N test records"));
  add(fixed,
      optional_of("none", "test-split", "X", &C::test_split, share_below_1,
                  "the test set is this share of the training records, which the seed chooses; "
                  "for data without test files"));
  add(fixed, optional_of("none", "validation", "X", &C::validation, share_below_1,
                         "the validation set is this share of the training records, which the seed "
                         "chooses: they are not trained on"));
  add(fixed, count_or("auto", "classes", &C::classes,
                      "labels lie in [0, N); auto: as many as the labels say",
                      std::numeric_limits<std::int32_t>::max()));
  add(table, choice("task", &C::task, {"auto", "classification", "regression", "multi-label"},
                    "of a table: predict a class, numbers, or for each of several columns of 0 and "
                    "1 whether it is 1; auto: of several columns that, if they have 0 and 1 alone, "
                    "else numbers; of one, numbers if labels have fractions or are more than 20 "
                    "different whole numbers written as floats"));
  add(table, text("label-column", &C::label_column, "NAME|N,...",
                  "of a table: the column of labels, or several columns to predict; N: the N-th, "
                  "-1 for the last"));
  add(table, text("weight-column", &C::weight_column, "none|NAME",
                  "of a table: a column of weights of the records: the loss is the sum of the "
                  "records' losses times weights, divided by the sum of the weights"));
  add(table, choice("header", &C::header, {"first", "none"},
                    "of a table: line 1 names the columns; none: they are called 1, 2, ..."));
  add(table, choice("separator", &C::separator, {"auto", "comma", "semicolon", "tab"},
                    "of a table; auto: the most frequent one in line 1"));
  add(table,
      choice("standardize", &C::standardize, {"auto", "true", "false"},
             "of a table: subtract the mean of each column of numbers and divide by its standard "
             "deviation, of the training set; auto: unless all are of one scale near 1"));
  add(table, choice("missing", &C::missing, {"mean", "zero", "error"},
                    "of a table: what a missing number is read as"));
  add(table,
      text("ignore-columns", &C::ignore_columns, "none|NAME,...", "of a table: leave these out"));
  add(table, text("category-columns", &C::category_columns, "none|NAME,...",
                  "of a table: columns of numbers that are categories"));
  add(table,
      checked_text(
          "image-size", "auto|N|ROWSxCOLUMNS", &C::image_size, data::parse_image_size,
          "pictures are cropped and scaled to this size; auto: that of all, which must be equal"));
  add(table, choice("image-channels", &C::image_channels, {"auto", "gray", "rgb"},
                    "of pictures; auto: gray if all training pictures are gray, else rgb"));
  add(recipe, optional_of("auto", "divide-by", "X", &C::divide_by, divisor,
                          "features are divided by this; auto: 255 for bytes, 1 for numbers"));
  add(recipe, checked_text("augment", "none|shift=PIXELS,rotate=DEGREES,noise=DEVIATION",
                           &C::augment, data::parse_augmentation,
                           "random changes of training images, any of the three"));
  group = "Network";
  add(fixed, choice("model", &C::model, {"mlp", "lenet", "layers"},
                    "kind of network; layers: the [[layer]] list of the run file"));
  add(fixed, layers());
  add(recipe,
      choice("precision", &C::precision, precision_words,
             "factors of matrix products are rounded to it; bf16: of strict products on the CPU "
             "and library products on a device; tf32: of library products on a device "
             "alone"));
  add(init,
      text("init", &C::init, "none|PATH",
           "start from the weights of a run, a checkpoint or a file in the safetensors format"));
  add(init, text("init-map", &C::init_map, "none|OURS=THEIRS,...",
                 "with --init: a layer's or tensor's name in that file; layers by name or number "
                 "from 0, or last"));
  add(init,
      text("init-fresh", &C::init_fresh, "none|OURS,...",
           "with --init: layers or tensors that start at random instead; last: the last layer"));
  add(init,
      text("init-ignore", &C::init_ignore, "none|THEIRS,...",
           "with --init: tensors of the file, or what their names begin with, that are not used"));
  add(init, choice("init-layout", &C::init_layout, {"lockstep", "pytorch"},
                   "of the tensors in the file; pytorch: of a state_dict(), with its names"));
  group = "Training";
  add(recipe, count("epochs", &C::epochs, 1, "passes over the training set"));
  add(recipe,
      count_or("none", "steps", &C::steps, "end after N steps, if that comes before the epochs"));
  add(fixed, count("batch-size", &C::batch_size, 1, "examples of one step over all ranks"));
  add(recipe,
      count_or("none", "patience", &C::patience,
               "with --validation: end after N epochs that are not better than the best one"));
  add(run, yes_or_no("keep-best", &C::keep_best,
                     "with --validation: save a checkpoint of the best epoch, and keep it"));
  add(recipe, text("monitor", &C::monitor, "loss|score|METRIC",
                   "the validation figure that makes an epoch the best: the loss; the score, "
                   "accuracy or R2; or one of the metrics"));
  add(run, text("metrics", &C::metrics, "none|top-K,auc",
                "more figures of each evaluation: the share of labels among the K greatest "
                "outputs; the area under the ROC curve, the mean over classes or labels"));
  add(fixed, yes_or_no("drop-remainder", &C::drop_remainder,
                       "leave out the last, smaller global batch of an epoch"));
  add(recipe,
      text("class-weights", &C::class_weights, "none|balanced|W,...",
           "weights of each class in the training loss, in their order, which multiply those of "
           "--weight-column; balanced: records / (classes * records of the class)"));
  add(recipe, choice("loss", &C::loss,
                     {"auto", "cross-entropy", "binary-cross-entropy", "squared-error",
                      "absolute-error", "huber"},
                     "what training minimises; auto: of classes the cross-entropy, of several "
                     "labels the binary one, of numbers the mean squared error"));
  add(recipe,
      number("huber-delta", &C::huber_delta,
             "distance from which on the Huber loss is linear, in deviations of the column"));
  add(recipe, number("label-smoothing", &C::label_smoothing,
                     "share of the target of classification that all classes have alike"));
  add(fixed, count("seed", &C::seed, 0,
                   "of all that is random: first weights (TensorFlow's pair N, N+1), order, "
                   "splits, augmentation, dropout"));
  add(fixed,
      choice("shuffle", &C::shuffle, {"global", "none"}, "a new order of records every epoch"));
  group = "Optimizer";
  add(fixed, choice("optimizer", &C::optimizer, {"adam", "adamw", "sgd", "lamb", "lars"},
                    "the rule by which gradients change weights"));
  add(recipe, learning_rate());
  add(recipe, number_or("auto", "momentum", &C::momentum,
                        "of sgd and lars; auto: 0.9 for lars, else none"));
  add(recipe, yes_or_no("nesterov", &C::nesterov, "sgd looks ahead along its momentum"));
  add(recipe,
      number_or("auto", "weight-decay", &C::weight_decay,
                "draws weights towards 0, but for biases and gains: of adamw the share that a "
                "step at rate 1 takes away; else added, times the weights, to the gradient "
                "(sgd, adam, lars) or to the direction of the step (lamb); auto: 0.01 for "
                "adamw and lamb, else none"));
  add(recipe, number("beta1", &C::beta1, "of adam, adamw and lamb: decay of the mean gradient"));
  add(recipe, number("beta2", &C::beta2, "of adam, adamw and lamb: decay of its mean square"));
  add(recipe, number("epsilon", &C::epsilon,
                     "of adam, adamw and lamb: added to the root of the mean square"));
  add(recipe, number("trust", &C::trust,
                     "of lars: the norm of a step at rate 1 as a share of the weights'"));
  add(recipe,
      number_or(
          "none", "clip-norm", &C::clip_norm,
          "scale the mean gradient to this norm if its own is greater; not with --clip-value"));
  add(recipe,
      number_or("none", "clip-value", &C::clip_value,
                "cut each element of the mean gradient to this magnitude; not with --clip-norm"));
  add(recipe,
      choice("schedule", &C::schedule, {"constant", "linear", "cosine", "step", "exponential"},
             "of the rate, after the warm-up; linear and cosine fall towards final-rate, "
             "step and exponential by decay in every decay-every"));
  add(recipe, steps_or_epochs("warmup", &C::warmup,
                              "steps, or epochs as 1e, in which the rate rises to its full value"));
  add(recipe, number("final-rate", &C::final_rate,
                     "of linear and cosine: share of the rate after the last step"));
  add(recipe, number("decay", &C::decay, "of step and exponential: a factor of the rate"));
  add(recipe, steps_or_epochs("decay-every", &C::decay_every, "of step and exponential"));
  group = "Rank and device";
  add(launch,
      count("ranks", &C::ranks, 1, "ranks as threads of this process; not under a launcher"));
  add(launch,
      checked_text(
          "mesh", "auto|batch=N,model=M", &C::mesh, mesh_dimensions,
          "dimensions of the ranks: batch shares examples, model the dense layers' weights; auto: "
          "batch=ranks"));
  add(launch,
      choice("backend", &C::backend, {"auto", "threads", "shared", "mpi", "nccl"},
             "communication between ranks; shared: memory within a host, MPI between hosts; auto: "
             "that under a launcher, else threads; nccl: as auto, and NCCL between devices"));
  add(launch, choice("device", &C::device, {"auto", "cpu", "cuda"},
                     "where replicas are: on the processor, or on a GPU for each rank; auto: cpu"));
  add(job, yes_or_no("share-device", &C::share_device,
                     "ranks of a host may share its GPUs, and exchange through the host's memory"));
  add(launch, count_or("auto", "threads", &C::threads,
                       "threads of each rank's products; auto: the rank's share of the host's "
                       "cores, at most those that it is bound to"));
  group = "Recording";
  add(job,
      text("run-dir", &C::run_dir, "auto|DIR", "where the run is recorded; auto: runs/DATE-TIME"));
  add(job, text("resume", &C::resume, "none|auto|PATH",
                "continue a run from its newest valid checkpoint; auto: the run of --run-dir, or "
                "the run in runs/ that began or saved last; PATH: a run or a checkpoint"));
  add(run, count_or("end", "checkpoint-every", &C::checkpoint_every,
                    "save a checkpoint every N steps, besides at the end"));
  add(run, count("keep", &C::keep, 1, "keep the newest N checkpoints"));
  add(run, count_or("none", "keep-every", &C::keep_every,
                    "keep checkpoints of every N-th step besides"));
  add(run, count_or("none", "hash-every", &C::hash_every,
                    "record every tensor's hash every N steps, for `lockstep compare`"));
  add(run,
      optional_of(
          "none", "max-time", "SECONDS|HH:MM:SS", &C::max_time, duration,
          "save a checkpoint and end with code 75 before this time since the start has passed"));
  add(run, choice("progress", &C::progress, {"auto", "bar", "lines", "off"},
                  "off: errors and warnings only"));
  group = "Fault tolerance";
  add(step, count("timeout", &C::timeout, 1,
                  "end the job with code 86 if a rank makes no progress in a step for N seconds; "
                  "start, evaluation and checkpoints have five times that",
                  1'000'000'000));
  add(run,
      optional_of("off", "straggler-warning", "X", &C::straggler_warning, factor_above_1,
                  "warn of a rank whose own work takes more than X times the median of all ranks"));
  add(run,
      yes_or_no("balance", &C::balance,
                "between epochs, move leaves from slow ranks to fast ones; results do not change"));
  add(job, yes_or_no("survive", &C::survive,
                     "go on without ranks that end, from a snapshot in memory; needs `mpirun --mca "
                     "orte_enable_recovery 1`, or `SLURM_NO_KILL=set SLURM_KILL_BAD_EXIT=0 srun`"));
  add(job, count("snapshot-every", &C::snapshot_every, 1,
                 "with survive: steps between snapshots, which are repeated after a loss"));
  add(step, count("sentinel-steps", &C::sentinel_steps, 1,
                  "compare the weights of all replicas once in N steps, a part before each step",
                  1 << 20));
  add(step, count_or("none", "audit-every", &C::audit_every,
                     "every N steps, recompute a leaf and a slice on another rank"));
  add(run,
      choice("on-nonfinite", &C::on_nonfinite, train::nonfinite_words,
             "if a loss or gradient is not finite: end the job with code 76, or skip that step"));
  group = "Advanced";
  add(fixed, choice("shard-policy", &C::shard_policy, {"data", "auto", "file", "off"},
                    "how records are dealt to ranks"));
  add(fixed, choice("rebatch", &C::rebatch, {"ceil", "balanced"},
                    "how a batch is cut; balanced: with shard-policy file or off"));
  add(recipe,
      choice("reduction", &C::reduction, train::reduction_words, "how gradients are summed"));
  add(launch,
      choice(
          "exchange", &C::exchange, train::exchange_words,
          "what canonical ranks exchange: activations, or partial sums; does not affect results"));
  add(recipe, choice("products", &C::products, train::products_words,
                     "matrix products; auto: strict for canonical, library for allreduce"));
  add(launch, choice("simd", &C::simd, simd_words,
                     "instructions of the strict products; does not affect results"));
  add(launch,
      choice(
          "zeros", &C::zeros, zeros_words,
          "auto: strict products leave out terms that are exactly zero; does not affect results"));
  add(fixed,
      count_or("auto", "leaf", &C::leaf,
               "examples per leaf; pieces are whole leaves; auto: 16 for batches of 128 and more, "
               "with precision bf16 32 for 256 and more"));
  add(step, count_or("none", "micro-batch", &C::micro_batch,
                     "gradient accumulation: examples that a rank computes at a time, with the "
                     "memory of their activations; with strict products does not affect results"));
  add(step, count("prefetch", &C::prefetch, 0,
                  "batches read ahead by a thread in the background, if reading them takes longer "
                  "than passing them on",
                  max_prefetched));
  return all;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = table();
  return all;
}

std::vector<std::string> table_settings() {
  std::vector<std::string> names;
  for (const Setting& setting : settings()) {
    if (setting.scope == Scope::table) names.push_back(setting.name);
  }
  return names;
}

bool is_default(const Setting& setting, const RunConfig& config) {
  static const RunConfig defaults;
  return setting.literal(config) == setting.literal(defaults);
}

std::string flag_value(const Setting& setting, const RunConfig& config) {
  std::string text = setting.literal(config);
  std::erase_if(text, [](char c) { return c == '"' || c == '[' || c == ']' || c == ' '; });
  return text.empty() ? "none" : text;
}

const Setting* find_setting(std::string_view name) {
  const auto& all = settings();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const Setting& setting_named(std::string_view place, const std::string& key,
                             const std::vector<std::string>& others) {
  if (const Setting* const found = find_setting(key)) return *found;
  std::vector<std::string> names = others;
  for (const auto& setting : settings()) names.push_back(setting.name);
  std::string word = key;
  if (const auto dot = key.find('.'); dot != std::string::npos) {  // as the tables of a run file
    word = key.substr(dot + 1) == "name" ? key.substr(0, dot) : key.substr(dot + 1);
  }
  throw ConfigError(
      std::string(place) + ": unknown setting '" + key + "'",
      did_you_mean(suggestion(word, names), "`lockstep train --help` lists all settings"));
}

void require_utf8(const std::string& text, const std::string& place) {
  if (is_utf8(text)) return;
  throw ConfigError((place.empty() ? "" : place + ": ") + in_quotes(text) + " is not UTF-8",
                    "give another path, or an absolute link to it");
}

void set_value(RunConfig& config, std::string_view place, const Setting& setting,
               const std::string& value) {
  config.places.erase(setting.name);
  try {
    setting.set(config, value);
  } catch (const ConfigError& error) {
    const std::string where(place);
    const std::string& name = setting.name;
    throw ConfigError(where + (where == "--" + name ? ": " : ": " + name + ": ") + error.what());
  }
}

void set_value(RunConfig& config, std::string_view place, const std::string& key,
               const std::string& value) {
  set_value(config, place, setting_named(place, key), value);
}

}  // namespace lockstep::apps
