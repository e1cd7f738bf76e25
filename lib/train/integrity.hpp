// Watches that all replicas hold the same weights, a part of them every step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {
/// Before a step each rank hashes a part of its weights, another one every step and all of them
/// within `parts` steps, and all compare: one small message. Replicas that differ for that long
/// cannot pass.
///
/// What it finds   with 1 part, any bit that differs when a step begins, before a forward reads it,
///                 in a twentieth of a step's time. With more parts, replicas that stay different:
///                 under `allreduce` any flipped bit, for every rank updates its own copy for ever,
///                 and an update that one rank skipped or took twice; under `canonical` a memory
///                 cell that is stuck, or a slice that did not arrive.
/// What it cannot  a wrong value that all ranks share. Under `canonical` the slices are published
///                 anew in every step, so where there are several parts a bit that flips once is
///                 either overwritten by its owner's weights before its turn comes, or, in the
///                 owner's copy, reaches all ranks alike; and no comparison of weights sees a
///                 gradient that was computed wrongly. For those there is the audit (audit.hpp).
class Sentinel {
 public:
  static constexpr std::uint64_t default_parts = 16;

  /// Both must outlive the sentinel. `parts` is at least 1.
  Sentinel(const nn::Network<float>& network, comm::Communicator& comm, std::uint64_t parts);

  /// Compares the part that is due before step `step` (from 1) of what `update` computes on: by
  /// hashes of its own where all ranks' steps have such, else by those of `network`'s block.
  ///
  /// Errors   throws comm::AgreedError (70) on every rank; it names step, tensor and the odd rank,
  ///          by majority; with two ranks both.
  /// Ranks    collective.
  void check(std::uint64_t step, Step& update);

 private:
  Range due(std::uint64_t step) const noexcept;
  std::uint64_t hash(Range part, Step& update);
  [[noreturn]] void report(std::uint64_t step, Range part);

  const nn::Network<float>& network_;
  comm::Communicator& comm_;
  std::uint64_t parts_;
  std::vector<std::uint64_t> hashes_;
  std::optional<bool> by_steps_;  // whether all ranks' steps hash; unknown before the first check
};

// Silent corruption: now and then another rank computes the same again, and the bits must agree.

/// Every N steps of the canonical reduction, when all ranks hold all rows: the next rank computes
/// one leaf's activations and gradients again, and every rank its predecessor's slice of the
/// weights' gradients. Leaves take turns.
///
/// It finds what no comparison of replicas can: a wrong activation or gradient that all ranks
/// would have trusted. It covers one leaf of the audited steps, and all of their weight gradients.
/// With one rank there is nobody else: it computes its own again, and finds what does not happen
/// twice.
class Audit {
 public:
  /// Both must outlive the audit. `every` counts steps; none: never.
  /// Errors   throws ConfigError: another loss than softmax cross-entropy.
  Audit(nn::Network<float>& network, comm::Communicator& comm, std::optional<std::uint64_t> every);

  bool due(std::uint64_t step) const noexcept { return every_ && step % *every_ == 0; }

  /// After the exchange of rows: computes a leaf of `batch` again.
  ///
  /// Errors   throws comm::AgreedError (70) on every rank; names step, leaf and both ranks.
  /// Ranks    collective.
  void check_leaf(std::uint64_t step, const data::Batch& batch);

  /// After weight_gradients() and before the update: computes the predecessor's slice again.
  /// `slice` is this rank's own; slices are equally long.
  void check_gradients(std::uint64_t step, const data::Batch& batch, Range slice);

 private:
  std::uint64_t hash_rows(nn::Rows rows);
  void recover_labels(nn::Rows rows, Matrix<const float> logits);
  [[noreturn]] static void fail(std::uint64_t step, const std::string& what, int owner,
                                int auditor);

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  std::optional<std::uint64_t> every_;
  std::vector<std::int32_t> labels_;
  std::vector<std::uint64_t> hashes_;  // of every rank: what it was given or made, and made again
};

}  // namespace lockstep::train
