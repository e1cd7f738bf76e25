// Reports of a training run, the callbacks that receive them, and the timer of its phases.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/evaluation.hpp"

namespace lockstep::train {

/// What each rank sends in a step besides its results.
struct RankMessage {
  std::uint64_t stop = 0;  ///< its request to stop after this step; 0: none
  /// Of its own work before the exchange: reading the batch, forward, loss, backward, without
  /// collectives that a flight recorder records (Communicator::record_in()).
  double seconds = 0;
};

/// Report of one step, over all ranks. The loss is the mean with the weights of examples and
/// classes, if there are such; accuracy counts each example once.
struct StepReport {
  std::uint64_t step = 0;   ///< from 1, over the whole run
  std::uint64_t epoch = 0;  ///< from 1
  std::uint64_t examples = 0;
  double loss = 0;
  std::optional<double> accuracy = {};  ///< of classification
  double seconds = 0;  ///< from the end of the previous step to the end of this one
  /// Name and hash of every tensor after the update; empty in steps without hashes.
  std::vector<std::pair<std::string, std::uint64_t>> hashes = {};
  std::optional<double> learning_rate = {};  ///< with a schedule
  std::optional<double> gradient_norm =
      {};  ///< of all weights, before it was clipped: with clip_norm
  /// Why the step changed nothing; empty if it did. Then the loss may be not finite.
  std::string skipped = {};
  std::span<const RankMessage> messages = {};  ///< of every rank; valid until the next step
  double weight = 0;  ///< of the examples in all; without weights their number
};

/// Report of one epoch. Training loss and score are of its examples, computed before the update of
/// each step, without those of skipped steps.
///
/// The score is accuracy; or, of a regression, R2: of training with the mean squared error 1 -
/// loss, which assumes values with a variance of 1, as a table gives them, and no weights.
struct EpochReport {
  std::uint64_t epoch = 0;  ///< from 1
  double train_loss = 0;
  std::optional<double> train_score = {};  ///< none of other regressions
  SetFigures test = {};
  bool is_regression = false;
  std::optional<SetFigures> validation = {};
  double seconds = 0;  ///< of training in this process, without evaluation
  double examples_per_second = 0;
  std::uint64_t weights_hash = 0;
  /// The leaves of a batch that each rank computes from the next epoch on (Plan::shares()); empty
  /// if that does not change.
  std::vector<std::uint64_t> new_shares = {};
};

/// Seconds of one step by phase, measured on rank 0; `total` includes the time between phases.
struct PhaseSeconds {
  double total = 0;
  double data = 0;     ///< reading the batch
  double compute = 0;  ///< forward, loss, backward
  double reduce = 0;   ///< sums over ranks, including the wait for the slowest rank
  double update = 0;   ///< the optimizer
  double forward = 0;  ///< part of `compute`: forward and loss; 0 on a device
  double publish = 0;  ///< part of `reduce`: the all-gather of updated slices
};

/// Report of the whole run.
struct RunReport {
  std::uint64_t steps = 0;  ///< of the whole run, as `examples`
  std::uint64_t examples = 0;
  std::uint64_t skipped_steps = 0;  ///< of them, without an update
  std::uint64_t stop = 0;           ///< a rank's request to stop, as agreed; 0: trained to the end
  std::vector<EpochReport> epochs;  ///< those that ended in this process
  PhaseSeconds step_seconds;        ///< medians over the steps after the first ten
  double startup_seconds = 0;       ///< of the process, until its first step was done; 0: unknown
  double evaluation_seconds = 0;    ///< of the test set, after the last epoch
  double checkpoint_seconds = 0;    ///< after the last step, until all that is saved is written
  double examples_per_second = 0;
  std::uint64_t weights_hash = 0;
  BestEpoch best = {};         ///< with a validation set
  bool stopped_early = false;  ///< before the last epoch, by Validation::patience
  Evaluation test;             ///< of the last one of `epochs`
  /// Bytes of training records that each rank read from its files; empty if not counted.
  std::vector<std::uint64_t> bytes_read = {};
  /// Time of each rank's own work before the exchange of a step: means over the steps after the
  /// first ten. In a mesh, of the ranks of "batch".
  std::vector<double> seconds_before_exchange = {};
  /// The leaves of a batch that each of them computed in the last epoch; empty without `balance`.
  std::vector<std::uint64_t> shares = {};
};

class Snapshot;  // internal: a copy of the weights and of the optimizer state

/// A checkpoint that is to be saved.
struct DueCheckpoint {
  const Snapshot& snapshot;
  TrainingPosition position;
  std::uint64_t step = 0;
  std::uint64_t examples = 0;  ///< of all steps so far
};

/// Training callbacks, called on rank 0 only. Exceptions end the run.
class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer() = default;

  virtual void on_step(const StepReport& report) = 0;
  virtual void on_epoch(const EpochReport& report) = 0;
  /// Called when a checkpoint is due. The snapshot may be used until finish_checkpoint() returns,
  /// also by another thread.
  virtual void on_checkpoint(const DueCheckpoint& due) = 0;
  /// Called before the next checkpoint, before the state is kept in memory that outlives this
  /// process, and at the end: returns when the snapshot of the last one is no longer used, and
  /// throws if it could not be saved.
  virtual void finish_checkpoint() {}
  /// Called before the state is kept in memory that outlives this process: records so far must
  /// outlive it too.
  virtual void flush() {}
};

/// The first steps of training, which do not count where times are summed.
inline constexpr std::uint64_t warm_up_steps = 10;

/// A timer: take() returns the seconds since its last call, or since construction.
class Lap {
 public:
  double take() {
    const double now = seconds();
    return now - std::exchange(last_, now);
  }

 private:
  static double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }
  double last_ = seconds();
};

/// The median of `values`, which are not empty; of an even number the lower one. Reorders them.
template <class Value>
Value median(std::vector<Value>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep::train
