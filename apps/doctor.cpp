// `lockstep doctor RUN`: what the ranks of a run do or did last, and which of them holds up the
// others.
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "apps/cli.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/launch/watchdog.hpp"

namespace lockstep::apps {
namespace {

constexpr int something_is_wrong = 1;

Syntax doctor_syntax() {
  Syntax syntax;
  syntax.command = "lockstep doctor";
  syntax.does =
      "Reads the flight recorders of a run's ranks, of a job that runs or has ended, and names the "
      "rank that others wait for.\nEnds with 0 where nothing is wrong, with 1 where something is; "
      "2: usage; 65: no recorder is there.\n";
  syntax.usage = "RUN";
  syntax.operand = "run folder";
  return syntax;
}

const char* text_of(ProcessState state) {
  switch (state) {
    case ProcessState::unknown: return "other host";
    case ProcessState::running: return "running";
    case ProcessState::stopped: return "stopped";
    case ProcessState::gone: return "ended";
  }
  return "";
}

void print_rank(const Flight& flight, ProcessState state) {
  std::string last = "-";
  if (!flight.operations.empty()) {
    const FlightOperation& operation = flight.operations.back();
    last = fmt::format("{}{}", operation.name.data(), operation.end == 0 ? ", not ended" : "");
  }
  fmt::print("{:>5}  {:<16} {:>8}  {:<10}  {:<18} {:>10}  {}\n", flight.rank, flight.host.data(),
             flight.process, text_of(state), lockstep::text_of(flight.phase), flight.step, last);
}

int doctor(const Arguments& arguments) {
  const std::filesystem::path run = arguments.operand();
  if (run.empty()) throw ConfigError("no run folder", "write `lockstep doctor RUN`");
  const auto flights = launch::read_flights(run / "flight");
  if (flights.empty()) {
    throw DataError((run / "flight").string() + ": no flight recorder",
                    "give the folder of a run that this version recorded");
  }
  fmt::print("{:>5}  {:<16} {:>8}  {:<10}  {:<18} {:>10}  {}\n", "rank", "host", "process", "state",
             "in", "step", "last collective");
  bool ended = true;
  for (const Flight& flight : flights) {
    print_rank(flight, state_of(flight));
    ended = ended && flight.phase == Phase::end;
  }
  if (ended) return static_cast<int>(ExitCode::success);
  std::ifstream written(run / "flight" / launch::diagnosis_name);
  if (written) {
    fmt::print("\nwhen the job was ended:\n{}",
               std::string{std::istreambuf_iterator<char>(written), {}});
    return something_is_wrong;
  }
  const Diagnosis found = launch::diagnose_now(flights);
  for (const auto& finding : found.findings) fmt::print("{}\n", finding);
  return found.odd.empty() ? static_cast<int>(ExitCode::success) : something_is_wrong;
}

}  // namespace

int doctor_command(const std::vector<std::string>& words) {
  return run_on_rank_0(doctor_syntax(), words, doctor);
}

}  // namespace lockstep::apps
