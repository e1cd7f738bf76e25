#include "lockstep/launch/watchdog.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/launch/launch.hpp"

namespace lockstep::launch {
namespace {

constexpr auto interval = std::chrono::milliseconds(200);
constexpr double long_phases = 5;                    // times the limit of a step
constexpr auto max_pause = std::chrono::seconds(2);  // of this thread; longer: it was stopped

double limit_of(Phase phase, double seconds) {
  return phase == Phase::step || phase == Phase::data ? seconds : long_phases * seconds;
}

}  // namespace

std::vector<Flight> read_flights(const std::filesystem::path& folder) {
  std::vector<Flight> flights;
  std::error_code ignored;
  for (int rank = 0;; ++rank) {
    const auto path = folder / flight_name(rank);
    const auto ranks = flights.empty() ? 0 : static_cast<int>(flights.front().ranks);
    if (!std::filesystem::exists(path, ignored)) {
      if (rank >= ranks) return flights;
      continue;
    }
    try {
      flights.push_back(read_flight(path));
    } catch (const DataError&) {  // a file of another version, or cut off
    }
  }
}

Diagnosis diagnose_folder(const std::filesystem::path& folder) {
  const auto flights = read_flights(folder);
  std::vector<ProcessState> states;
  states.reserve(flights.size());
  for (const Flight& flight : flights) states.push_back(state_of(flight));
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return diagnose(flights, states, now);
}

Watchdog::Watchdog(const FlightRecorder& recorder, int rank, double seconds, bool launched)
    : recorder_(recorder), rank_(rank), seconds_(seconds), parent_(launched ? ::getppid() : 0) {
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::read_recorders_in(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

bool Watchdog::is_over() const {
  // The lowest rank that runs prints; each next one gives it a second more.
  constexpr int max_seconds_later = 5;
  const int later = std::min(rank_, max_seconds_later);
  return recorder_.idle_seconds() > limit_of(recorder_.phase(), seconds_) + later;
}

void Watchdog::run() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  auto woken = Clock::now();
  auto silent_until = woken;
  while (!stop_) {
    changed_.wait_for(lock, interval);
    const auto now = Clock::now();
    // A process that was stopped and goes on waited for nobody.
    if (now - woken > max_pause) silent_until = now + std::chrono::seconds(5);
    woken = now;
    if (stop_) return;
    if (parent_ != 0 && ::getppid() != parent_) {
      print_error("rank " + std::to_string(rank_) + ": the launcher has ended; so does this rank");
      comm::abort_job(static_cast<int>(ExitCode::timeout));
    }
    if (now >= silent_until && is_over()) report();
  }
}

void Watchdog::report() {
  const Phase phase = recorder_.phase();
  std::string text = "rank " + std::to_string(rank_) + " made no progress for " +
                     fixed(recorder_.idle_seconds(), 0) + " s in " + text_of(phase) +
                     ", where the limit is " + fixed(limit_of(phase, seconds_), 0) + " s";
  if (!folder_.empty()) {
    for (const auto& finding : diagnose_folder(folder_).findings) text += "\n  " + finding;
    try {
      write_file(folder_ / diagnosis_name, text + "\n");
    } catch (const OutputError&) {  // it is printed
    }
  }
  print_error(text +
              "\n  remedy: look at that rank and its host; continue with --resume; `timeout` sets "
              "the limit");
  comm::abort_job(static_cast<int>(ExitCode::timeout));
}

}  // namespace lockstep::launch
