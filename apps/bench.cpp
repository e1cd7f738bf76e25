#include "apps/bench.hpp"

#include <spdlog/fmt/fmt.h>

#include "apps/bench_data.hpp"
#include "collectives/launcher.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::apps {

int bench_command(const std::vector<std::string>& words) {
  const std::string part = words.empty() ? "" : words[0];
  if (part == "data") return bench_data_command({words.begin() + 1, words.end()});
  if (part == "--help" || part == "-h") {
    fmt::print(
        "Measures one part of Lockstep by itself.\n\nusage: lockstep bench data [flags]\n\n"
        "  data       reading the training set, without training\n\n"
        "`lockstep bench data --help` lists its flags.\n");
    return static_cast<int>(ExitCode::success);
  }
  const auto launch = comm::detect_launcher();
  if (launch && launch->rank != 0) return static_cast<int>(ExitCode::success);  // rank 0 says why
  throw ConfigError(part.empty() ? "nothing to measure" : "'" + part + "' cannot be measured",
                    "`lockstep bench data` measures how fast data is read");
}

}  // namespace lockstep::apps
