// The configuration of a run: one struct, and the table of its settings. A setting is a flag of the
// command line (--batch-size 64) and a key of a run file (batch-size = 64). library_options.hpp has
// the library's options that they stand for.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/network_shape.hpp"

namespace lockstep::apps {
/// Every setting of `lockstep train`, with its default. Names and meanings: settings().
struct RunConfig {
  std::string data = "synthetic";
  std::string format = "auto";
  std::optional<std::uint64_t> train_limit;
  std::optional<std::uint64_t> test_limit;
  std::optional<float> test_split;
  std::optional<float> validation;
  std::optional<std::uint64_t> classes;
  std::optional<float> divide_by;
  std::string task = "auto";
  std::string label_column = "label";
  std::string weight_column = "none";
  std::string header = "first";
  std::string separator = "auto";
  std::string standardize = "auto";
  std::string missing = "mean";
  std::string ignore_columns = "none";
  std::string category_columns = "none";
  std::string image_size = "auto";
  std::string image_channels = "auto";

  std::string model = "mlp";
  std::vector<std::uint64_t> layers = {700, 500};  ///< of model mlp
  std::vector<nn::LayerSpec> layer_list;           ///< of model layers: the run file's [[layer]]
  std::string precision = "float32";
  std::string init = "none";
  std::string init_map = "none";
  std::string init_fresh = "none";
  std::string init_ignore = "none";
  std::string init_layout = "lockstep";

  std::uint64_t batch_size = 128;
  bool drop_remainder = false;
  std::uint64_t epochs = 3;
  std::optional<std::uint64_t> steps;
  std::optional<std::uint64_t> patience;
  bool keep_best = false;
  std::string monitor = "loss";
  std::string metrics = "none";
  float learning_rate = 0.001F;
  std::string optimizer = "adam";
  std::optional<double> momentum;      ///< nullopt: by the optimizer
  std::optional<double> weight_decay;  ///< nullopt: by the optimizer
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-7;
  double trust = 1e-3;
  std::optional<double> clip_norm;
  std::optional<double> clip_value;
  std::string schedule = "constant";
  std::string warmup = "0";  ///< steps, or "2e" for epochs, as decay_every
  std::string decay_every = "1e";
  double decay = 0.1;
  double final_rate = 0;
  std::string class_weights = "none";
  std::string loss = "auto";
  double label_smoothing = 0;
  double huber_delta = 1;
  std::uint64_t seed = 22;
  std::string shuffle = "global";
  std::string augment = "none";

  std::string shard_policy = "data";
  std::string rebatch = "ceil";
  std::string reduction = "canonical";
  std::string exchange = "auto";
  std::string products = "auto";
  std::string simd = "auto";
  std::string zeros = "auto";
  std::optional<std::uint64_t> micro_batch;
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

  /// Where a run file gives a setting, "run.toml:3"; none of flags and defaults.
  std::map<std::string, std::string> places = {};
};

/// What a setting belongs to, and so the value that it has in a run that --resume continues, unless
/// one is given.
enum class Scope {
  recipe,  ///< affects results: the checkpoint's; --resume-with changes it
  table,   ///< how a table is read, or pictures: as fixed
  fixed,   ///< fixes the data, the plan, the network or the optimizer's state: always the
           ///< checkpoint's
  init,    ///< weights of a new run: a checkpoint has its own
  step,    ///< how a step is computed, without effect on results: that of config.toml
  run,     ///< what is recorded, and done between steps: that of config.toml
  launch,  ///< affects results where sums depend on ranks, and is then as recipe, but for `ranks`
           ///< and `backend`, which are compared; else as job
  job,     ///< the default
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
  std::string group = {};  ///< the heading in --help: "Data"
  Scope scope = Scope::recipe;

  /// True for values such as "700,500", which may be a list in a run file.
  bool is_list() const { return argument.find(',') != std::string::npos; }
};

/// The value as a flag takes it: the literal without quotes, brackets and blanks.
std::string flag_value(const Setting& setting, const RunConfig& config);

/// True if `config` has the default value of the setting.
bool is_default(const Setting& setting, const RunConfig& config);

/// All settings, in the order of --help and of printed run files.
const std::vector<Setting>& settings();

/// The names of the settings of Scope::table.
std::vector<std::string> table_settings();

/// The setting of this name; null if there is none.
const Setting* find_setting(std::string_view name);

/// The setting of this name; `place` is for messages: "--seed", "runs.toml:3".
/// Errors   throws ConfigError, with the nearest valid name, or the nearest of `others`.
const Setting& setting_named(std::string_view place, const std::string& key,
                             const std::vector<std::string>& others = {});

/// Settings on which losses depend, besides network and data: under other values they cannot be
/// compared.
inline constexpr std::array settings_of_loss = {"loss", "huber-delta", "label-smoothing",
                                                "weight-column"};

/// Throws ConfigError, with `place` if it is given, for a text that is not UTF-8, which TOML and
/// JSON files cannot hold.
void require_utf8(const std::string& text, const std::string& place = "");

/// Sets `setting`, or the setting named `key`. Every message begins with `place`.
///
/// Errors   throws ConfigError: unknown key (with the nearest valid name), or bad value.
void set_value(RunConfig& config, std::string_view place, const Setting& setting,
               const std::string& value);
void set_value(RunConfig& config, std::string_view place, const std::string& key,
               const std::string& value);

/// The steps in a value of `warmup` or `decay_every`: "100", or "2e" for two epochs of
/// `steps_an_epoch`. Throws ConfigError for any other text.
std::uint64_t steps_in(const std::string& text, std::uint64_t steps_an_epoch);

/// The dimensions in a value of `mesh`; none for "auto".
struct MeshDimensions {
  std::optional<std::uint64_t> batch;
  std::optional<std::uint64_t> model;
};

/// Errors   throws ConfigError for anything but "auto" and "batch=N,model=M", or one of the two.
MeshDimensions mesh_dimensions(const std::string& text);

}  // namespace lockstep::apps
