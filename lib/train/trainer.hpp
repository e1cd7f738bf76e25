// Synchronous data-parallel training: the loop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/batches.hpp"
#include "lib/train/replica.hpp"
#include "lib/train/report.hpp"

namespace lockstep::train {

/// How long to train and when to save; the rest is in the parts that the trainer is given.
struct TrainerOptions {
  std::uint64_t epochs = 1;
  std::optional<std::uint64_t> steps;             ///< in all
  std::optional<std::uint64_t> checkpoint_every;  ///< steps; the end is always saved
  std::optional<std::uint64_t> hash_every = {};   ///< steps; of every tensor, by rank 0
};

/// Steps that training takes: `epochs` of the plan's, or `steps` if that is less.
std::uint64_t total_steps(std::uint64_t epochs, std::optional<std::uint64_t> steps,
                          const data::Plan& plan);

/// Trains one replica in step with its peers; every rank makes one and calls run().
///
/// Pieces may be uneven or empty. One thread a rank.
class Trainer {
 public:
  /// `train` reads along the replica's plan, `test` along evaluation_plan(). All must outlive the
  /// trainer.
  Trainer(const TrainerOptions& options, Replica& replica, data::BatchReader& train,
          data::BatchReader& test);

  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to the end and evaluates after every epoch. `observers` are told on rank 0 alone.
  ///
  /// Errors   throws comm::AgreedError, on all ranks alike: diverged (76), replicas that differ
  ///          (70, see integrity.hpp); and what reading, communicating and observers
  ///          throw.
  /// Ranks    collective. The report is the same on all ranks but for its times.
  RunReport run(const std::vector<Observer*>& observers);

 private:
  struct EpochSums;

  EpochReport run_epoch(std::uint64_t epoch, const std::vector<Observer*>& observers);
  void train_steps(std::uint64_t epoch, EpochSums& sums, const std::vector<Observer*>& observers);
  std::vector<std::pair<std::string, std::uint64_t>> hashes_due();
  void save(const std::vector<Observer*>& observers);
  bool finished() const noexcept;

  TrainerOptions options_;
  Replica& replica_;
  data::Prefetch train_;
  data::BatchReader& test_;
  std::uint64_t saved_step_ = 0;
  double startup_seconds_ = 0;
  Evaluation last_test_;
  std::vector<PhaseSeconds> phases_;
};

}  // namespace lockstep::train
