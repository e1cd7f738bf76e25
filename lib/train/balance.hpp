// Balance: moves leaves of a batch from slow ranks to fast ones between epochs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

/// The shares (see data::Plan) with which the slowest rank needs least time, if rank r needs
/// `seconds[r]` for each leaf. Returns `shares` unless others take at least a tenth less. Every
/// rank keeps at least one leaf, unless there are fewer leaves than ranks. A rank without a leaf,
/// whose time is not known, counts as the median rank. Pure.
///
/// Source   greedy list scheduling, which is optimal for tasks of equal size: each leaf goes to the
///          rank that would be finished with it first.
std::vector<std::uint64_t> balanced_shares(const std::vector<std::uint64_t>& shares,
                                           std::vector<double> seconds,
                                           std::uint64_t largest_share);

/// Measures an epoch's steps and computes the shares of the next one.
///
/// Only full batches count, and not the first steps of training.
class Balance {
 public:
  /// `plan` must outlive this; the plan of the ranks of "batch", with PlanOptions::balance.
  explicit Balance(const data::Plan& plan);

  /// Adds the ranks' times of a step (from 0) of an epoch. Local.
  void add(std::uint64_t step, std::span<const RankMessage> messages);

  /// The shares of the next epoch, identical on every rank; begins a new measurement. `model`: the
  /// ranks of "model" of a mesh, of which the slowest counts; null: none.
  /// Ranks    collective over `model`; local without.
  std::vector<std::uint64_t> next_shares(comm::Communicator* model);

 private:
  const data::Plan& plan_;
  std::uint64_t warm_up_;
  std::uint64_t steps_ = 0;
  std::vector<std::uint64_t> nanoseconds_;  // of each rank, in those steps
};

}  // namespace lockstep::train
