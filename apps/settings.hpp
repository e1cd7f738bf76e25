// The configuration of a run: one struct, the table of its settings, and the library's options that
// they stand for. A setting is a flag of the command line (--batch-size 64) and a key of a run file
// (batch-size = 64).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/plan.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/nn/layer_spec.hpp"
#include "lockstep/train/replica.hpp"

namespace lockstep::apps {
/// Every setting of `lockstep train`, with its default. Names and meanings: settings().
struct RunConfig {
  std::string data = "synthetic";
  std::string format = "auto";
  std::optional<std::uint64_t> train_limit;
  std::optional<std::uint64_t> test_limit;
  std::uint64_t classes = 10;
  std::optional<float> divide_by;

  std::string model = "mlp";
  std::vector<std::uint64_t> layers = {700, 500};  ///< of model mlp
  std::vector<nn::LayerSpec> layer_list;           ///< of model layers: the run file's [[layer]]
  std::string precision = "float32";

  std::uint64_t batch_size = 128;
  bool drop_remainder = false;
  std::uint64_t epochs = 3;
  std::optional<std::uint64_t> steps;
  float learning_rate = 0.001F;
  std::uint64_t seed = 22;
  std::string shuffle = "global";
  std::string augment = "none";

  std::string shard_policy = "data";
  std::string rebatch = "ceil";
  std::string reduction = "canonical";
  std::string exchange = "auto";
  std::string products = "auto";
  std::string simd = "auto";
  std::optional<std::uint64_t> leaf;
  bool balance = false;
  std::string mesh = "auto";
  std::uint64_t prefetch = 2;

  std::string backend = "auto";
  std::uint64_t ranks = 1;
  std::string device = "auto";
  bool share_device = false;
  std::optional<std::uint64_t> threads;

  std::string run_dir = "auto";
  std::string resume = "none";
  std::optional<std::uint64_t> checkpoint_every;
  std::uint64_t keep = 3;
  std::optional<std::uint64_t> keep_every;
  std::optional<std::uint64_t> hash_every;
  std::optional<std::uint64_t> audit_every;
  std::uint64_t sentinel_steps = 16;
  std::string on_nonfinite = "stop";
  std::optional<std::uint64_t> max_time;          ///< seconds
  std::uint64_t timeout = 120;                    ///< seconds
  std::optional<float> straggler_warning = 1.5F;  ///< factor of the median; nullopt: off
  bool survive = false;
  std::uint64_t snapshot_every = 16;  ///< steps
  std::string progress = "auto";
};

/// One setting. Its name is the flag's (without --) and the run file's key.
struct Setting {
  std::string name;
  /// "N", "PATH", "global|none": printed by --help; "true|false" may be omitted.
  std::string argument;
  std::string help;
  /// Throws ConfigError with the reason only; the caller adds the place.
  std::function<void(RunConfig&, const std::string&)> set;
  /// The value as a TOML literal that `set` parses.
  std::function<std::string(const RunConfig&)> literal;
};

/// All settings, in the order of --help and of printed run files.
const std::vector<Setting>& settings();

/// The setting of this name; `place` is for messages: "--seed", "runs.toml:3".
/// Errors   throws ConfigError, with the nearest valid name.
const Setting& setting_named(std::string_view place, const std::string& key);

/// Sets `key`. Every message begins with `place`.
///
/// Errors   throws ConfigError: unknown key (with the nearest valid name), or bad value.
void set_value(RunConfig& config, std::string_view place, const std::string& key,
               const std::string& value);

/// The configured network, for examples of `shape` (data::Source::shape()).
///
/// Errors   throws ConfigError: settings of one model given with another, no list of layers for
///          model layers, a layer that does not fit its input.
nn::NetworkShape network_of(const RunConfig& config, const std::vector<std::uint64_t>& shape);

/// The sizes of the mesh's dimensions on `ranks` ranks. With "model=2" alone, batch has the rest.
/// Errors   throws ConfigError if the product of the dimensions is not the number of ranks.
train::MeshSizes mesh_of(const RunConfig& config, std::uint64_t ranks);

/// A plan, and the reason for its sharding policy.
struct TrainingPlan {
  data::Plan plan;
  std::string reason;
  std::string warning;  ///< printed once; empty: none
};

/// How the data of `config` is read. Local.
data::DataSetOptions data_options(const RunConfig& config);

/// The plan of training on `records` records in files of `file_records` (empty: not from files).
///
/// Errors   throws ConfigError: errors of Plan and choose_policy(), and a plan without a step.
/// Ranks    local; the same on every rank.
TrainingPlan training_plan(const RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks);

/// A library's message with the names of options, written as `rebatch=ceil` or `batch_size`,
/// replaced by flags of this command: --rebatch ceil, --batch-size. Other words in backquotes are
/// kept.
std::string with_flags(const std::string& message);

/// The replica options in the settings. `threads`: see threads_of(). Local.
train::ReplicaOptions replica_options(const RunConfig& config, int threads);

/// The threads of a rank's products: the setting, else the number of this rank's cores. Rank 0
/// warns if threads exceed cores. Local. Throws ConfigError for an implausible number.
int threads_of(const RunConfig& config, const comm::Communicator& comm);

/// Warns, on rank 0, if devices exchange data through host memory. Local.
void warn_of_staging(const train::Replica& replica);

}  // namespace lockstep::apps
