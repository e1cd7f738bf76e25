#include "apps/arguments.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "apps/words.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

cxxopts::Options train_options() {
  cxxopts::Options options("lockstep train", "Trains a network on all ranks of this job.");
  options.custom_help("[CONFIG.toml] [flags]   (flags override the file, the file the defaults)");
  for (const auto& setting : train::settings()) add_setting(options, setting);
  options.add_options()("set", "another way to give a setting", cxxopts::value<std::string>(),
                        "KEY=VALUE")("print-config", "print the resolved run file and end")(
      "dry-run", "check configuration, data and agreement between ranks, and end")("h,help",
                                                                                   "show this");
  options.add_options("hidden")("config", "", cxxopts::value<std::vector<std::string>>());
  options.positional_help("");
  options.parse_positional({"config"});
  options.allow_unrecognised_options();
  return options;
}

TrainArguments taken(const cxxopts::ParseResult& result) {
  TrainArguments arguments;
  for (const auto& argument : result.arguments()) {
    const std::string& key = argument.key();
    const std::string& value = argument.value();
    if (key == "help") {
      arguments.help = true;
    } else if (key == "print-config") {
      arguments.print_config = true;
    } else if (key == "dry-run") {
      arguments.dry_run = true;
    } else if (key == "set") {
      arguments.settings.push_back(key_value(value));
    } else if (key != "config") {
      arguments.settings.emplace_back(key, value);
    } else if (arguments.run_file.empty()) {
      arguments.run_file = value;
    } else {
      throw ConfigError("two run files: " + arguments.run_file + " and " + value, "give one");
    }
  }
  return arguments;
}

}  // namespace

std::string TrainArguments::value(const std::string& name, const std::string& otherwise) const {
  std::string last = otherwise;
  for (const auto& [key, value] : settings) {
    if (key == name) last = value;
  }
  return last;
}

TrainArguments parse_train_arguments(const std::vector<std::string>& words) {
  auto options = train_options();
  const auto result = parse_words(options, "lockstep train", words);
  std::vector<std::string> names = {"set", "print-config", "dry-run", "help"};
  for (const auto& setting : train::settings()) names.push_back(setting.name);
  refuse_unknown(result.unmatched(), names, "lockstep train");
  return taken(result);
}

void add_setting(cxxopts::Options& options, const train::Setting& setting) {
  auto value = cxxopts::value<std::string>();
  if (setting.argument == "true|false") value = value->implicit_value("true");
  const std::string help = setting.help + " [" + setting.literal(train::RunConfig{}) + "]";
  options.add_options()(setting.name, help, value, setting.argument);
}

void refuse_unknown(const std::vector<std::string>& unmatched,
                    const std::vector<std::string>& names, const std::string& command) {
  for (const auto& word : unmatched) {
    const auto begin = word.find_first_not_of('-');
    const auto name = begin == std::string::npos ? "" : word.substr(begin, word.find('=') - begin);
    const auto guess = nearest(name, names);
    throw ConfigError(
        "unknown flag '" + word + "'",
        guess ? "did you mean '--" + *guess + "'?" : "`" + command + " --help` lists all flags");
  }
}

std::pair<std::string, std::string> key_value(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) {
    throw ConfigError("--set " + text + ": there is no '='", "write --set KEY=VALUE");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string read_run_file(const std::string& path) {
  if (path.empty()) return "";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw ConfigError(path + ": no such run file, or no regular file",
                      "see configs/ for run files, and `lockstep train --help` for flags");
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw ConfigError(path + ": cannot be read", "check its permissions");
  return text.str();
}

std::string train_help() { return train_options().help({""}); }

}  // namespace lockstep::apps
