// What a training run tells: to the person in front of it, and to the run directory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/train/evaluation.hpp"

namespace lockstep::train {

/// One step, over all ranks. Means are over the step's true number of examples.
struct StepReport {
  std::uint64_t step = 0;   ///< from 1, over the whole run
  std::uint64_t epoch = 0;  ///< from 1
  std::uint64_t examples = 0;
  double loss = 0;
  double accuracy = 0;
  double seconds = 0;  ///< from the last step's end to this one's
  /// Every tensor's name and hash after the step's update; empty where none is due.
  std::vector<std::pair<std::string, std::uint64_t>> hashes = {};
};

/// One epoch. Training figures are means over its examples, each taken just before its update.
struct EpochReport {
  std::uint64_t epoch = 0;  ///< from 1
  double train_loss = 0;
  double train_accuracy = 0;
  double test_loss = 0;
  double test_accuracy = 0;
  double seconds = 0;  ///< of training alone, without the evaluation
  double examples_per_second = 0;
  std::uint64_t weights_hash = 0;
};

/// Seconds of one step by phase, as rank 0 measured them; `total` includes what is between.
struct PhaseSeconds {
  double total = 0;
  double data = 0;     ///< reading the batch
  double compute = 0;  ///< forward, loss, backward
  double reduce = 0;   ///< summing over ranks, waiting for the slowest included
  double update = 0;   ///< Adam
};

/// The whole run.
struct RunReport {
  std::uint64_t steps = 0;
  std::uint64_t examples = 0;
  std::vector<EpochReport> epochs;
  PhaseSeconds step_seconds;  ///< medians over the steps after the first ten
  double startup_seconds = 0;
  double examples_per_second = 0;
  std::uint64_t weights_hash = 0;
  Evaluation test;  ///< after the last step
  /// Bytes of training records that each rank read from its files; empty where nobody counted.
  std::vector<std::uint64_t> bytes_read = {};
};

/// Whoever wants to know. Called on rank 0 alone; exceptions end the run.
class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer() = default;

  virtual void on_step(const StepReport& report) = 0;
  virtual void on_epoch(const EpochReport& report) = 0;
  /// The weights after `step` steps shall be saved, if the observer saves.
  virtual void on_checkpoint(const nn::Network<float>& network, std::uint64_t step,
                             std::uint64_t examples) = 0;
};

}  // namespace lockstep::train
