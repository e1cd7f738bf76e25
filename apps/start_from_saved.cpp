#include "apps/start_from_saved.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/run_file.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/table.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/run_directory.hpp"

namespace lockstep::apps {

// --resume

namespace {

/// The scope of a setting, or of the run file's layers.
Scope scope_of(const std::string& name) {
  const Setting* const setting = find_setting(name);
  return setting == nullptr ? Scope::fixed : setting->scope;
}

/// True for a setting of which a continued run has the value of its config.toml. `on-nonfinite` is
/// one: a step that it skips ends the run without it.
bool is_of_run(const std::string& name) {
  const Scope scope = scope_of(name);
  return scope == Scope::step || scope == Scope::run;
}

}  // namespace

comm::KeyValues decisive_settings(const RunConfig& config) {
  comm::KeyValues decisive;
  for (const auto& [name, value] : key_values(config)) {
    const Scope scope = scope_of(name);
    const bool is_free = is_of_run(name) || scope == Scope::launch || scope == Scope::job;
    // Micro-batches cut the sums of allreduce. The setting is of the run, since memory may need it.
    const bool is_by_ranks = scope == Scope::launch || name == "micro-batch";
    const bool is_decisive = !is_free || (is_by_ranks && config.reduction == "allreduce");
    if (is_decisive) decisive.emplace_back(name, value);
  }
  return decisive;
}

namespace {

constexpr const char* absent = "absent";

std::string value_in(const comm::KeyValues& decisive, const std::string& name) {
  const auto found = std::find_if(decisive.begin(), decisive.end(),
                                  [&](const auto& pair) { return pair.first == name; });
  return found == decisive.end() ? absent : found->second;
}

}  // namespace

std::string saved_value(const comm::KeyValues& saved, const std::string& name) {
  static const auto defaults = key_values(RunConfig());
  const std::string value = value_in(saved, name);
  return value == absent ? value_in(defaults, name) : value;
}

namespace {

constexpr const char* training_data = "the training data";
constexpr const char* test_data = "the test data";
constexpr const char* plan_key = "the data plan";
constexpr const char* ranks_key = "the number of ranks";
constexpr const char* backend_key = "the backend";

bool is_setting(const std::string& name) {
  return name == "layer" || find_setting(name) != nullptr;
}

/// The settings to continue a run with, as a run file. With a checkpoint's `state`: its settings,
/// and those of config.toml that only records and checkpoints depend on. Without (null): all of
/// config.toml, but for those of each job.
std::string settings_text(const std::filesystem::path& run, const train::TrainingState* state) {
  const auto is_taken = [&](const std::string& name, const comm::KeyValues& decisive) {
    if (state != nullptr) return is_of_run(name) && value_in(state->settings, name) == absent;
    const Scope scope = scope_of(name);
    if (scope != Scope::launch && scope != Scope::job) return true;
    return value_in(decisive, name) != absent && name != "ranks" && name != "backend";
  };
  std::string text;
  const auto path = run / "config.toml";
  std::error_code ignored;
  if (!run.empty() && std::filesystem::is_regular_file(path, ignored)) {
    const RunConfig recorded = read_config(run);
    const comm::KeyValues decisive = decisive_settings(recorded);
    for (const auto& [name, value] : key_values(recorded)) {
      if (is_taken(name, decisive)) text += name + " = " + value + "\n";
    }
  } else if (!run.empty()) {
    launching::print_warning(path.string() + ": is missing, so the run's data and settings" +
                             (state == nullptr ? "" : " that a checkpoint does not have") +
                             " are the defaults, unless they are given");
  }
  if (state == nullptr) return text;
  for (const auto& [name, value] : state->settings) {
    if (is_setting(name)) text += name + " = " + value + "\n";
  }
  return text;
}

/// The run in runs/ whose folder of checkpoints was changed last; empty if there is none.
std::filesystem::path newest_run() {
  std::filesystem::path newest;
  auto time_of_newest = std::filesystem::file_time_type::min();
  std::error_code ignored;
  for (const auto& entry : list_folder("runs", ignored)) {
    if (entry.is_symlink(ignored)) continue;  // runs/latest
    std::error_code error;
    const auto time = std::filesystem::last_write_time(entry.path() / "checkpoints", error);
    if (error || time < time_of_newest) continue;
    newest = entry.path();
    time_of_newest = time;
  }
  return newest;
}

/// What rank 0 finds, and broadcasts.
struct Found {
  std::filesystem::path run;
  std::filesystem::path checkpoint;
};

/// The newest valid checkpoint of a run; warns of those that are skipped. Empty if the run has no
/// checkpoint; throws DataError if none of them is valid.
std::filesystem::path newest_valid(const std::filesystem::path& run) {
  std::vector<std::string> skipped;
  const auto checkpoint = train::newest_valid_checkpoint(run / "checkpoints", skipped);
  for (const auto& reason : skipped) launching::print_warning("skipped a checkpoint: " + reason);
  if (checkpoint || skipped.empty()) return checkpoint.value_or("");
  throw DataError(run.string() + ": none of its checkpoints is valid",
                  "train from the beginning in another --run-dir; this one is left as it is");
}

/// `path` with links to a name in the same folder followed: runs/latest leads to another run as
/// soon as one begins. Other links stay: they may differ between hosts.
std::filesystem::path without_own_links(const std::filesystem::path& path) {
  std::filesystem::path followed;
  for (const auto& name : path) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(followed / name, error);
    const bool is_own = !error && target.is_relative() && !target.has_parent_path();
    followed /= is_own ? target : name;
  }
  return followed;
}

Found find_auto(const RunConfig& config) {
  const auto run = config.run_dir == "auto" ? newest_run() : without_own_links(config.run_dir);
  std::error_code ignored;
  if (run.empty() || !std::filesystem::is_directory(run / "checkpoints", ignored)) return {};
  const FolderLock not_in_use(run);
  auto checkpoint = newest_valid(run);
  if (checkpoint.empty() && train::is_finished(run)) return {};  // its records stay
  return {run, std::move(checkpoint)};
}

/// True if this job would record in the folder of `run`.
bool records_in(const std::filesystem::path& run, const RunConfig& config) {
  std::error_code ignored;
  return config.run_dir == "auto" || std::filesystem::equivalent(run, config.run_dir, ignored);
}

/// Throws ConfigError if the run that is continued has a newer checkpoint than this one.
void require_newest(const std::filesystem::path& run, const std::filesystem::path& checkpoint) {
  const FolderLock not_in_use(run);
  const auto newest = newest_valid(run);
  if (train::read_description(newest).info.step <= train::read_description(checkpoint).info.step) {
    return;
  }
  throw ConfigError("resume " + checkpoint.string() + ": the run has a later checkpoint, " +
                        newest.filename().string(),
                    "give a --run-dir of its own to the continuation, or use --resume auto");
}

Found find_path(const RunConfig& config) {
  const std::filesystem::path path = without_own_links(without_slash(config.resume));
  std::error_code ignored;
  if (std::filesystem::is_directory(path / "checkpoints", ignored)) {
    std::optional<FolderLock> not_in_use;
    if (records_in(path, config)) not_in_use.emplace(path);
    const auto newest = newest_valid(path);
    if (!newest.empty()) return {path, newest};
  }
  const auto checkpoint = train::find_checkpoint(path);
  train::verify_checkpoint(checkpoint);
  train::read_state(checkpoint);
  const auto run = train::run_of(checkpoint);
  if (!run.empty() && records_in(run, config)) require_newest(run, checkpoint);
  return {run, checkpoint};
}

/// The state in a checkpoint. Throws ConfigError for one that Replica::save() wrote.
train::TrainingState state_of_run(const std::filesystem::path& checkpoint) {
  train::TrainingState state = train::read_state(checkpoint);
  if (!state.settings.empty()) return state;
  throw ConfigError(
      "--resume: " + checkpoint.string() + ": was saved by a program, without settings and data",
      "continue it there with Replica::restore(), or start from its weights with --init");
}

/// "NAME is VALUE, but the checkpoint was trained with BEFORE"; of lists of layers only those that
/// are first different.
std::string difference_of(const std::string& name, const std::string& value,
                          const std::string& before) {
  const auto text = [](const std::string& what, std::string_view is, std::string_view was) {
    return fmt::format("{} is {}, but the checkpoint was trained with {}", what, is, was);
  };
  constexpr std::string_view none = "none";
  constexpr std::string_view end = "}";
  if (!value.starts_with("[{") || !before.starts_with("[{")) return text(name, value, before);
  std::string_view is = value;
  std::string_view was = before;
  for (std::size_t number = 1;; ++number) {
    const auto next = [&](std::string_view& list) {
      const std::size_t begin = list.find('{');
      if (begin == std::string_view::npos) return none;
      const std::string_view layer = list.substr(begin, list.find(end, begin) + 1 - begin);
      list.remove_prefix(begin + layer.size());
      return layer;
    };
    const std::string_view layer = next(is);
    const std::string_view other = next(was);
    if (layer != other) return text(fmt::format("{} {}", name, number), layer, other);
    if (layer == none) return text(name, value, before);
  }
}

/// The remedy for other ranks than those of the checkpoint, or another backend.
std::string remedy_of_launch(const comm::KeyValues& saved) {
  std::string flag = saved_value(saved, "backend");
  std::erase(flag, '"');
  const std::string ranks = value_in(saved, ranks_key);
  const std::string backend = value_in(saved, backend_key);
  if (backend == "threads") {
    return fmt::format("start it without a launcher, with --ranks {} --backend {}", ranks, flag);
  }
  const char* const hosts = backend == "shared"                      ? " on one host"
                            : backend.find('+') != std::string::npos ? " on several hosts"
                                                                     : "";
  return fmt::format("start it with `mpirun -n {}`{}, with --backend {}", ranks, hosts, flag);
}

/// The remedy for a value of a setting with which no checkpoint of another one can be continued;
/// empty: `resume-with` permits it.
std::string remedy_if_fixed(const std::string& name, const std::string& value,
                            const comm::KeyValues& saved) {
  if (name == "layer") return "leave the layers out, or train them in a run of their own";
  if (name == "backend") return remedy_of_launch(saved);
  const Scope scope = scope_of(name);
  if (scope == Scope::fixed || scope == Scope::table) {
    return "leave " + name + " out, or train a run of its own";
  }
  if (scope == Scope::init) return "leave " + name + " out: a checkpoint has its own weights";
  if (name == "reduction" && value == "\"allreduce\"") {
    return "leave reduction out: a run with sums of canonical cannot go on with those of allreduce";
  }
  return "";
}

/// Throws ConfigError if a given setting differs from the checkpoint's.
void require_same_settings(const comm::KeyValues& saved, const comm::KeyValues& now,
                           const std::vector<std::string>& meant) {
  for (const auto& [name, value] : now) {
    if (name == "ranks") continue;  // require_same_data() compares how many there are
    const std::string before = saved_value(saved, name);
    if (value == before) continue;
    std::string remedy = remedy_if_fixed(name, value, saved);
    if (remedy.empty()) {
      if (contains(meant, name)) continue;
      remedy = fmt::format(
          "leave --{} out; or write --resume-with {}=VALUE where you mean to change it: results "
          "then differ from those of a run that was never interrupted",
          name, name);
    }
    throw ConfigError("--resume: " + difference_of(name, value, before), remedy);
  }
}

/// Throws ConfigError for a setting that `resume-with` is not for.
void require_of_checkpoint(const std::string& name, const RunConfig& config) {
  const bool is_read_before = name == "ranks" || name == "backend";  // a checkpoint is
  const bool is_decisive = value_in(decisive_settings(config), name) != absent;
  if (is_decisive && !is_read_before) return;
  const auto* const why = is_decisive ? "cannot change with reduction allreduce"
                                      : "does not determine the results, so no checkpoint fixes it";
  throw ConfigError("--resume-with " + name + ": " + why,
                    is_decisive ? "leave it out, and start as many ranks over the same backend"
                                : "give --" + name + " itself");
}

}  // namespace

std::optional<Resume> find_resume(const Arguments& arguments, const RunConfig& config,
                                  comm::Communicator& comm) {
  if (config.resume == "none") {
    comm::together(comm, [&] {
      if (!arguments.given("resume-with")) return;
      throw ConfigError("--resume-with without --resume", "give the setting itself");
    });
    return std::nullopt;
  }
  std::string text;
  comm::together(comm, [&] {
    if (comm.rank() != 0) return;
    const Found found = config.resume == "auto" ? find_auto(config) : find_path(config);
    for (const auto& path : {found.run, found.checkpoint}) {
      require_utf8(path.string(), "--resume");
    }
    std::optional<train::RunEnd> end;
    if (!found.run.empty()) end = train::recorded_end(found.run);
    nlohmann::json json = {{"run", found.run.string()},
                           {"checkpoint", found.checkpoint.string()},
                           {"complete", end && end->status == "finished"},
                           {"stopped_early_after", nullptr},
                           {"settings", ""}};
    if (end && end->stopped_early_after) json["stopped_early_after"] = *end->stopped_early_after;
    std::optional<train::TrainingState> state;
    if (!found.checkpoint.empty()) state = state_of_run(found.checkpoint);
    json["settings"] = settings_text(found.run, state ? &*state : nullptr);
    text = json.dump();
  });
  const auto json = nlohmann::json::parse(comm::broadcast_text(comm, text));
  Resume resume;
  resume.run = json["run"].get<std::string>();
  resume.checkpoint = json["checkpoint"].get<std::string>();
  resume.complete = json["complete"].get<bool>();
  if (const auto& step = json["stopped_early_after"]; !step.is_null()) {
    resume.stopped_early_after = step.get<std::uint64_t>();
  }
  comm::together(comm, [&] {
    RunConfig saved;
    const auto source = resume.checkpoint.empty() ? resume.run / "config.toml" : resume.checkpoint;
    apply_run_file(saved, source.string(), json["settings"].get<std::string>());
    resume.config = config_over(saved, arguments);
    resume.config.places = config.places;  // saved settings have no line to name
    std::vector<std::string> meant;
    for (const auto& [flag, value] : arguments.flags) {
      if (flag != "resume-with") continue;
      const auto [key, changed] = key_and_value("--resume-with " + value, value);
      const auto value_of = [name = key](const RunConfig& any) {
        return value_in(decisive_settings(any), name);
      };
      const std::string before = value_of(saved);
      const std::string given = value_of(resume.config);
      set_value(resume.config, "--resume-with", key, changed);
      require_of_checkpoint(key, resume.config);
      // The same command may start a job and continue it, before the change and after it.
      const std::string now = value_of(resume.config);
      if (!resume.checkpoint.empty() && given != before && given != now && now != before) {
        throw ConfigError(
            fmt::format("--resume-with {}: {} is given, too, with another value", value, key),
            "leave one of the two out");
      }
      meant.push_back(key);
    }
    if (resume.checkpoint.empty()) return;
    resume.state = train::read_state(resume.checkpoint);
    require_same_settings(resume.state.settings, decisive_settings(resume.config), meant);
  });
  return resume;
}

comm::KeyValues decisive_of(const RunConfig& config, const std::string& train_identity,
                            const std::string& test_identity, const data::Plan& plan,
                            const comm::Communicator& comm) {
  comm::KeyValues decisive = decisive_settings(config);
  decisive.emplace_back(training_data, to_hex(hash_of(train_identity)));
  decisive.emplace_back(test_data, to_hex(hash_of(test_identity)));
  data::PlanOptions options = plan.options();
  if (options.policy == data::ShardPolicy::data) options.ranks = 1;  // does not affect the batches
  options.max_leaf = data::float32_leaf;  // `precision` is compared by itself
  decisive.emplace_back(plan_key, to_hex(data::Plan(options).digest()));
  if (config.reduction == "allreduce") {
    decisive.emplace_back(ranks_key, std::to_string(comm.size()));
    decisive.emplace_back(backend_key, comm.backend());
  }
  return decisive;
}

std::string resume_text(const Resume& resume, std::uint64_t steps) {
  if (resume.checkpoint.empty()) {
    return resume.run.string() + " has no valid checkpoint: training starts from the beginning";
  }
  return fmt::format("{}, after {}", resume.checkpoint.string(), counted(steps, "step"));
}

bool continues_in_place(const RunConfig& config, const std::optional<Resume>& resume) {
  return resume && !resume->run.empty() && records_in(resume->run, config);
}

std::string run_dir_of(const RunConfig& config, const std::optional<Resume>& resume) {
  return continues_in_place(config, resume) ? resume->run.string() : config.run_dir;
}

void require_same_data(const Resume& resume, const comm::KeyValues& now) {
  if (resume.checkpoint.empty()) return;
  for (const auto& [name, value] : now) {
    if (is_setting(name)) continue;  // compared before
    const std::string before = value_in(resume.state.settings, name);
    if (value == before) continue;
    if (name == plan_key) {
      throw ConfigError(
          "--resume: the data plan of this job deals other records to a step than the "
          "checkpoint's: shard-policy file and off depend on the number of ranks",
          "start as many ranks as before");
    }
    const bool is_data = name == training_data || name == test_data;
    throw ConfigError(fmt::format("--resume: {} {} {}, but the checkpoint was trained with {}",
                                  name, is_data ? "has the hash" : "is", value, before),
                      is_data ? "give the data that the run began with"
                              : remedy_of_launch(resume.state.settings));
  }
}

// --init

namespace {

std::vector<std::string> names_in(const std::string& text) {
  if (text == "none") return {};
  return split_list(text);
}

std::pair<std::string, std::string> names_around_sign(const std::string& text) {
  const auto sign = text.find('=');
  if (sign != std::string::npos && sign > 0 && sign + 1 < text.size()) {
    return {text.substr(0, sign), text.substr(sign + 1)};
  }
  throw ConfigError("`init_map`: " + in_quotes(text) + " is not OURS=THEIRS",
                    "write the name of a layer, =, and its name in the file: 0=backbone.conv1");
}

/// "WHAT 2 is 'c', but was 'b'": the first name that is not the same; nullopt if there is none.
std::optional<std::string> other_name(const std::string& what,
                                      const std::vector<std::string>& before,
                                      const std::vector<std::string>& now) {
  const auto [was, is] = std::mismatch(before.begin(), before.end(), now.begin(), now.end());
  if (was == before.end() && is == now.end()) return std::nullopt;
  return fmt::format("{} {} is {}, but was {}", what, is - now.begin() + 1,
                     is == now.end() ? "missing" : in_quotes(*is),
                     was == before.end() ? "missing" : in_quotes(*was));
}

/// The first column of numbers or words that is not the same; nullopt if there is none.
std::optional<std::string> other_column(const data::TableSchema& before,
                                        const data::TableSchema& now) {
  const auto names_of = [](const data::TableSchema& table) {
    std::vector<std::string> names(table.columns.size());
    std::transform(table.columns.begin(), table.columns.end(), names.begin(),
                   [](const data::TableColumn& column) { return column.name; });
    return names;
  };
  auto other = other_name("column", names_of(before), names_of(now));
  for (std::size_t i = 0; i < before.columns.size() && !other; ++i) {
    other = other_name(fmt::format("column {}, {}: word", i + 1, in_quotes(now.columns[i].name)),
                       before.columns[i].categories, now.columns[i].categories);
  }
  return other;
}

/// Throws ConfigError if features do not mean what they did.
void require_same_columns(const train::SavedNetwork& saved, const data::Source& train) {
  const auto now = train.table();
  const auto& before = saved.info.table;
  if (now == nullptr || before == nullptr) return;
  const auto other = other_column(*before, *now);
  if (!other) return;
  throw ConfigError(
      "`init`: the table is not of the columns of " + saved.folder.string() + ": " + *other,
      "give the same columns in the same order, or `init_fresh=0` for a first layer of its own");
}

/// The names of classes, labels or numbers to predict; empty: there are none. Without a header
/// columns are called by their places.
std::vector<std::string> output_names(const train::CheckpointInfo& info) {
  const auto* const table = info.table.get();
  if (table == nullptr || table->task == data::Task::classification) return info.class_names();
  return table->has_header ? table->label_names() : std::vector<std::string>();
}

/// Throws ConfigError if outputs do not mean what they did.
void require_same_outputs(const train::SavedNetwork& saved, const data::Source& train) {
  const auto before = output_names(saved.info);
  const auto now = output_names({.table = train.table(), .pictures = train.pictures()});
  if (now.empty() || before.empty()) return;
  const auto other = other_name("output", before, now);
  if (!other) return;
  throw ConfigError(
      "`init`: the data has other classes or targets than " + saved.folder.string() + ": " + *other,
      "give those of the run in the same order, or `init_fresh=last` for a last layer of its own");
}

bool has_same_scale(const data::TableColumn& a, const data::TableColumn& b) {
  return a.mean == b.mean && a.deviation == b.deviation;
}

/// How features are scaled otherwise than the checkpoint's; empty: they are not.
std::string other_scale(const train::SavedNetwork& saved, const data::Source& train) {
  if (saved.info.divide_by != train.divisor()) {
    return fmt::format("features are divided by {}, those of the checkpoint were by {}",
                       shortest(train.divisor()), shortest(saved.info.divide_by));
  }
  const auto now = train.table();
  const auto& before = saved.info.table;
  if (now == nullptr || before == nullptr) return "";
  if (now->standardized != before->standardized) {
    return now->standardized ? "columns are standardized, those of the checkpoint were not"
                             : "columns are not standardized, those of the checkpoint were";
  }
  if (!now->standardized ||
      std::equal(now->columns.begin(), now->columns.end(), before->columns.begin(),
                 before->columns.end(), has_same_scale)) {
    return "";
  }
  return "columns are standardized by the means and deviations of this training set, not by the "
         "checkpoint's";
}

/// True if numbers to predict are scaled otherwise than the checkpoint's.
bool has_other_targets(const train::SavedNetwork& saved, const data::Source& train) {
  const auto now = train.table();
  const auto& before = saved.info.table;
  return now != nullptr && before != nullptr && now->is_regression() && before->is_regression() &&
         !std::equal(now->targets.begin(), now->targets.end(), before->targets.begin(),
                     before->targets.end(), has_same_scale);
}

/// The settings `init...`; nullopt for `init=none`. Throws ConfigError for the others without it,
/// and for lists that are not of names.
std::optional<train::InitialWeights> initial_weights(const RunConfig& config) {
  if (config.init == "none") {
    for (const Setting& setting : settings()) {
      if (setting.scope != Scope::init || is_default(setting, config)) continue;
      throw ConfigError(fmt::format("--{} without --init", setting.name),
                        "give --init PATH, or leave it out");
    }
    return std::nullopt;
  }
  train::InitialWeights initial = {.from = config.init};
  if (config.init_layout == "pytorch") initial.layout = train::TensorLayout::pytorch;
  for (const auto& text : names_in(config.init_map)) {
    initial.map.push_back(names_around_sign(text));
  }
  initial.fresh = names_in(config.init_fresh);
  initial.ignored = names_in(config.init_ignore);
  return initial;
}

}  // namespace

std::string start_from(const RunConfig& config, const data::Source& train,
                       train::Replica& replica) {
  comm::Communicator& comm = replica.groups().all;
  std::optional<train::InitialWeights> initial;
  comm::together(comm, [&] { initial = initial_weights(config); });
  if (!initial) return "";
  const train::TakenWeights taken = replica.start_from(*initial);
  const std::string last = std::to_string(replica.shape().layers.size() - 1) + ".";
  const bool takes_last =
      std::any_of(taken.taken.begin(), taken.taken.end(),
                  [&](const std::string& tensor) { return tensor.starts_with(last); });
  comm::together(comm, [&] {
    if (taken.saved && taken.takes_first) require_same_columns(*taken.saved, train);
    if (taken.saved && takes_last) require_same_outputs(*taken.saved, train);
  });
  if (taken.saved && taken.takes_first) {
    const std::string scale = other_scale(*taken.saved, train);
    if (!scale.empty() && comm.rank() == 0) {
      launching::print_warning("--init: " + scale +
                               ": the first layer's weights are for the other");
    }
  }
  if (taken.saved && takes_last && comm.rank() == 0 && has_other_targets(*taken.saved, train)) {
    launching::print_warning(
        "--init: numbers to predict are standardized by the means and deviations of this training "
        "set, not by the checkpoint's: the last layer's weights are for the other");
  }
  std::string text = taken.saved ? fmt::format("{}, after {}", taken.saved->folder.string(),
                                               counted(taken.saved->info.step, "step"))
                                 : taken.file.string();
  text += fmt::format(": {} taken", counted(taken.taken.size(), "tensor"));
  if (!taken.fresh.empty()) text += fmt::format("; at random: {}", fmt::join(taken.fresh, ", "));
  return text;
}

}  // namespace lockstep::apps
