// Watches that all replicas hold the same weights, a part of them every step.
#pragma once

#include <cstdint>

#include "collectives/communicator.hpp"
#include "lib/nn/network.hpp"

namespace lockstep::train {

/// Before a step each rank hashes one sixteenth of its weights, another one every step, and all
/// compare: one small message. Replicas that differ for 16 steps cannot pass.
///
/// What it finds   replicas that stay different: under `allreduce` any flipped bit, for every rank
///                 updates its own copy for ever, and an update that one rank skipped or took
///                 twice; under `canonical` a memory cell that is stuck, or a slice that did not
///                 arrive.
/// What it cannot  a wrong value that all ranks share. Under `canonical` the slices are published
///                 anew in every step, so a bit that flips once is either overwritten by its
///                 owner's weights before its turn comes, or, in the owner's copy, reaches all
///                 ranks alike; and no comparison of weights sees a gradient that was computed
///                 wrongly. For those there is the audit (audit.hpp).
class Sentinel {
 public:
  static constexpr std::uint64_t parts = 16;

  /// Both must outlive the sentinel.
  Sentinel(const nn::Network<float>& network, comm::Communicator& comm);

  /// Compares the part that is due before step `step` (from 1).
  ///
  /// Errors   throws comm::AgreedError (70) on every rank; it names step, tensor and the odd rank,
  ///          by majority; with two ranks both.
  /// Ranks    collective.
  void check(std::uint64_t step);

 private:
  Slice part(std::uint64_t step) const noexcept;
  [[noreturn]] void report(std::uint64_t step, Slice part);

  const nn::Network<float>& network_;
  comm::Communicator& comm_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace lockstep::train
