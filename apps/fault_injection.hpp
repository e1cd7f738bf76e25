// Fault injection: makes `lockstep train` fail on purpose, in builds with LOCKSTEP_FAULT_INJECTION
// (the presets dev, asan, tsan and cuda). In other builds nothing of it is compiled, and the
// variable has no effect.
//
//   LOCKSTEP_FAULT="FAULT:KEY=VALUE,KEY=VALUE;FAULT:..."
//
//   kill          SIGKILL to the process of the rank
//   stop          SIGSTOP to the process of the rank, which goes on after SIGCONT
//   slow          the rank sleeps in every step, as part of its computation
//   nan           one element of every result of a forward product is NaN
//   flip-weight   one bit of a weight in this rank's copy differs when the step begins
//   flip-product  one bit of the first forward product's result differs
//
//   rank=N        every fault, required: the world rank, before any loss of ranks
//   step=N        every fault, required: the step, from 1; in the phases evaluation and checkpoint
//                 the number of completed steps. slow: the first slow step
//   phase=NAME    kill, stop: data, step (default), evaluation or checkpoint; the fault occurs when
//                 the phase begins
//   seconds=S     slow: the length of the sleep; default 0.05
//   until=N       slow: the last slow step; default: the end
//   weight=N      flip-weight: the index in the parameter block; default 0
//   row=N         nan, flip-product: the example, from 0, of this rank's piece; default 0
//   bit=N         flip-*: 0 to 31; default 22, the highest bit of the mantissa
//   times=N       flip-*: only the first N times that the step is computed; default 1.
//   times=always  flip-*: every time, in this step and all later ones
//
// All keys but rank and step are optional. kill, stop, slow and nan occur every time that the step
// is computed: a run that is resumed before it meets the fault again. Ranks that are threads share
// a process, which kill and stop affect as a whole. flip-product changes the first element of the
// row that is not zero. nan and flip-* need the device cpu.
//
// A flip is found only where a check looks: the sentinel hashes part `step % sentinel-steps` of the
// weights, the audit of a step recomputes leaf `step / audit-every` modulo the number of leaves
// (after the first epoch another one, if the last batch has fewer leaves).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/train/replica.hpp"

namespace lockstep::apps {

#ifdef LOCKSTEP_FAULT_INJECTION

enum class FaultKind { kill, stop, slow, nan, flip_weight, flip_product };

/// One fault; the members are the keys.
struct Fault {
  FaultKind kind = FaultKind::kill;
  int rank = 0;
  std::uint64_t step = 0;
  Phase phase = Phase::step;
  double seconds = 0.05;
  std::uint64_t until = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t weight = 0;
  std::uint64_t row = 0;
  std::uint64_t bit = 22;
  std::optional<std::uint64_t> times = 1;  ///< nullopt: always
  std::uint64_t occurred = 0;              ///< so far; no key
};

/// Parses the value of LOCKSTEP_FAULT. Throws ConfigError with the part that is wrong.
std::vector<Fault> parse_faults(std::string_view text);

/// The faults of one rank.
class FaultInjection {
 public:
  /// Reads LOCKSTEP_FAULT.
  ///
  /// Errors   throws comm::AgreedError (2) on every rank if it is not valid.
  /// Ranks    collective.
  explicit FaultInjection(comm::Communicator& comm);

  /// Wraps the products of a replica, which this must outlive. Local.
  /// Errors   throws ConfigError for a fault of the CPU on another device.
  train::ReplicaOptions wrap(train::ReplicaOptions options);

  /// Injects the faults of a phase at its beginning. Local.
  /// Errors   throws ConfigError for a weight that the network does not have.
  void enter(Phase phase, std::uint64_t step, train::Replica& replica);

 private:
  class FaultyProducts;
  void inject(Fault& fault, Phase phase, std::uint64_t step, train::Replica& replica);

  std::vector<Fault> faults_;              // of this rank
  const Fault* nan_ = nullptr;             // due in this phase; null: none
  const Fault* flipped_result_ = nullptr;  // due in the next product; null: none
};

#else

class FaultInjection {
 public:
  explicit FaultInjection(comm::Communicator&) noexcept {}
  static train::ReplicaOptions wrap(train::ReplicaOptions options) { return options; }
  static void enter(Phase, std::uint64_t, train::Replica&) noexcept {}
};

#endif

}  // namespace lockstep::apps
