#include "apps/sweep_file.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "apps/toml_settings.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/philox.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::apps {
namespace {

constexpr std::uint64_t max_trials = 10'000;

/// Settings of the whole job, besides those of Scope::job.
constexpr std::array job_settings = {"ranks", "backend", "progress", "timeout", "max-time"};

/// An interval to draw numbers from.
struct Interval {
  double min = 0;
  double max = 0;
  bool is_log = false;
  bool is_whole = false;
};

struct Value {
  std::string text;
  std::string place;
};

/// A setting that is varied: a list of values, or an interval.
struct Varied {
  std::string setting;
  std::string place;
  std::vector<Value> values = {};
  Interval interval = {};
};

[[noreturn]] void refuse(const std::string& place, const std::string& problem,
                         const std::string& remedy) {
  throw ConfigError(place + ": " + problem, remedy);
}

void require_known(const std::string& path, const toml::table& table,
                   const std::vector<std::string>& names) {
  for (const auto& [key, node] : table) {
    const std::string word(key.str());
    if (contains(names, word)) continue;
    refuse(place_of(path, key.source()), "unknown key " + in_quotes(word),
           did_you_mean(nearest(word, names), "the keys here are " + joined(names)));
  }
}

/// The scalars of the table [sweep].
class Keys {
 public:
  Keys(std::string path, const toml::table& table) : path_(std::move(path)), table_(table) {
    require_known(path_, table_,
                  {"group", "method", "trials", "seed", "metric", "halving", "rungs", "settings"});
  }

  bool given(const char* key) const { return table_.contains(key); }

  std::string place(const char* key) const {
    return place_of(path_, table_.find(key)->first.source()) + ": " + key;
  }

  std::uint64_t count(const char* key, std::uint64_t otherwise, std::uint64_t min,
                      std::uint64_t max) const {
    if (!given(key)) return otherwise;
    return parse(*table_.get(key), key, min, max);
  }

  std::vector<std::uint64_t> counts(const char* key) const {
    std::vector<std::uint64_t> all;
    const auto* list = given(key) ? table_.get(key)->as_array() : nullptr;
    if (list == nullptr) return all;
    for (const auto& item : *list) all.push_back(parse(item, key, 1, 1'000'000));
    return all;
  }

  std::string text(const char* key) const { return flag_text(*table_.get(key), place(key)); }

  std::string choice(const char* key, const std::vector<std::string>& words) const {
    if (!given(key)) return words.front();
    const std::string word = text(key);
    if (contains(words, word)) return word;
    refuse_word(key, word, words, did_you_mean(nearest(word, words), "use one of these"));
  }

  [[noreturn]] void refuse_word(const char* key, const std::string& word,
                                const std::vector<std::string>& words,
                                const std::string& remedy) const {
    refuse(place(key), fmt::format("{} is none of {}", in_quotes(word), fmt::join(words, ", ")),
           remedy);
  }

  void require_not_given(const char* key, const std::string& why, const std::string& remedy) const {
    if (given(key)) refuse(place(key), why, remedy);
  }

 private:
  std::uint64_t parse(const toml::node& node, const char* key, std::uint64_t min,
                      std::uint64_t max) const {
    try {
      return parse_count(flag_text(node, place(key)), min, max);
    } catch (const ConfigError& error) {
      throw ConfigError(place(key) + ": " + error.what());
    }
  }

  std::string path_;
  const toml::table& table_;
};

double number_in(const toml::table& table, const char* key, const std::string& place) {
  const auto* node = table.get(key);
  const auto number = node == nullptr ? std::nullopt : node->value<double>();
  if (number && std::isfinite(*number)) return *number;
  if (node != nullptr && node->is_integer()) {
    refuse(place, std::string(key) + " is beyond 2^53", "give a number that is exact as a double");
  }
  refuse(place, std::string(key) + " is not a number",
         "write { min = 0.001, max = 0.1, log = true }");
}

Interval interval_in(const std::string& path, const std::string& place, const toml::table& table) {
  require_known(path, table, {"min", "max", "log"});
  Interval interval;
  interval.min = number_in(table, "min", place);
  interval.max = number_in(table, "max", place);
  interval.is_whole = table.get("min")->is_integer() && table.get("max")->is_integer();
  if (const auto* log = table.get("log"); log != nullptr) {
    if (!log->is_boolean()) refuse(place, "log is neither true nor false", "use log = true");
    interval.is_log = log->as_boolean()->get();
  }
  if (interval.min >= interval.max) {
    refuse(place, fmt::format("min {:g} is not below max {:g}", interval.min, interval.max),
           "give a smaller min, or a list of values");
  }
  if (interval.is_log && interval.min <= 0) {
    refuse(place, fmt::format("min {:g} has no logarithm", interval.min),
           "give a min above 0, or leave log out");
  }
  return interval;
}

Varied varied_in(const std::string& path, const TomlSetting& given, bool is_random) {
  const std::string& name = given.setting.name;
  const std::string place = given.place + ": " + name;
  const bool is_of_job = given.setting.scope == Scope::job || contains(job_settings, name);
  if (is_of_job) {
    refuse(place, "not a setting of a trial", "leave it out of [sweep.settings]");
  }
  Varied varied = {.setting = name, .place = given.place};
  if (const auto* table = given.value.as_table(); table != nullptr) {
    if (!is_random)
      refuse(place, "an interval in a grid", "give a list, or use method = \"random\"");
    varied.interval = interval_in(path, place, *table);
    return varied;
  }
  const auto* list = given.value.as_array();
  if (list == nullptr) {
    refuse(place, "one value does not vary", "write a list, or set it above the table [sweep]");
  }
  if (list->empty()) refuse(place, "an empty list", "give at least one value, or leave it out");
  for (const auto& item : *list) {
    const std::string where = place_of(path, item.source());
    varied.values.push_back({flag_text(item, where + ": " + name), where});
  }
  return varied;
}

std::vector<Varied> all_varied(const std::string& path, const toml::table& sweep, bool is_random) {
  const auto* settings = sweep.get("settings");
  const auto* table = settings == nullptr ? nullptr : settings->as_table();
  if (table == nullptr || table->empty()) {
    refuse(path, "no trials: the table [sweep.settings] is missing or empty",
           "write [sweep.settings] with learning-rate = [0.001, 0.01], for example");
  }
  std::vector<std::pair<toml::source_position, Varied>> found;  // TOML tables are sorted by name
  for_each_setting(*table, path, [&](const TomlSetting& given) {
    found.emplace_back(given.value.source().begin, varied_in(path, given, is_random));
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.first.line, a.first.column) < std::tuple(b.first.line, b.first.column);
  });
  std::vector<Varied> all;
  all.reserve(found.size());
  for (auto& [position, varied] : found) all.push_back(std::move(varied));
  return all;
}

/// In [0, 1), with 53 bits.
double unit_number(std::uint64_t seed, std::uint64_t trial, const std::string& setting) {
  constexpr int word = 32;
  const std::uint64_t name = hash_of(setting);
  const auto words =
      Philox::at({static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> word),
                  static_cast<std::uint32_t>(trial), static_cast<std::uint32_t>(trial >> word)},
                 philox_key(seed_for(RandomUse::sweep, seed)));
  return std::ldexp(static_cast<double>((std::uint64_t{words[0]} << word | words[1]) >> 11), -53);
}

std::string number_text(const Interval& interval, double unit) {
  const double end = interval.max + (interval.is_whole ? 1 : 0);
  const double number =
      interval.is_log
          ? std::exp(std::log(interval.min) + unit * (std::log(end) - std::log(interval.min)))
          : interval.min + unit * (end - interval.min);
  if (interval.is_whole) {
    return fmt::format("{:.0f}", std::clamp(std::floor(number), interval.min, interval.max));
  }
  const double rounded = std::stod(fmt::format("{:.4g}", number));
  return shortest(std::clamp(rounded, interval.min, interval.max));
}

Value drawn(const Varied& varied, double unit) {
  if (varied.values.empty()) return {number_text(varied.interval, unit), varied.place};
  const auto count = static_cast<double>(varied.values.size());
  return varied.values[static_cast<std::size_t>(unit * count)];
}

using Choice = std::vector<Value>;  // of each varied setting

std::vector<Choice> grid(const std::string& path, const std::vector<Varied>& all) {
  std::vector<Choice> choices(1);
  for (const Varied& varied : all) {
    if (choices.size() * varied.values.size() > max_trials) {
      refuse(path, "the grid has more than " + grouped(max_trials) + " trials",
             "give fewer values, or use method = \"random\"");
    }
    std::vector<Choice> longer;
    for (const Choice& choice : choices) {
      for (const Value& value : varied.values) {
        longer.push_back(choice);
        longer.back().push_back(value);
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

std::vector<Choice> random(std::uint64_t trials, std::uint64_t seed,
                           const std::vector<Varied>& all) {
  std::vector<Choice> choices(trials);
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    for (const Varied& varied : all) {
      choices[trial].push_back(drawn(varied, unit_number(seed, trial + 1, varied.setting)));
    }
  }
  return choices;
}

TrialSettings settings_of(const std::vector<Varied>& all, const Choice& choice,
                          const RunConfig& base) {
  TrialSettings settings;
  RunConfig config = base;
  for (std::size_t i = 0; i < all.size(); ++i) {
    set_value(config, choice[i].place, all[i].setting, choice[i].text);
    settings.emplace_back(all[i].setting, choice[i].text);
  }
  return settings;
}

/// The epochs of a trial grow from rung to rung, so nothing may depend on their number.
void require_halvable(const std::string& place, const Sweep& sweep, const RunConfig& base,
                      bool has_epochs) {
  if (base.steps)
    refuse(place, "`steps` beside halving", "leave `steps` out: `rungs` say how long");
  for (const TrialSettings& trial : sweep.trials) {
    for (const auto& [setting, value] : trial) {
      if (setting != "epochs" && setting != "steps") continue;
      refuse(place, setting + " varies beside halving", "leave it out: `rungs` say how long");
    }
    const std::string schedule = with_settings(base, trial).schedule;
    if (schedule != "linear" && schedule != "cosine") continue;
    refuse(place, "halving with schedule " + schedule + ", which depends on the number of epochs",
           "use schedule constant, step or exponential");
  }
  if ((has_epochs || base.epochs != RunConfig().epochs) && base.epochs != sweep.rungs.back()) {
    refuse(place,
           fmt::format("halving to {} beside epochs = {}", counted(sweep.rungs.back(), "epoch"),
                       base.epochs),
           "leave epochs out: `rungs` say how long");
  }
}

void read_halving(const Keys& keys, Sweep& sweep, const RunConfig& base, bool has_epochs) {
  if (!keys.given("halving")) {
    keys.require_not_given("rungs", "there is no halving", "add halving = 2, or leave it out");
    return;
  }
  sweep.halving = keys.count("halving", 1, 2, max_trials);
  sweep.rungs = keys.counts("rungs");
  const bool ascends =
      std::is_sorted(sweep.rungs.begin(), sweep.rungs.end(), [](auto a, auto b) { return a <= b; });
  if (sweep.rungs.size() < 2 || !ascends) {
    refuse(keys.given("rungs") ? keys.place("rungs") : keys.place("halving"),
           "halving needs at least two rungs, in ascending order",
           "write rungs = [1, 2, 4], in epochs");
  }
  require_halvable(keys.place("halving"), sweep, base, has_epochs);
}

/// The metric of [sweep], with its set: "loss" -> "testing loss". Throws ConfigError for one that a
/// trial of this configuration does not have.
std::string metric_in(const Keys& keys, const RunConfig& config) {
  if (!keys.given("metric")) return Sweep().metric;
  std::vector<std::string> figures = {"score", "accuracy", "loss", "R2"};
  if (config.metrics != "none") {
    for (std::string& name : split_list(config.metrics)) figures.push_back(std::move(name));
  }
  std::vector<std::string> metrics;
  for (const char* set : {"testing ", "validation "}) {
    for (const std::string& figure : figures) metrics.push_back(set + figure);
  }
  const std::string text = keys.text("metric");
  if (contains(figures, text)) return "testing " + text;
  if (contains(metrics, text)) return text;
  const std::string figure = text.substr(text.find_last_of(" _") + 1);
  std::optional<std::string> guess;
  if (figure.size() > 2 || lower_case(figure) == "r2") {  // any two letters are near R2
    guess = nearest(figure, figures);
    if (guess) guess->insert(0, text.starts_with("val") ? "validation " : "testing ");
  }
  keys.refuse_word(
      "metric", text, metrics,
      did_you_mean(guess, "use one of these, or name another in the setting `metrics`, too"));
}

/// Throws ConfigError for a metric that a trial does not have, or losses of different kinds.
void read_metric(const Keys& keys, Sweep& sweep, const RunConfig& base) {
  const RunConfig first = with_settings(base, sweep.trials.front());
  for (const TrialSettings& trial : sweep.trials) {
    const RunConfig config = with_settings(base, trial);
    sweep.metric = metric_in(keys, config);
    if (is_of_validation(sweep.metric) && !config.validation) {
      refuse(keys.place("metric"), "there is no validation set",
             "add validation = 0.1 above the table [sweep], or use a testing metric");
    }
    if (figure_of(sweep.metric) != "loss") continue;
    for (const char* name : settings_of_loss) {
      const Setting& setting = setting_named(name, name);
      if (setting.literal(config) == setting.literal(first)) continue;
      refuse(keys.place("metric"),
             fmt::format("the losses of the trials cannot be compared: {} varies", name),
             "use another metric, such as \"testing score\"");
    }
  }
}

/// Throws ConfigError for settings that the sweep sets itself.
void require_free(const std::string& path, const RunConfig& base) {
  for (const Setting& setting : settings()) {
    if (!is_of_sweep(setting.name) || is_default(setting, base)) continue;
    refuse(path, setting.name + ": not a setting of a sweep",
           "leave it out: trials are recorded in --out, and the same command continues them");
  }
}

}  // namespace

bool is_of_sweep(const std::string& setting) {
  return setting == "run-dir" || setting == "resume" || setting == "survive" ||
         setting == "snapshot-every";
}

bool is_of_validation(const std::string& metric) { return metric.starts_with("validation "); }

std::string figure_of(const std::string& metric) {
  const std::string name = metric.substr(metric.find(' ') + 1);
  return name == "accuracy" || name == "R2" ? "score" : name;
}

bool has_metric(bool is_regression, const std::string& metric) {
  return !metric.ends_with(is_regression ? " accuracy" : " R2");
}

RunConfig with_settings(RunConfig base, const TrialSettings& settings) {
  for (const auto& [name, value] : settings) set_value(base, "--" + name, name, value);
  return base;
}

Sweep read_sweep(const std::string& path, const std::string& text, const RunConfig& base,
                 std::uint64_t ranks, bool has_epochs) {
  require_free(path, base);
  const toml::table file = parse_toml(path, text);
  const auto* node = file.get(sweep_table);
  const auto* table = node == nullptr ? nullptr : node->as_table();
  if (table == nullptr) {
    refuse(path, "no trials: there is no table [sweep]",
           "see configs/sweep.toml; `lockstep train` takes a file without it");
  }
  const Keys keys(path, *table);
  Sweep sweep;
  sweep.group = keys.count("group", 1, 1, 1U << 20U);
  if (ranks % sweep.group != 0) {
    refuse(keys.place("group"),
           fmt::format("{} cannot be cut into groups of {}", counted(ranks, "rank"), sweep.group),
           "use a divisor of the number of ranks, or start other ranks");
  }
  const bool is_random = keys.choice("method", {"grid", "random"}) == "random";
  if (is_random && !keys.given("trials")) {
    refuse(path, "method random without trials", "add trials = 12 to [sweep]");
  }
  if (!is_random) {
    for (const char* key : {"trials", "seed"}) {
      keys.require_not_given(key, "of a grid, which has every combination",
                             "leave it out, or use method = \"random\"");
    }
  }
  const auto all = all_varied(path, *table, is_random);
  const std::uint64_t seed = keys.count("seed", 1, 0, std::numeric_limits<std::int64_t>::max());
  const auto choices =
      is_random ? random(keys.count("trials", 0, 1, max_trials), seed, all) : grid(path, all);
  sweep.trials.reserve(choices.size());
  for (const Choice& choice : choices) sweep.trials.push_back(settings_of(all, choice, base));
  read_metric(keys, sweep, base);
  read_halving(keys, sweep, base, has_epochs || file.contains("epochs"));
  return sweep;
}

}  // namespace lockstep::apps
