#include "lockstep/base/flight_recorder.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <tuple>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep {
namespace {

// The layout of the file: change `magic` with it.
static_assert(sizeof(FlightState) == 112 && offsetof(FlightState, since) == 104 &&
              sizeof(FlightOperation) == 64);
constexpr std::uint64_t magic = 0x3152464b434f4cULL;  // "LOCKFR1"
constexpr std::size_t kept = 256;

std::int64_t steady_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

struct FlightRecorder::File {
  std::uint64_t magic_number = magic;
  FlightState state;
  std::uint64_t total = 0;  ///< operations so far; the last is at (total - 1) % kept
  std::uint64_t number = 0;
  std::array<FlightOperation, kept> operations = {};
};

const char* text_of(Phase phase) noexcept {
  switch (phase) {
    case Phase::start: return "the start";
    case Phase::data: return "reading the batch";
    case Phase::step: return "computing";
    case Phase::evaluation: return "evaluation";
    case Phase::checkpoint: return "the checkpoint";
    case Phase::end: return "the end";
  }
  return "unknown";
}

FlightRecorder::FlightRecorder(int rank, int ranks)
    : memory_(std::make_unique<File>()), file_(memory_.get()) {
  FlightState& state = file_->state;
  state.rank = static_cast<std::uint32_t>(rank);
  state.ranks = static_cast<std::uint32_t>(ranks);
  state.process = ::getpid();
  state.process_start = process_stat(state.process).start;
  const std::string host = host_name();
  std::copy_n(host.begin(), std::min(host.size(), state.host.size() - 1), state.host.begin());
  state.since = wall_clock();
  touch();
}

FlightRecorder::~FlightRecorder() {
  if (mapped_ != nullptr) ::munmap(mapped_, sizeof(File));
}

void FlightRecorder::write_to(const std::filesystem::path& path) {
  const auto fail = [&](int code) {
    throw OutputError(path.string() + ": cannot be written: " + system_reason(code),
                      "choose another folder");
  };
  ::unlink(path.c_str());
  const Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.is_open()) fail(errno);
  // All of it is reserved: on a full disk, writing to a mapped page would end the process (SIGBUS).
  const int full = ::posix_fallocate(file.number(), 0, sizeof(File));
  void* const data = full == 0 ? ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED,
                                        file.number(), 0)
                               : MAP_FAILED;
  if (data == MAP_FAILED) {
    const int code = full != 0 ? full : errno;
    ::unlink(path.c_str());
    fail(code);
  }
  std::memcpy(data, file_, sizeof(File));
  mapped_ = data;
  file_ = static_cast<File*>(data);
}

void FlightRecorder::touch() noexcept { touched_ = steady_ns(); }

double FlightRecorder::idle_seconds() const noexcept {
  return static_cast<double>(steady_ns() - touched_) * 1e-9;
}

void FlightRecorder::enter(Phase phase, std::uint64_t step) noexcept {
  file_->state.step = step;
  file_->state.phase = phase;
  file_->state.since = wall_clock();
  file_->number = 0;
  touch();  // before the phase, whose limit may be shorter than the time since the last touch
  phase_ = phase;
}

void FlightRecorder::begin(const char* name, std::uint64_t bytes) noexcept {
  FlightOperation& operation = file_->operations[file_->total % kept];
  operation = {.step = file_->state.step,
               .number = ++file_->number,
               .phase = file_->state.phase,
               .bytes = bytes,
               .begin = wall_clock()};
  std::strncpy(operation.name.data(), name, operation.name.size() - 1);
  ++file_->total;
  touch();
  is_in_collective_ = true;
}

void FlightRecorder::end() noexcept {
  file_->operations[(file_->total - 1) % kept].end = wall_clock();
  is_in_collective_ = false;
  const std::int64_t begun = touched_;
  touch();
  collective_ns_ += touched_ - begun;
}

double last_record(const Flight& flight) noexcept {
  if (flight.operations.empty()) return flight.since;
  const FlightOperation& last = flight.operations.back();
  return std::max({flight.since, last.begin, last.end});
}

std::string flight_name(int rank) {
  constexpr std::size_t width = 5;
  return "rank-" + zero_padded(static_cast<std::uint64_t>(rank), width);
}

Flight read_flight(const std::filesystem::path& path) {
  FlightRecorder::File file;
  std::ifstream input(path, std::ios::binary);
  input.read(reinterpret_cast<char*>(&file), sizeof file);
  if (!input || file.magic_number != magic || file.state.phase > Phase::end) {
    throw DataError(path.string() + ": is not a flight recorder file",
                    "give the folder of a run of this version of lockstep");
  }
  file.state.host.back() = '\0';
  Flight flight = {file.state, {}};
  const std::uint64_t count = std::min<std::uint64_t>(file.total, kept);
  for (std::uint64_t i = file.total - count; i < file.total; ++i) {
    flight.operations.push_back(file.operations[i % kept]);
    flight.operations.back().name.back() = '\0';
  }
  return flight;
}

ProcessState state_of(const Flight& flight) {
  if (host_name().substr(0, flight.host.size() - 1) != flight.host.data())
    return ProcessState::unknown;
  const auto [state, start] = process_stat(flight.process);
  if (state == 0 || state == 'Z' || state == 'X' || start != flight.process_start) {
    return ProcessState::gone;
  }
  return state == 'T' || state == 't' ? ProcessState::stopped : ProcessState::running;
}

namespace {

/// The collective that a rank is in; null if it is in none.
const FlightOperation* open_operation(const Flight& flight) {
  if (flight.operations.empty() || flight.operations.back().end != 0) return nullptr;
  return &flight.operations.back();
}

/// Ranks in the order of their progress.
auto position(const Flight& flight) {
  const auto* open = open_operation(flight);
  const auto& last = flight.operations;
  const bool in_phase =
      !last.empty() && last.back().step == flight.step && last.back().phase == flight.phase;
  return std::tuple(flight.step, flight.phase, in_phase ? last.back().number : 0,
                    in_phase && open == nullptr ? 1 : 0);
}

std::string name_of(const Flight& flight) {
  return "rank " + std::to_string(flight.rank) + " on " + flight.host.data() + " (process " +
         std::to_string(flight.process) + ")";
}

std::string place_of(const Flight& flight, double now) {
  std::string text = text_of(flight.phase);
  text += flight.phase == Phase::step || flight.phase == Phase::data ? " of step " : " after step ";
  text += std::to_string(flight.step);
  double since = flight.since;
  if (const auto* open = open_operation(flight)) {
    text += ", in " + std::string(open->name.data()) + " number " + std::to_string(open->number) +
            " of " + bytes_text(static_cast<double>(open->bytes));
    since = open->begin;
  }
  return text + ", for " + with_decimals(now - since, 1) + " s";
}

}  // namespace

Diagnosis diagnose(std::span<const Flight> flights, std::span<const ProcessState> states,
                   double now) {
  Diagnosis found;
  std::vector<int> waiting;
  for (const Flight& flight : flights) {
    if (open_operation(flight) != nullptr) waiting.push_back(static_cast<int>(flight.rank));
  }
  const auto add = [&](const Flight& flight, const std::string& what) {
    found.findings.push_back(name_of(flight) + " " + what + ": " + place_of(flight, now));
    found.odd.push_back(flight.rank);
    std::erase(waiting, static_cast<int>(flight.rank));
  };
  for (std::size_t i = 0; i < flights.size(); ++i) {
    if (flights[i].phase == Phase::end) continue;
    if (states[i] == ProcessState::gone) add(flights[i], "has ended");
    if (states[i] == ProcessState::stopped) add(flights[i], "is stopped (SIGSTOP)");
  }
  if (found.odd.empty() && !flights.empty()) {
    const auto [first, last] = std::minmax_element(
        flights.begin(), flights.end(),
        [](const Flight& a, const Flight& b) { return position(a) < position(b); });
    if (position(*first) < position(*last)) {
      for (const Flight& flight : flights) {
        if (position(flight) == position(*first)) add(flight, "is behind");
      }
    } else if (const auto* open = open_operation(*first)) {
      for (const Flight& flight : flights) {
        const auto* other = open_operation(flight);
        const bool same = other != nullptr && other->bytes == open->bytes &&
                          std::strcmp(other->name.data(), open->name.data()) == 0;
        if (!same) add(flight, "calls another collective than rank " + std::to_string(first->rank));
      }
      if (found.odd.empty()) {
        found.all_wait = true;
        const bool sees_all =
            std::find(states.begin(), states.end(), ProcessState::unknown) == states.end();
        found.findings.push_back(
            std::string("all ranks are in the same collective, so messages do not arrive") +
            (sees_all ? "" : " or a rank of another host is stopped") +
            ": look at the network between the hosts" + (sees_all ? "" : ", and at their ranks") +
            " (" + place_of(*first, now) + ")");
      }
    } else {
      found.findings.push_back("all ranks are at the same place: " + place_of(*first, now));
    }
  }
  if (!found.odd.empty() && !waiting.empty()) {
    found.findings.push_back(ranks_text(waiting) + (waiting.size() == 1 ? " waits" : " wait") +
                             " for " +
                             ranks_text(std::vector<int>(found.odd.begin(), found.odd.end())));
  }
  return found;
}

}  // namespace lockstep
