// Synchronous data-parallel training: the loop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/integrity.hpp"
#include "lib/train/report.hpp"
#include "lib/train/step.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::train {

/// How long to train and when to save; the rest is in the parts that the trainer is given.
struct TrainerOptions {
  std::uint64_t epochs = 1;
  std::optional<std::uint64_t> steps;                      ///< in all
  std::optional<std::uint64_t> checkpoint_every;           ///< steps; the end is always saved
  std::optional<std::uint64_t> hash_every = {};            ///< steps; of every tensor, by rank 0
  std::uint64_t sentinel_steps = Sentinel::default_parts;  ///< in which all weights are compared
  std::size_t prefetch = 0;                                ///< batches read ahead; 0: none
};

/// Steps that training takes: `epochs` of the plan's, or `steps` if that is less.
std::uint64_t total_steps(std::uint64_t epochs, std::optional<std::uint64_t> steps,
                          const data::Plan& plan);

/// Trains one replica in step with its peers; every rank makes one and calls run().
///
/// Pieces may be uneven or empty. One thread a rank.
class Trainer {
 public:
  /// The parts must outlive the trainer. `network` holds the weights as step.show_weights() shows
  /// them; `inference` is of what the step trains, with rows for Plan::largest_piece() of the test
  /// reader's plan. The step and the readers are those of a rank of `groups.batch`.
  Trainer(const TrainerOptions& options, nn::Network<float>& network, Step& step,
          Inference& inference, data::BatchReader& train, data::BatchReader& test,
          const Groups& groups);

  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to the end and evaluates after every epoch. `observers` are told on rank 0 alone.
  ///
  /// Errors   throws comm::AgreedError, on all ranks alike: diverged (76), replicas that differ
  ///          (70, see sentinel.hpp and audit.hpp); and what reading, communicating and observers
  ///          throw.
  /// Ranks    collective. The report is the same on all ranks but for its times.
  RunReport run(const std::vector<Observer*>& observers);

 private:
  struct EpochSums;

  EpochReport run_epoch(std::uint64_t epoch, const std::vector<Observer*>& observers);
  void train_steps(std::uint64_t epoch, EpochSums& sums, const std::vector<Observer*>& observers);
  data::Batch next_batch(std::uint64_t epoch, std::uint64_t step);
  void stage_following(std::uint64_t epoch, std::uint64_t step);
  nn::Tally train_step(std::uint64_t epoch, std::uint64_t step, PhaseSeconds& seconds);
  std::vector<std::pair<std::string, std::uint64_t>> hashes_due();
  void save(const std::vector<Observer*>& observers);
  void show_weights();
  static void require_finite(bool finite, std::uint64_t step, const char* what);
  void require_same_replicas(std::uint64_t hash);
  bool finished() const noexcept;

  TrainerOptions options_;
  nn::Network<float>& network_;
  Step& update_;
  Inference& inference_;
  Sentinel sentinel_;
  data::Prefetch train_;
  data::BatchReader& test_;
  Groups groups_;
  std::uint64_t total_steps_;
  std::uint64_t step_ = 0;
  std::uint64_t examples_ = 0;
  std::uint64_t saved_step_ = 0;
  double startup_seconds_ = 0;
  Evaluation last_test_;
  std::vector<PhaseSeconds> phases_;
};

}  // namespace lockstep::train
