// Checks for faulty memory and arithmetic: Sentinel compares the weights of all replicas, Audit
// recomputes samples of a step on another rank.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::train {

class DeviceReplica;

/// Replicas differ, or an audit failed (70): thrown on every rank.
class FaultFound : public comm::AgreedError {
 public:
  FaultFound(const Error& error, std::uint64_t step, std::optional<int> rank,
             std::uint64_t good_steps, std::uint64_t doubtful_steps = 0)
      : AgreedError(error.code(), error.problem(), error.remedy()),
        step_(step),
        rank_(rank),
        good_steps_(good_steps),
        doubtful_steps_(doubtful_steps) {}

  /// The step that was checked, from 1.
  std::uint64_t step() const noexcept { return step_; }

  /// The rank that most others contradict; none without a majority.
  std::optional<int> rank() const noexcept { return rank_; }

  /// The greatest number of completed steps after which the weights were good, as far as
  /// checks show.
  std::uint64_t good_steps() const noexcept { return good_steps_; }

  /// The same if the rank was wrong in other steps too, which no check may have found.
  std::uint64_t good_steps_if_lasting() const noexcept {
    return good_steps_ - std::min(good_steps_, doubtful_steps_);
  }

 private:
  std::uint64_t step_;
  std::optional<int> rank_;
  std::uint64_t good_steps_;
  std::uint64_t doubtful_steps_;
};

/// Compares hashes of all weights after `steps` completed steps; `good_steps`: for the error.
/// Throws FaultFound on every rank unless they are equal. Collective.
void require_same_weights(comm::Communicator& comm, std::uint64_t hash, std::uint64_t steps,
                          std::uint64_t good_steps);

/// Compares the weights of all replicas by hashes.
///
/// In every step each rank hashes one part of its weights; the parts rotate, so all weights are
/// hashed every `parts` steps. The hashes are sent with the step's first message, and every rank
/// compares them. Replicas that differ for `parts` steps are detected.
///
/// Detects     with 1 part, any bit that differs when a step begins, before an update uses it; this
///             takes a twentieth of a step's time. With more parts, replicas that remain different:
///             with `allreduce` any flipped bit, because every rank updates its own copy, and an
///             update that one rank skipped or computed twice; with `canonical` a stuck memory
///             cell, or a slice that was not received.
/// Does not detect a wrong value that is the same on all ranks. With `canonical` the slices are
///             published in every step, so with several parts a single bit flip is either
///             overwritten by the owner's weights before its part is hashed or, in the owner's
///             copy, sent to all ranks. Nor does it detect a wrong gradient; the audit does.
class Sentinel {
 public:
  /// `device`: the replica that holds the weights; null: `network` holds them. `parts` is at least
  /// 1. `network`, `device` and the communicators of `groups` must outlive the sentinel.
  Sentinel(const nn::Network<float>& network, DeviceReplica* device, const Groups& groups,
           std::uint64_t parts);

  /// Hashes the part of step `step` (from 1), before the step: on the device if all ranks have one,
  /// else on the host. Returns the buffer of all ranks' hashes, to be all-gathered; empty with one
  /// rank.
  /// Ranks    local, except for the first call, which is collective.
  std::span<std::byte> begin(std::uint64_t step);

  /// Compares the hashes of the ranks of "batch" after the all-gather.
  ///
  /// Errors   throws FaultFound on every rank, with step, tensor and the rank that differs from the
  ///          majority; with two ranks, both.
  /// Ranks    local without "model", and collective if they differ; else collective.
  void compare();

  /// Notes that training starts after this number of completed steps, with weights that are equal
  /// on all ranks. Local.
  void begin_after(std::uint64_t steps) noexcept { start_ = steps; }

  /// The number of completed steps after which the weights were good, when replicas are found to
  /// differ after `steps`: each part was compared in the `parts` steps before. That they are equal
  /// later is not enough, because all ranks use the gradients that a rank computes. Local.
  std::uint64_t good_steps(std::uint64_t steps) const noexcept {
    return std::max(start_, steps - std::min(steps, parts_));
  }

 private:
  std::uint64_t hash();
  void copy_part_to_host();
  [[noreturn]] void report();

  const nn::Network<float>& network_;
  DeviceReplica* device_;
  const Groups groups_;
  comm::Communicator& comm_;  // of "batch"
  std::uint64_t parts_;
  std::uint64_t step_ = 0;
  std::uint64_t start_ = 0;
  Range part_;                            // hashed at step_
  AlignedBuffer<std::uint64_t> hashes_;   // of every rank
  std::optional<bool> all_have_devices_;  // unknown before the first hash
};

/// Recomputes a sample of a step on another rank, every N steps of the canonical reduction.
///
/// When all ranks hold all rows, the next rank recomputes the activations and gradients of one
/// leaf, a different leaf each time, and every rank recomputes its predecessor's slice of the
/// weight gradients. If one of them fails, all ranks compute the same to find out which of the two
/// was wrong. If that rank now computes it right, only the audited step is in doubt; else every
/// step of the last round of audits, which is one audit of each leaf.
///
/// An epoch's last batch may have fewer leaves. Its audits do not count when the leaf is chosen, so
/// that those of the other batches visit every leaf in turn; an interval that is a multiple of the
/// steps of an epoch audits last batches alone. Steps are counted as whole epochs of the plan: in a
/// program that breaks off an epoch, some leaves may never be audited.
///
/// Detects a wrong activation or gradient, which all ranks would use. Covers one leaf of each
/// audited step, and all of its weight gradients. With one rank, the rank recomputes its own values
/// and detects errors that do not repeat.
class Audit {
 public:
  /// `every`: audit interval in steps; none: no audits. All must outlive the audit.
  Audit(nn::Network<float>& network, const data::Plan& plan, comm::Communicator& comm,
        std::optional<std::uint64_t> every);

  bool due(std::uint64_t step) const noexcept { return every_ && step % *every_ == 0; }

  /// Copies this rank's targets and their weights to its blocks. Returns the blocks of all ranks,
  /// to be all-gathered with the rows before check_leaf(). Local.
  std::array<std::span<std::byte>, 2> put_targets(const data::Batch& batch);

  /// Recomputes a leaf of `batch`, after the exchange of rows and targets. Does not change the
  /// layers' state.
  ///
  /// Errors   throws FaultFound on every rank, with step, leaf and both ranks.
  /// Ranks    collective.
  void check_leaf(std::uint64_t step, const data::Batch& batch);

  /// Recomputes the predecessor's slice of the gradients, after weight_gradients() and before the
  /// update. `segments`: see Step.
  void check_gradients(std::uint64_t step, const data::Batch& batch,
                       std::span<const Range> segments);

 private:
  std::uint64_t counted_audits(std::uint64_t step) const noexcept;
  std::uint64_t steps_of_round(const data::Batch& batch) const noexcept;
  std::uint64_t hash_rows(Range rows);
  [[noreturn]] void fail(std::uint64_t step, const data::Batch& batch, const std::string& what,
                         int owner, std::uint64_t by_owner, std::uint64_t by_this_rank);

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  std::optional<std::uint64_t> every_;
  std::uint64_t leaves_ = 0;  // of an epoch's first batch
  // Every so many audits one is of an epoch's last batch, which has fewer leaves; 0: never, or all.
  std::uint64_t short_every_ = 0;
  // Targets of all rows, of the kind that the loss takes; empty without audits.
  AlignedBuffer<std::int32_t> labels_;
  std::size_t values_each_ = 0;  // 0: labels
  AlignedBuffer<float> values_;
  AlignedBuffer<float> weights_;       // 1 where examples have none
  std::vector<std::uint64_t> hashes_;  // of every rank: its own values, and the recomputed ones
};

}  // namespace lockstep::train
