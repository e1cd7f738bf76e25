// A flight recorder: what a rank does, in a mapped file that is readable however the process ends.
//
// The file is binary, in this machine's byte order, and has a fixed size: a header, then a ring of
// the last operations. For diagnosis only: a reader may see a record that is only partly written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// The parts of training, each with a time limit of its own.
enum class Phase : std::uint32_t { start, data, step, evaluation, checkpoint, end };

/// "reading the batch", "computing", ...
const char* text_of(Phase phase) noexcept;

/// One collective.
struct FlightOperation {
  std::uint64_t step = 0;
  std::uint64_t number = 0;  ///< among the collectives of this step and phase, from 1
  Phase phase = Phase::start;
  std::array<char, 20> name = {};  ///< "all_gather"
  std::uint64_t bytes = 0;
  double begin = 0;  ///< seconds since 1970
  double end = 0;    ///< 0: not ended
};

/// The current state of a rank. It is a part of the recorder's file.
struct FlightState {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  std::int32_t process = 0;
  std::uint64_t process_start = 0;  ///< in clock ticks since boot: a process id may be used again
  std::array<char, 64> host = {};
  std::uint64_t step =
      0;  ///< the step that is being trained, from 1; completed ones in other phases
  Phase phase = Phase::start;
  double since = 0;  ///< beginning of the phase, in seconds since 1970
};

/// The current state of a rank, and its last operations.
struct Flight : FlightState {
  std::vector<FlightOperation> operations;  ///< the last ones, in order
};

/// Records one rank. One thread calls the functions; another may call phase(), idle_seconds() and
/// is_in_collective().
class FlightRecorder {
 public:
  /// Records in memory until write_to().
  FlightRecorder(int rank, int ranks);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Continues in a file, which is replaced if it exists. Throws OutputError.
  void write_to(const std::filesystem::path& path);

  void enter(Phase phase, std::uint64_t step) noexcept;

  /// The beginning and the end of a collective.
  void begin(const char* name, std::uint64_t bytes) noexcept;
  void end() noexcept;

  /// Progress that leaves no record: a collective of one rank.
  void touch() noexcept;

  /// The current phase, and the seconds since the last call of a function above.
  Phase phase() const noexcept { return phase_; }
  double idle_seconds() const noexcept;

  /// True between begin() and end(): the rank waits for others, or communicates.
  bool is_in_collective() const noexcept { return is_in_collective_; }

  /// Seconds in all collectives so far: of communication, and of waiting for other ranks.
  double collective_seconds() const noexcept { return static_cast<double>(collective_ns_) * 1e-9; }

 private:
  struct File;
  friend Flight read_flight(const std::filesystem::path& path);

  std::unique_ptr<File> memory_;
  File* file_;
  void* mapped_ = nullptr;
  std::atomic<Phase> phase_ = Phase::start;
  std::atomic<std::int64_t> touched_ = 0;
  std::atomic<bool> is_in_collective_ = false;
  std::int64_t collective_ns_ = 0;
};

/// Reads a recorder's file. Throws DataError with the path and the reason.
Flight read_flight(const std::filesystem::path& path);

/// When a rank last recorded something, in seconds since 1970. Local.
double last_record(const Flight& flight) noexcept;

/// The name of a rank's file: "rank-00003".
std::string flight_name(int rank);

/// What is known of a rank's process.
enum class ProcessState { unknown, running, stopped, gone };

/// The state of the process of `flight` if it is one of this host. Local.
ProcessState state_of(const Flight& flight);

/// The cause of a hang.
struct Diagnosis {
  std::vector<std::string> findings;  ///< a sentence each, the most likely cause first
  std::vector<std::uint32_t> odd;     ///< ranks that others wait for
  bool all_wait = false;              ///< in the same collective: messages do not arrive
};

/// Compares what all ranks do. `states`: of each of `flights`; `now`: seconds since 1970. Pure.
Diagnosis diagnose(std::span<const Flight> flights, std::span<const ProcessState> states,
                   double now);

}  // namespace lockstep
