#include "apps/arguments.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "apps/words.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

cxxopts::Options options_of(const Syntax& syntax) {
  cxxopts::Options options(syntax.command, syntax.does);
  options.custom_help(syntax.usage);
  const auto value_of = [](const auto& setting) {
    auto value = cxxopts::value<std::string>();
    return setting.argument == "true|false" ? value->implicit_value("true") : value;
  };
  const train::RunConfig defaults;
  for (const auto& setting : train::settings()) {
    if (!syntax.takes(setting.name)) continue;
    const auto other = syntax.other_help.find(setting.name);
    const std::string help = (other == syntax.other_help.end() ? setting.help : other->second) +
                             " [" + setting.literal(defaults) + "]";
    options.add_options()(setting.name, help, value_of(setting), setting.argument);
  }
  options.add_options()("set", "another way to give a setting", cxxopts::value<std::string>(),
                        "KEY=VALUE");
  for (const auto& flag : syntax.flags) {
    if (flag.argument.empty()) {
      options.add_options()(flag.name, flag.help);
    } else {
      options.add_options()(flag.name, flag.help, cxxopts::value<std::string>(), flag.argument);
    }
  }
  options.add_options()("h,help", "show this");
  options.add_options("hidden")("operand", "", cxxopts::value<std::vector<std::string>>());
  options.positional_help("");
  options.parse_positional({"operand"});
  options.allow_unrecognised_options();
  return options;
}

/// Flags that cxxopts did not know come back untouched.
void refuse_unknown(const Syntax& syntax, const std::vector<std::string>& unmatched) {
  if (unmatched.empty()) return;
  const auto& word = unmatched.front();
  const auto begin = word.find_first_not_of('-');
  const auto name = begin == std::string::npos ? "" : word.substr(begin, word.find('=') - begin);
  std::vector<std::string> names = {"set", "help"};
  for (const auto& flag : syntax.flags) names.push_back(flag.name);
  for (const auto& setting : train::settings()) {
    if (syntax.takes(setting.name)) names.push_back(setting.name);
  }
  const auto guess = nearest(name, names);
  throw ConfigError("unknown flag '" + word + "'",
                    guess ? "did you mean '--" + *guess + "'?"
                          : "`" + syntax.command + " --help` lists all flags");
}

std::pair<std::string, std::string> key_value(const Syntax& syntax, const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) {
    throw ConfigError("--set " + text + ": there is no '='", "write --set KEY=VALUE");
  }
  const std::string key = text.substr(0, equals);
  const auto& all = train::settings();
  const bool known = std::any_of(
      all.begin(), all.end(), [&](const train::Setting& setting) { return setting.name == key; });
  if (known && !syntax.takes(key)) {
    throw ConfigError("--set " + text + ": `" + syntax.command + "` has no setting '" + key + "'",
                      "`" + syntax.command + " --help` lists those that it has");
  }
  return {key, text.substr(equals + 1)};
}

Arguments taken(const Syntax& syntax, const cxxopts::ParseResult& result) {
  Arguments arguments;
  for (const auto& argument : result.arguments()) {
    const std::string& key = argument.key();
    const std::string& value = argument.value();
    const bool flag = std::any_of(syntax.flags.begin(), syntax.flags.end(),
                                  [&](const Flag& one) { return one.name == key; });
    if (key == "help") {
      arguments.help = true;
    } else if (flag) {
      arguments.flags.emplace_back(key, value);
    } else if (key == "set") {
      arguments.settings.push_back(key_value(syntax, value));
    } else if (key != "operand") {
      arguments.settings.emplace_back(key, value);
    } else if (arguments.operand.empty()) {
      arguments.operand = value;
    } else {
      throw ConfigError("two " + syntax.operand + "s: " + arguments.operand + " and " + value,
                        "give one");
    }
  }
  return arguments;
}

}  // namespace

bool Syntax::takes(const std::string& setting) const {
  return settings.empty() || std::find(settings.begin(), settings.end(), setting) != settings.end();
}

std::string Arguments::value(const std::string& name, const std::string& otherwise) const {
  std::string last = otherwise;
  for (const auto* pairs : {&settings, &flags}) {
    for (const auto& [key, value] : *pairs) {
      if (key == name) last = value;
    }
  }
  return last;
}

bool Arguments::given(const std::string& name) const {
  const auto named = [&](const auto& pair) { return pair.first == name; };
  return std::any_of(settings.begin(), settings.end(), named) ||
         std::any_of(flags.begin(), flags.end(), named);
}

Arguments parse_arguments(const Syntax& syntax, const std::vector<std::string>& words) {
  auto options = options_of(syntax);
  const auto result = parse_words(options, syntax.command, words);
  refuse_unknown(syntax, result.unmatched());
  return taken(syntax, result);
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

std::string help_text(const Syntax& syntax) { return options_of(syntax).help({""}); }

}  // namespace lockstep::apps
