// Balance: moves leaves of a batch from slow ranks to fast ones between epochs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/plan.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::train {

/// Shares (see data::Plan) with which the slowest rank needs little time, if rank r needs
/// `seconds[r]` for each leaf. Returns `shares` unless others take at least a tenth less. Every
/// rank keeps at least one leaf, unless there are fewer leaves than ranks. A rank without a leaf,
/// whose time is not known, counts as the median rank. Pure.
///
/// Source   greedy list scheduling, which is optimal for tasks of equal size: each leaf goes to the
///          rank that would be finished with it first. Ranks exchange a sum for each subtree of
///          their leaves, so runs of 2, 4, ... leaves are dealt instead, the longest ones with
///          which the slowest rank takes at most 1/0.9 of its time with single leaves.
std::vector<std::uint64_t> balanced_shares(const std::vector<std::uint64_t>& shares,
                                           std::vector<double> seconds,
                                           std::uint64_t largest_share);

/// Measures the steps of each epoch, and computes the shares of the next one.
///
/// Only full batches count, and not the first steps of training. Where ranks wait for each other
/// before they send their results, as in layers that sum over the batch, their own times are known
/// only if a flight recorder records the collectives (Communicator::record_in()). Shares with which
/// steps have not become faster, because the exchange takes longer than the slowest rank gains, are
/// changed back, and the next change waits: one epoch, then two, four, ...
class Balance {
 public:
  /// `plan` must outlive this; the plan of the ranks of "batch", with PlanOptions::balance.
  explicit Balance(const data::Plan& plan);

  /// Adds a step (from 0) of an epoch: the ranks' own times, and the time from reading the batch to
  /// the end of the update. Local.
  void add(std::uint64_t step, std::span<const RankMessage> messages, double seconds);

  /// The shares of the next epoch, identical on every rank; begins a new measurement. In a mesh the
  /// slowest rank of "model" counts.
  /// Ranks    collective.
  std::vector<std::uint64_t> next_shares(const Groups& groups);

 private:
  const data::Plan& plan_;
  std::uint64_t warm_up_;
  // Of the epoch.
  std::uint64_t steps_ = 0;
  std::vector<double> rank_seconds_;  // of each rank's own work
  double seconds_ = 0;                // of whole steps
  // Of the epoch before, if it had other shares.
  std::vector<std::uint64_t> shares_before_;
  double step_before_ = 0;  // seconds
  bool is_first_ = false;   // the next step is the first one with new shares, and does not count
  std::uint64_t wait_ = 0;  // epochs until shares may change
  std::uint64_t next_wait_ = 1;
};

}  // namespace lockstep::train
