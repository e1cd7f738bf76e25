#include "apps/words.hpp"

#include "lib/base/errors.hpp"

namespace lockstep::apps {

cxxopts::ParseResult parse_words(cxxopts::Options& options, const std::string& command,
                                 const std::vector<std::string>& words) {
  std::vector<const char*> argv = {command.c_str()};
  for (const auto& word : words) argv.push_back(word.c_str());
  try {
    return options.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const cxxopts::exceptions::exception& error) {
    throw ConfigError(error.what(), "`" + command + " --help` lists all flags");
  }
}

}  // namespace lockstep::apps
