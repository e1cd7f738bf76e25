#include "apps/words.hpp"

#include <algorithm>
#include <optional>

#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

std::vector<std::string> names_of(const cxxopts::Options& options) {
  std::vector<std::string> names;
  for (const auto& group : options.groups()) {
    for (const auto& flag : options.group_help(group).options) {
      names.insert(names.end(), flag.l.begin(), flag.l.end());
    }
  }
  return names;
}

/// The nearest name to the first flag among `words` that is none of them.
std::optional<std::string> guess(const cxxopts::Options& options,
                                 const std::vector<std::string>& words) {
  const auto names = names_of(options);
  for (const auto& word : words) {
    const std::string name = word.starts_with("--") ? word.substr(2, word.find('=') - 2) : "";
    if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    return nearest(name, names);
  }
  return std::nullopt;
}

}  // namespace

cxxopts::ParseResult parse_words(cxxopts::Options& options, const std::string& command,
                                 const std::vector<std::string>& words) {
  std::vector<const char*> argv = {command.c_str()};
  for (const auto& word : words) argv.push_back(word.c_str());
  try {
    return options.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const cxxopts::exceptions::no_such_option& error) {
    const auto name = guess(options, words);
    throw ConfigError(error.what(), name ? "did you mean '--" + *name + "'?"
                                         : "`" + command + " --help` lists all flags");
  } catch (const cxxopts::exceptions::exception& error) {
    throw ConfigError(error.what(), "`" + command + " --help` lists all flags");
  }
}

}  // namespace lockstep::apps
