#include "apps/stop_clock.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <vector>

#include "apps/console.hpp"
#include "apps/words.hpp"
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

namespace {

/// The command that continues the run on ranks like these: its settings are in the checkpoint. With
/// another launcher than mpirun it is that for one rank.
std::string command_to_continue(const std::string& run, const RunConfig& config,
                                const comm::Communicator& comm) {
  std::vector<std::string> words = mpirun_words();
  words.insert(words.end(), {program_invocation_name, "train", "--resume", run});
  if (std::string_view(comm.backend()) == "threads" && comm.size() > 1) {
    words.insert(words.end(), {"--ranks", std::to_string(comm.size())});
  }
  if (config.survive) words.emplace_back("--survive");
  for (std::string& word : words) word = in_shell(word);
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

void end_stopped(const train::RunReport& report, const std::string& run, const RunConfig& config,
                 const comm::Communicator& comm) {
  const auto checkpoint =
      std::filesystem::path(run) / "checkpoints" / train::checkpoint_name(report.steps);
  const std::string why =
      report.stop == StopClock::out_of_time
          ? "stopped before the time limit"
          : fmt::format("stopped by SIG{}", ::sigabbrev_np(static_cast<int>(report.stop)));
  throw comm::AgreedError(ExitCode::stopped,
                          fmt::format("{} after {}; saved in {}; continue with `{}`", why,
                                      counted(report.steps, "step"), checkpoint.string(),
                                      command_to_continue(run, config, comm)));
}

}  // namespace lockstep::apps
