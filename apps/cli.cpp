#include "apps/cli.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cxxopts.hpp>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/flag_names.hpp"
#include "apps/run_file.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/launch_check.hpp"
#include "lockstep/launch/watchdog.hpp"

namespace lockstep::apps {
namespace {

cxxopts::Options options_of(const Syntax& syntax) {
  cxxopts::Options options(syntax.command, syntax.does);
  options.custom_help(syntax.note.empty() ? syntax.usage : syntax.usage + "   " + syntax.note);
  const auto value_of = [](const auto& setting) {
    auto value = cxxopts::value<std::string>();
    return setting.argument == "true|false" ? value->implicit_value("true") : value;
  };
  const RunConfig defaults;
  for (const auto& setting : settings()) {
    if (!syntax.takes(setting.name)) continue;
    const auto other = syntax.other_default.find(setting.name);
    const std::string otherwise =
        other == syntax.other_default.end() ? flag_value(setting, defaults) : other->second;
    const std::string help = syntax.help_of(setting) + " [" + otherwise + "]";
    options.add_options(setting.group)(setting.name, help, value_of(setting), setting.argument);
  }
  if (!syntax.settings.empty()) {
    options.add_options()(set_flag.name, set_flag.help, cxxopts::value<std::string>(),
                          set_flag.argument);
  }
  for (const auto& flag : syntax.flags) {
    if (flag.argument.empty()) {
      options.add_options()(flag.name, flag.help);
      continue;
    }
    auto value = cxxopts::value<std::string>();
    if (!flag.otherwise.empty()) value->default_value(flag.otherwise);
    options.add_options()(flag.name, flag.help, value, flag.argument);
  }
  options.add_options()("h,help", "show this");
  options.add_options("hidden")("operand", "", cxxopts::value<std::vector<std::string>>());
  options.positional_help("");
  options.parse_positional({"operand"});
  return options;
}

std::pair<std::string, std::string> setting_in(const Syntax& syntax, const std::string& text) {
  auto [key, value] = key_and_value("--set " + text, text);
  setting_named("--set " + text, key);
  if (!syntax.takes(key)) {
    throw ConfigError("--set " + text + ": `" + syntax.command + "` has no setting '" + key + "'",
                      "`" + syntax.command + " --help` lists those that it has");
  }
  return {key, value};
}

Arguments arguments_of(const Syntax& syntax, const cxxopts::ParseResult& result) {
  Arguments arguments;
  arguments.has_sweep = syntax.has_sweep;
  for (const auto& flag : syntax.flags) arguments.defaults.emplace_back(flag.name, flag.otherwise);
  for (const auto& argument : result.arguments()) {
    const std::string& key = argument.key();
    const std::string& value = argument.value();
    const auto flag = std::find_if(syntax.flags.begin(), syntax.flags.end(),
                                   [&](const Flag& one) { return one.name == key; });
    if (key == "help") {
      arguments.help = true;
    } else if (flag != syntax.flags.end()) {
      if (value.empty() && !flag->argument.empty()) {
        throw ConfigError("--" + key + ": the value is empty",
                          "give " + flag->argument + ", or leave --" + key + " out");
      }
      arguments.flags.emplace_back(key, value);
    } else if (key == "set") {
      arguments.settings.push_back(setting_in(syntax, value));
    } else if (key != "operand") {
      arguments.settings.emplace_back(key, value);
    } else if (value.empty()) {
      throw ConfigError("the " + syntax.operand + " is empty", "give one, or leave it out");
    } else {
      arguments.operands.push_back(value);
    }
  }
  if (arguments.operands.size() > syntax.operands) {
    std::string problem = fmt::format("{}: {}", counted(arguments.operands.size(), syntax.operand),
                                      fmt::join(arguments.operands, " "));
    if (syntax.operands > 0) problem += fmt::format("; at most {} can be given", syntax.operands);
    throw ConfigError(problem, fmt::format("write `{} {}`", syntax.command, syntax.usage));
  }
  return arguments;
}

/// The flags' headings in the order of --help; "" for the command's own.
std::vector<std::string> shown_groups(const cxxopts::Options& options) {
  std::vector<std::string> groups = {""};
  const auto there = options.groups();
  for (const Setting& setting : settings()) {
    if (setting.group == groups.back()) continue;
    if (std::find(there.begin(), there.end(), setting.group) == there.end()) continue;
    groups.push_back(setting.group);
  }
  return groups;
}

[[noreturn]] void refuse(const Syntax& syntax, const std::string& word) {
  const auto begin = word.find_first_not_of('-');
  if (begin == 0 || begin == std::string::npos) throw ConfigError("unexpected '" + word + "'");
  std::vector<std::string> names;
  for (const Setting& setting : settings()) {  // first, because they are likelier
    if (syntax.takes(setting.name)) names.push_back(setting.name);
  }
  if (!syntax.settings.empty()) names.push_back(set_flag.name);
  for (const Flag& flag : syntax.flags) names.push_back(flag.name);
  names.emplace_back("help");
  const auto length =
      word.find('=') == std::string::npos ? std::string::npos : word.find('=') - begin;
  const auto guess = suggestion(word.substr(begin, length), names);
  throw ConfigError("unknown flag '" + word + "'",
                    guess ? "did you mean '--" + *guess + "'?"
                          : "`" + syntax.command + " --help` lists all flags");
}

/// Throws for a value of a flag that takes none: cxxopts accepts some, and does not name the flag
/// when it refuses others.
void require_no_values(const Syntax& syntax, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") return;
    const auto equals = word.find('=');
    if (!word.starts_with("--") || equals == std::string::npos) continue;
    const std::string name = word.substr(2, equals - 2);
    const auto is_it = [&](const Flag& flag) { return flag.argument.empty() && flag.name == name; };
    if (name != "help" && std::none_of(syntax.flags.begin(), syntax.flags.end(), is_it)) continue;
    throw ConfigError(
        "--" + name + ": takes no value, but has " + in_quotes(word.substr(equals + 1)),
        "give --" + name + " alone, or leave it out");
  }
}

/// What --help prints behind the name of a flag, empty if it takes no value; nullopt if the command
/// has no such flag.
std::optional<std::string> argument_of(const Syntax& syntax, const std::string& name) {
  if (name == "help") return "";
  if (name == set_flag.name && !syntax.settings.empty()) return set_flag.argument;
  if (syntax.takes(name)) return find_setting(name)->argument;
  for (const Flag& flag : syntax.flags) {
    if (flag.name == name) return flag.argument;
  }
  return std::nullopt;
}

/// Throws for `word`, a flag whose value is missing.
[[noreturn]] void refuse_missing_value(const Syntax& syntax, const std::string& word) {
  const std::string name = word.substr(word.find_first_not_of('-'));
  const std::string argument = argument_of(syntax, name).value_or("");
  if (argument.empty()) refuse(syntax, word);
  throw ConfigError("--" + name + ": no value", "write --" + name + " " + argument);
}

/// Throws for a flag that another flag follows where its value should be: cxxopts takes any word
/// for the value. Throws for a switch whose value follows a space: cxxopts takes it for an operand.
void require_values(const Syntax& syntax, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") return;
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(2);
    const std::string argument = argument_of(syntax, name).value_or("");
    const std::string& next = words[i + 1];
    if (syntax.takes(name) && argument == "true|false") {
      const bool is_true = next == "true" || next == "yes";
      if (!is_true && next != "false" && next != "no") continue;
      throw ConfigError(word + ": its value '" + next + "' follows a space",
                        "write " + word + (is_true ? "=true" : "=false"));
    }
    if (argument.empty()) continue;
    if (next == "-h" || next.starts_with("--")) refuse_missing_value(syntax, word);
    ++i;  // `next` is the value
  }
}

cxxopts::ParseResult parse_words(cxxopts::Options& options, const Syntax& syntax,
                                 const std::vector<std::string>& words) {
  require_no_values(syntax, words);
  require_values(syntax, words);
  const std::string& command = syntax.command;
  std::vector<const char*> argv = {command.c_str()};
  for (const auto& word : words) argv.push_back(word.c_str());
  options.allow_unrecognised_options();  // cxxopts does not report the nearest valid flag
  try {
    auto result = options.parse(static_cast<int>(argv.size()), argv.data());
    if (!result.unmatched().empty()) refuse(syntax, result.unmatched().front());
    const auto dashes = std::find(words.begin(), words.end(), "--");
    for (const auto& argument : result.arguments()) {  // cxxopts takes --n for an operand
      const std::string& word = argument.value();
      const bool is_operand = argument.key() == "operand" && word.starts_with("--");
      if (is_operand && std::find(words.begin(), dashes, word) != dashes) {
        refuse(syntax, word);
      }
    }
    return result;
  } catch (const cxxopts::exceptions::missing_argument&) {
    refuse_missing_value(syntax, words.back());
  } catch (const cxxopts::exceptions::exception& error) {
    throw ConfigError(error.what(), "`" + command + " --help` lists all flags");
  }
}

}  // namespace

std::pair<std::string, std::string> key_and_value(const std::string& place,
                                                  const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError(place + (equals == 0 ? ": there is no key before '='" : ": there is no '='"),
                      "write KEY=VALUE");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string run_dir_in(const std::vector<std::string>& command) {
  const std::string flag = "--run-dir";
  std::string found;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const bool has_next = i + 1 < command.size() && !command[i + 1].starts_with("--");
    if (command[i] == flag && has_next) found = command[i + 1];
    if (command[i].starts_with(flag + "=")) found = command[i].substr(flag.size() + 1);
  }
  return found;
}

void record_exit_code(const std::string& run, int code, bool is_own) {
  if (run.empty() || run == "auto") return;
  const auto flight = std::filesystem::path(run) / "flight";
  try {
    if (!is_own) require_not_locked(run);
    make_folder(flight);
    launching::record_exit_code(flight, code);
  } catch (const Error& error) {
    if (code == 0) launching::print(error);  // else the error that ends the job is reported
  }
}

RunConfig config_over(const RunConfig& base, const Arguments& arguments) {
  RunConfig config = base;
  if (!arguments.run_file_text.empty()) {
    apply_run_file(config, arguments.operand(), arguments.run_file_text, arguments.has_sweep);
  }
  for (const auto& [key, value] : arguments.settings) set_value(config, "--" + key, key, value);
  return config;
}

std::uint64_t flag_count(const std::string& flag, const std::string& text, std::uint64_t min,
                         std::uint64_t max) {
  try {
    return parse_count(text, min, max);
  } catch (const ConfigError& error) {
    throw ConfigError("--" + flag + ": " + error.what());
  }
}

Syntax run_file_syntax(std::string command, std::string does) {
  Syntax syntax;
  syntax.command = std::move(command);
  syntax.does = std::move(does);
  syntax.usage = "[CONFIG.toml] [flags]";
  syntax.note = "(flags override the file, the file the defaults)";
  syntax.operand = "run file";
  syntax.run_file = true;
  return syntax;
}

void Syntax::take_table_settings() {
  for (auto& name : table_settings()) settings.push_back(std::move(name));
}

bool Syntax::takes(const std::string& setting) const { return contains(settings, setting); }

const std::string& Syntax::help_of(const Setting& setting) const {
  const auto other = other_help.find(setting.name);
  return other == other_help.end() ? setting.help : other->second;
}

void require_split_for_seed(const Arguments& arguments, const RunConfig& config) {
  if (!arguments.given("seed") || config.test_split) return;
  throw ConfigError("--seed without --test-split, which alone depends on it",
                    "leave --seed out, or give --test-split");
}

std::string Arguments::value(const std::string& name) const {
  std::string last;
  for (const auto* pairs : {&defaults, &settings, &flags}) {
    for (const auto& [key, value] : *pairs) {
      if (key == name) last = value;
    }
  }
  return last;
}

std::optional<std::uint64_t> Arguments::number(const std::string& flag, std::uint64_t min,
                                               std::uint64_t max) const {
  const std::string text = value(flag);
  if (text.empty() && !given(flag)) return std::nullopt;
  return flag_count(flag, text, min, max);
}

bool Arguments::given(const std::string& name) const {
  const auto named = [&](const auto& pair) { return pair.first == name; };
  return std::any_of(settings.begin(), settings.end(), named) ||
         std::any_of(flags.begin(), flags.end(), named);
}

Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words) {
  auto options = options_of(syntax);
  return arguments_of(syntax, parse_words(options, syntax, words));
}

namespace {

/// The text of --help.
std::string help_text(const Syntax& syntax) {
  const auto options = options_of(syntax);
  const std::string example =
      syntax.example.empty() ? "" : "\nExample:\n  " + syntax.example + "\n";
  return options.help(shown_groups(options)) + example;
}

/// The configuration, compared between all ranks. Collective.
/// Throws comm::AgreedError (2) if the words of any rank are invalid, or if configurations differ.
RunConfig agreed_config(const Syntax& syntax, Arguments& arguments, comm::Communicator& comm) {
  std::string text;
  const std::string run_file = syntax.run_file ? arguments.operand() : "";
  comm::together(comm, [&] {
    if (comm.rank() == 0) text = read_run_file(run_file);
  });
  arguments.run_file_text = comm::broadcast_text(comm, text);
  RunConfig config;
  comm::together(comm, [&] { config = config_over(RunConfig(), arguments); });
  auto mine = key_values(config);
  mine.emplace_back("the " + syntax.operand, arguments.operand());
  for (const auto& flag : syntax.flags) {
    const bool given = arguments.given(flag.name);
    mine.emplace_back("--" + flag.name,
                      given ? "given " + arguments.value(flag.name) : "not given");
  }
  if (!syntax.any_build) mine.emplace_back("the lockstep binary", to_hex(executable_hash()));
  comm::require_equal(comm, "the configuration", mine,
                      "start all ranks with the same flags, " + syntax.operand + " and binary");
  return config;
}

/// Throws comm::AgreedError (2) for settings that contradict the launch; the same on every rank.
void require_fitting_launch(const RunConfig& config, const comm::Communicator& comm) {
  const bool asks_for_threads = config.backend == "threads" || config.ranks != 1;
  if (!asks_for_threads) return;
  throw comm::AgreedError(
      ExitCode::usage,
      fmt::format("ranks as threads (--ranks, --backend threads) under a launcher, which started "
                  "{}",
                  counted(static_cast<std::uint64_t>(comm.size()), "rank")),
      "leave --ranks out, or give --ranks 1 where a run file has more: the launcher sets the "
      "number; or start without it");
}

/// Throws ConfigError for `backend` mpi or shared with several ranks but no launcher.
void require_one_rank(const RunConfig& config) {
  if (config.ranks == 1) return;
  throw ConfigError(
      fmt::format("backend {} with ranks = {}, but no launcher", config.backend, config.ranks),
      fmt::format("start it with `mpirun -n {}`, or leave --backend out to use threads",
                  config.ranks));
}

}  // namespace

bool is_rank_0() {
  const auto launch = comm::detect_launcher();
  return !launch || launch->rank == 0;
}

int run_on_rank_0(const Syntax& syntax, const std::vector<std::string>& words,
                  const std::function<int(const Arguments&)>& command) {
  if (!is_rank_0()) return static_cast<int>(ExitCode::success);
  const Arguments arguments = parse_arguments(syntax, words);
  if (!arguments.help) return command(arguments);
  fmt::print("{}", help_text(syntax));
  return static_cast<int>(ExitCode::success);
}

namespace {

/// The time for MPI to start: that of the start of training, as far as the flags say; the run file
/// is not read yet.
double start_seconds(const Arguments& arguments) {
  RunConfig config;
  try {
    set_value(config, "--timeout", "timeout", arguments.value("timeout"));
  } catch (const ConfigError&) {  // not given; or refused later
  }
  return launching::start_limit(static_cast<double>(config.timeout));
}

}  // namespace

int run_on_ranks(const Syntax& syntax, const std::vector<std::string>& words,
                 const RankCommand& command) {
  const auto launch = comm::detect_launcher();
  Arguments arguments;
  std::exception_ptr parse_error;
  try {
    arguments = parse_arguments(syntax, words);
  } catch (const ConfigError&) {
    parse_error = std::current_exception();
  }
  if (arguments.help) {
    if (is_rank_0()) fmt::print("{}", help_text(syntax));
    return static_cast<int>(ExitCode::success);
  }
  if (launching::is_rank(launch)) {
    return launching::run_over_mpi(
        launch,
        [&](comm::MpiCommunicator& mpi, const auto& connected) {
          try {
            comm::together(mpi, [&] {
              if (parse_error) std::rethrow_exception(parse_error);
            });
            const auto config = agreed_config(syntax, arguments, mpi);
            require_fitting_launch(config, mpi);
            std::unique_ptr<comm::Communicator> shared;
            if (!syntax.over_mpi) {
              shared = launching::share_nodes(config.backend, mpi, config.survive);
              launching::warn_of_problems(shared ? *shared : mpi);
            }
            connected();
            command(arguments, config, shared ? *shared : mpi);
          } catch (const comm::AgreedError& error) {
            if (mpi.rank() == 0 && comm::launcher_recovers()) {  // mpirun returns another code
              record_exit_code(run_dir_in(words), launching::exit_code(error));
            }
            throw;
          }
        },
        start_seconds(arguments),
        [&] {
          if (!comm::launcher_recovers()) return;
          record_exit_code(run_dir_in(words), static_cast<int>(ExitCode::timeout));
        });
  }
  if (parse_error) std::rethrow_exception(parse_error);
  comm::SelfCommunicator self;
  const auto config = agreed_config(syntax, arguments, self);
  if (!arguments.given("ranks")) launching::require_no_batch_shell(launch, syntax.command);
  if (config.backend == "mpi" || config.backend == "shared") {
    require_one_rank(config);
    return launching::run_over_mpi(
        std::nullopt, [&](comm::MpiCommunicator& mpi, const auto& connected) {
          const auto shared = launching::share_nodes(config.backend, mpi);
          connected();
          command(arguments, config, shared ? *shared : mpi);
        });
  }
  launching::run_over_threads(config.ranks, [&](comm::Communicator& comm) {
    if (!syntax.over_mpi && comm.size() > 1) launching::warn_of_problems(comm);
    command(arguments, config, comm);
  });
  return static_cast<int>(ExitCode::success);
}

}  // namespace lockstep::apps
