#include "apps/arguments.hpp"

#include "apps/words.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

cxxopts::Options train_options() {
  cxxopts::Options options("lockstep train", "Trains a network on all ranks of this job.");
  options.custom_help("[CONFIG.toml] [flags]   (flags override the file, the file the defaults)");
  const auto value_of = [](const auto& setting) {
    auto value = cxxopts::value<std::string>();
    return setting.argument == "true|false" ? value->implicit_value("true") : value;
  };
  const train::RunConfig defaults;
  for (const auto& setting : train::settings()) {
    const std::string help = setting.help + " [" + setting.literal(defaults) + "]";
    options.add_options()(setting.name, help, value_of(setting), setting.argument);
  }
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

/// Flags that cxxopts did not know come back untouched.
void refuse_unknown(const std::vector<std::string>& unmatched) {
  for (const auto& word : unmatched) {
    const auto begin = word.find_first_not_of('-');
    const auto name = begin == std::string::npos ? "" : word.substr(begin, word.find('=') - begin);
    std::vector<std::string> names = {"set", "print-config", "dry-run", "help"};
    for (const auto& setting : train::settings()) names.push_back(setting.name);
    const auto guess = nearest(name, names);
    throw ConfigError(
        "unknown flag '" + word + "'",
        guess ? "did you mean '--" + *guess + "'?" : "`lockstep train --help` lists all flags");
  }
}

std::pair<std::string, std::string> key_value(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) {
    throw ConfigError("--set " + text + ": there is no '='", "write --set KEY=VALUE");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
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
  refuse_unknown(result.unmatched());
  return taken(result);
}

std::string train_help() { return train_options().help({""}); }

}  // namespace lockstep::apps
