#include "apps/stop_clock.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/checkpoint.hpp"

namespace lockstep::apps {

StopClock::StopClock(const StopRequests& requests, const RunConfig& config, double weights,
                     bool is_rank_0)
    : requests_(requests) {
  if (!is_rank_0) return;
  if (config.max_time) deadline_ = static_cast<double>(*config.max_time);
  if (const char* const end = std::getenv("SLURM_JOB_END_TIME")) {
    const double left = std::strtod(end, nullptr) - static_cast<double>(std::time(nullptr));
    deadline_ = std::min(deadline_, process_age_seconds() + left);
  }
  constexpr double seconds_a_byte = 1 / 50e6;  // of a slow disk
  reserve_ = 1 + 3 * sizeof(float) * weights * seconds_a_byte;
}

std::uint64_t StopClock::operator()() {
  if (const int signal = requests_.signal(); signal != 0) {
    return static_cast<std::uint64_t>(signal);
  }
  if (!std::isfinite(deadline_)) return 0;
  longest_ =
      std::max(longest_, since_last_.take());  // with evaluation and waits, if there were any
  return process_age_seconds() + 2 * longest_ + reserve_ < deadline_ ? 0 : out_of_time;
}

void end_stopped(const train::RunReport& report, const std::string& run) {
  const auto checkpoint =
      std::filesystem::path(run) / "checkpoints" / train::checkpoint_name(report.steps);
  const std::string why =
      report.stop == StopClock::out_of_time
          ? "stopped before the time limit"
          : fmt::format("stopped by SIG{}", ::sigabbrev_np(static_cast<int>(report.stop)));
  throw comm::AgreedError(ExitCode::stopped,
                          fmt::format("{} after {}; saved in {}", why,
                                      counted(report.steps, "step"), checkpoint.string()),
                          "continue with --resume " + run);
}

}  // namespace lockstep::apps
