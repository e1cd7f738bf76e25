// Checks against faulty memory and arithmetic: all replicas hold the same weights (Sentinel), and
// samples of a step are computed again on another rank (Audit).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/base/aligned.hpp"
#include "lib/nn/network.hpp"

namespace lockstep::train {

class DeviceReplica;

/// In every step each rank hashes a part of the weights that it computes on, another part every
/// step and all of them within `parts` steps. The hashes travel in the step's first message, and
/// all ranks compare. Replicas that differ for that long are found.
///
/// Finds       with 1 part, any bit that differs when a step begins, before an update uses it, in a
///             twentieth of a step's time. With more parts, replicas that stay different: under
///             `allreduce` any flipped bit, for every rank updates its own copy; and an update that
///             one rank skipped or computed twice; under `canonical` a memory cell that is stuck,
///             or a slice that did not arrive.
/// Cannot find a wrong value that all ranks share. Under `canonical` the slices are published anew
///             in every step, so with several parts a bit that flips once is either overwritten by
///             its owner's weights before its part is hashed, or, in the owner's copy, reaches all
///             ranks alike; and no comparison of weights finds a gradient that was computed
///             wrongly. The audit does.
class Sentinel {
 public:
  static constexpr std::uint64_t default_parts = 16;

  /// `device`: where the weights are, if not in `network`; null: there. `parts` is at least 1. All
  /// must outlive the sentinel.
  Sentinel(const nn::Network<float>& network, DeviceReplica* device, comm::Communicator& comm,
           std::uint64_t parts);

  /// Hashes the part that is due before step `step` (from 1): on the device where all ranks have
  /// one, else on the host. Returns all ranks' hashes, to be gathered; empty for a rank alone.
  /// Ranks    local, but for the first call, which is collective.
  std::span<std::byte> begin(std::uint64_t step);

  /// Compares the hashes, once they are gathered.
  ///
  /// Errors   throws comm::AgreedError (70) on every rank; it names step, tensor and the odd rank,
  ///          by majority; with two ranks both.
  /// Ranks    local; collective where they differ.
  void compare();

 private:
  std::uint64_t hash();
  void copy_part_to_host();
  [[noreturn]] void report();

  const nn::Network<float>& network_;
  DeviceReplica* device_;
  comm::Communicator& comm_;
  std::uint64_t parts_;
  std::uint64_t step_ = 0;
  Range part_;                            // due at step_
  AlignedBuffer<std::uint64_t> hashes_;   // of every rank
  std::optional<bool> all_have_devices_;  // unknown before the first hash
};

/// Every N steps of the canonical reduction, when all ranks hold all rows: the next rank computes
/// one leaf's activations and gradients again, and every rank its predecessor's slice of the
/// weights' gradients. Another leaf each time.
///
/// Finds a wrong activation or gradient, which all ranks would use alike. Covers one leaf of the
/// audited steps, and all of their weight gradients. A rank alone computes its own again, and finds
/// errors that do not repeat.
class Audit {
 public:
  /// `every` counts steps; none: never. All must outlive the audit.
  Audit(nn::Network<float>& network, const data::Plan& plan, comm::Communicator& comm,
        std::optional<std::uint64_t> every);

  bool due(std::uint64_t step) const noexcept { return every_ && step % *every_ == 0; }

  /// Copies this rank's labels to its block. Returns all ranks' blocks, to be gathered with the
  /// rows before check_leaf(). Local.
  std::span<std::byte> put_labels(const data::Batch& batch);

  /// After the exchange of rows and labels: computes a leaf of `batch` again, without a change of
  /// the layers' state.
  ///
  /// Errors   throws comm::AgreedError (70) on every rank; names step, leaf and both ranks.
  /// Ranks    collective.
  void check_leaf(std::uint64_t step, const data::Batch& batch);

  /// After weight_gradients() and before the update: computes the predecessor's slice again.
  /// `slice` is this rank's own; slices are equally long.
  void check_gradients(std::uint64_t step, const data::Batch& batch, Range slice);

 private:
  std::uint64_t hash_rows(Range rows);
  [[noreturn]] static void fail(std::uint64_t step, const std::string& what, int owner,
                                int auditor);

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  std::optional<std::uint64_t> every_;
  AlignedBuffer<std::int32_t> labels_;  // of all rows; empty where no audit is due ever
  std::vector<std::uint64_t> hashes_;   // of every rank: what it has, and what it computed again
};

}  // namespace lockstep::train
