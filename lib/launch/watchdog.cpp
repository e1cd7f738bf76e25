#include "lockstep/launch/watchdog.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/launch/messages.hpp"

namespace lockstep::launching {
namespace {

constexpr auto interval = std::chrono::milliseconds(200);
constexpr double long_phases = 5;     // times the limit of a step
constexpr int max_seconds_later = 5;  // of higher ranks, which wait for the lower ones to act
constexpr auto pause_after_report = std::chrono::seconds(8);  // for the others to go on
constexpr std::size_t exit_code_digits = 3;
constexpr auto max_pause = std::chrono::seconds(2);  // of this thread; longer: it was stopped

/// True if the ranks `odd` are on other hosts.
bool are_elsewhere(std::span<const Flight> flights, std::span<const std::uint32_t> odd) {
  return !odd.empty() && std::all_of(flights.begin(), flights.end(), [&](const Flight& flight) {
    return !contains(odd, flight.rank) || state_of(flight) == ProcessState::unknown;
  });
}

double limit_of(Phase phase, double seconds) {
  return phase == Phase::step || phase == Phase::data ? seconds : long_phases * seconds;
}

}  // namespace

std::vector<Flight> read_flights(const std::filesystem::path& folder,
                                 std::vector<std::string>* unreadable) {
  std::vector<Flight> flights;
  std::error_code ignored;
  for (const auto& entry : list_folder(folder, ignored)) {
    if (!entry.path().filename().string().starts_with("rank-")) continue;
    try {
      flights.push_back(read_flight(entry.path()));
    } catch (const DataError&) {  // a file of another version, or cut off
      if (unreadable != nullptr) unreadable->push_back(entry.path().filename().string());
    }
  }
  std::sort(flights.begin(), flights.end(),
            [](const Flight& a, const Flight& b) { return a.rank < b.rank; });
  return flights;
}

Diagnosis diagnose_now(std::span<const Flight> flights) {
  std::vector<ProcessState> states;
  states.reserve(flights.size());
  for (const Flight& flight : flights) states.push_back(state_of(flight));
  return diagnose(flights, states, wall_clock());
}

namespace {

/// Writes over the file with the exit code, which needs no room. False if there is none.
bool overwrite_exit_code(const std::filesystem::path& flight, const std::string& text) {
  std::fstream file(flight / exit_code_name, std::ios::in | std::ios::out | std::ios::binary);
  return static_cast<bool>(file << text << std::flush);
}

}  // namespace

void reserve_exit_code(const std::filesystem::path& flight) {
  const std::string blank = std::string(exit_code_digits, ' ') + "\n";
  if (!overwrite_exit_code(flight, blank)) write_file(flight / exit_code_name, blank);
}

std::optional<int> recorded_exit_code(const std::filesystem::path& flight) {
  std::ifstream file(flight / exit_code_name);
  int code = 0;
  return file >> code ? std::optional(code) : std::nullopt;
}

void record_exit_code(const std::filesystem::path& flight, int code) {
  if (recorded_exit_code(flight)) return;
  const std::string text = std::to_string(code);
  if (!overwrite_exit_code(flight, text)) write_file(flight / exit_code_name, text + "\n");
}

namespace {

/// Ends the process if `launcher` is no longer its parent; 0: it has none.
void end_without_launcher(pid_t launcher, int rank) {
  if (launcher == 0 || ::getppid() == launcher) return;
  print_error("rank " + std::to_string(rank) + ": the launcher has ended, so this rank ends too");
  comm::abort_job(static_cast<int>(ExitCode::timeout));
}

}  // namespace

Watchdog::Watchdog(const FlightRecorder& recorder, int rank, double seconds, bool launched,
                   bool survives)
    : recorder_(recorder),
      rank_(rank),
      seconds_(seconds),
      parent_(launched ? ::getppid() : 0),
      survives_(survives) {
  thread_ = start_thread("that detects ranks without progress",
                         [this](const std::stop_token& stop) { run(stop); });
}

void Watchdog::read_recorders_in(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

bool Watchdog::is_over() const {
  // The lowest running rank prints: each higher one waits a second longer.
  const int later = std::min(rank_, max_seconds_later);
  const Phase phase = recorder_.phase();  // before the idle time: see FlightRecorder::enter()
  return recorder_.idle_seconds() > limit_of(phase, seconds_) + later;
}

void Watchdog::run(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  auto woken = Clock::now();
  auto silent_until = woken;
  while (sleep_unless_stopped(stop, interval)) {
    const auto now = Clock::now();
    // After a stop (SIGSTOP) of this process, the idle time is not a hang of another rank: perhaps
    // all were stopped as long, and are to make progress first.
    if (const auto pause = now - woken; pause > max_pause) {
      const std::chrono::duration<double> longest = pause + std::chrono::seconds(5);
      const std::chrono::duration<double> limit(limit_of(recorder_.phase(), seconds_));
      silent_until = now + std::chrono::duration_cast<Clock::duration>(std::min(longest, limit));
    }
    woken = now;
    end_without_launcher(parent_, rank_);
    if (!is_over()) waits_for_hosts_ = false;
    if (now < silent_until || !is_over()) continue;
    report();
    silent_until = Clock::now() + pause_after_report;
  }
}

void Watchdog::report() {
  std::unique_lock lock(mutex_);
  const std::filesystem::path folder = folder_;
  lock.unlock();
  const Phase phase = recorder_.phase();
  std::string text = "rank " + std::to_string(rank_) + " made no progress for " +
                     with_decimals(recorder_.idle_seconds(), 0) + " s in " + text_of(phase) +
                     ", where the limit is " + with_decimals(limit_of(phase, seconds_), 0) + " s";
  auto flights = folder.empty() ? std::vector<Flight>() : read_flights(folder);
  if (survives_) {  // the others do not wait for lost ranks
    std::erase_if(flights, [](const Flight& one) { return state_of(one) == ProcessState::gone; });
  }
  const Diagnosis diagnosis = diagnose_now(flights);
  if (!is_over()) return;  // it went on while a file server did not answer
  for (const auto& finding : diagnosis.findings) text += "\n  " + finding;
  if (folder.empty() && recorder_.is_in_collective()) text += ": it waits for another rank";
  if (const auto odd = odd_processes(flights, diagnosis.odd); survives_ && !odd.empty()) {
    print_warning(text + "\n  killed, so that the other ranks can go on");
    for (const std::int32_t process : odd) ::kill(process, SIGKILL);
    return;
  }
  // Gives the watchdogs of other hosts time to kill their ranks.
  if (survives_ && !waits_for_hosts_ && are_elsewhere(flights, diagnosis.odd)) {
    waits_for_hosts_ = true;
    return;
  }
  // After the first report ranks end, and later ones would name those. Survivors may hang again.
  std::error_code none;
  const bool is_first = folder.empty() || !std::filesystem::exists(folder / diagnosis_name, none);
  if (is_first || survives_) {
    try {
      if (!folder.empty()) {
        record_exit_code(folder, static_cast<int>(ExitCode::timeout));
        write_file(folder / diagnosis_name, text + "\n");
      }
    } catch (const OutputError&) {  // printed below
    }
    print_error(text +
                (folder.empty() ? "\n  remedy: look for a rank that is stopped, and for files that "
                                  "cannot be read; "
                                : "\n  remedy: look at that rank and its host; continue with "
                                  "--resume; ") +
                "`timeout` sets the limit");
  }
  comm::abort_job(static_cast<int>(ExitCode::timeout));
}

/// The processes of `odd` ranks of this host, this one last; none if no other rank would go on.
std::vector<std::int32_t> Watchdog::odd_processes(std::span<const Flight> flights,
                                                  std::span<const std::uint32_t> odd) const {
  std::vector<std::int32_t> processes;
  bool is_odd = false;
  bool any_goes_on = false;
  for (const Flight& flight : flights) {
    const auto state = state_of(flight);
    if (state != ProcessState::running && state != ProcessState::stopped) continue;
    const bool is_own = flight.process == ::getpid();
    if (!contains(odd, flight.rank)) {
      any_goes_on = true;
    } else if (is_own) {
      is_odd = true;
    } else {
      processes.push_back(flight.process);
    }
  }
  if (is_odd && !any_goes_on) return {};
  if (is_odd) processes.push_back(::getpid());
  return processes;
}

constexpr auto time_before_end = std::chrono::seconds(1);
constexpr auto max_without_rank = std::chrono::seconds(2);  // for an error of all ranks

double start_limit(double seconds) noexcept { return limit_of(Phase::start, seconds); }

namespace {

/// Ends a process in its start.
[[noreturn]] void end_start(const std::string& text, const std::function<void()>& before_end) {
  print_error(text);
  if (before_end) {  // not for long: its file system may be what the start waits for
    std::thread(before_end).detach();
    std::this_thread::sleep_for(time_before_end);
  }
  comm::abort_job(static_cast<int>(ExitCode::timeout));
}

/// The ranks of this host, if mpirun ignores the end of a rank; else 0.
std::uint64_t ranks_of_recovery(pid_t launcher) {
  const std::string program = program_of(launcher);
  if (!comm::launcher_recovers() || (!comm::is_mpirun(program) && program != "orted")) return 0;
  const char* const ranks = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return ranks == nullptr ? 0 : whole_number(ranks).value_or(0);
}

}  // namespace

StartLimit::StartLimit(int rank, double seconds, bool launched,
                       const std::function<void()>& before_end) {
  const pid_t parent = launched ? ::getppid() : 0;
  // Read here: MPI_Init changes the environment while the thread runs.
  const std::uint64_t ranks = launched ? ranks_of_recovery(parent) : 0;
  const auto later = std::chrono::seconds(std::min(rank, max_seconds_later));
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds) + later;
  const std::string name = "rank " + std::to_string(rank);
  thread_ = start_thread("that limits the time of the start", [=](const std::stop_token& stop) {
    std::size_t there = 0;         // children of the launcher
    auto complete = Clock::now();  // when no rank was missing, or one started
    while (sleep_unless_stopped(stop, interval)) {
      if (Clock::now() > end) {
        end_start(name + " waited for " + with_decimals(seconds, 0) +
                      " s in the start\n  remedy: start the same program and subcommand on all "
                      "ranks, and look for ranks that have ended; `timeout` sets the limit",
                  before_end);
      }
      end_without_launcher(parent, rank);
      if (ranks == 0) continue;
      const auto children = children_of(parent);  // and perhaps shells to other hosts
      const std::size_t before = std::exchange(there, children ? children->size() : 0);
      if (!children || there >= ranks || there > before) complete = Clock::now();
      if (Clock::now() - complete > max_without_rank + later) {
        end_start(name +
                      ": another rank of this host has ended in the start, which waits for it\n"
                      "  remedy: look at what that rank prints, and start the job again",
                  before_end);
      }
    }
  });
}

}  // namespace lockstep::launching
