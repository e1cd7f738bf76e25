// The training loop of synchronous data-parallel training.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

class Balance;

/// A validation set, and what is decided by it, which is the same on all ranks.
struct Validation {
  data::BatchReader* reader = nullptr;  ///< with evaluation_plan(); null: no validation set
  /// The figure that makes an epoch the best: "loss", of which less is better; "score"
  /// (EpochReport), or the name of one of TrainerOptions::metrics, of which more is.
  std::string monitored = "loss";
  /// Training ends after this many epochs that are not better than the best one; nullopt: never.
  std::optional<std::uint64_t> patience = {};
  bool keeps_best = false;  ///< saves a checkpoint after each epoch that is the best so far
};

/// Length of training, and intervals of checkpoints and hashes.
struct TrainerOptions {
  std::uint64_t epochs = 1;
  std::optional<std::uint64_t> steps;             ///< maximum number of steps in total
  std::optional<std::uint64_t> checkpoint_every;  ///< in steps; the last step is always saved
  std::optional<std::uint64_t> hash_every = {};   ///< in steps; rank 0 hashes every tensor
  /// Called before every step and every batch of an evaluation, on all ranks or on none. After a
  /// request the step is finished, or the evaluation is dropped, and repeated by a resumed run.
  StopRequest stop = {};
  /// Called when a phase begins, with the step that is trained, or in the phases evaluation,
  /// checkpoint and end with the number of completed steps.
  std::function<void(Phase, std::uint64_t)> on_phase = {};
  SharedSnapshot* snapshot = nullptr;  ///< where the state is kept for other groups; null: nowhere
  std::uint64_t snapshot_every = 1;    ///< in steps
  /// False: no checkpoint may have the state from which training starts, that of a snapshot.
  bool start_is_saved = true;
  Validation validation = {};
  std::vector<Metric> metrics = {};  ///< of test and validation set, after each epoch
};

/// Total number of training steps: those of `epochs` epochs of the plan, or `steps` if that is
/// less.
std::uint64_t total_steps(std::uint64_t epochs, std::optional<std::uint64_t> steps,
                          const data::Plan& plan);

/// True if `patience` epochs have ended since the best one, at the end of an epoch: training stops
/// early. Local.
bool is_patience_over(const TrainingPosition& position,
                      std::optional<std::uint64_t> patience) noexcept;

/// Trains one replica synchronously with the other ranks; every rank creates one and calls run().
///
/// Pieces may be uneven or empty. If the plan of `train` has the option `balance`, leaves move from
/// slow ranks to fast ones between epochs (balance.hpp). One thread per rank.
class Trainer {
 public:
  /// `train` reads with the replica's plan, `test` with evaluation_plan(). `start`: the position of
  /// a restored replica (Replica::restore()). All must outlive the trainer.
  Trainer(const TrainerOptions& options, Replica& replica, data::BatchReader& train,
          data::BatchReader& test, const TrainingPosition& start = {});

  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to the end and evaluates after every epoch. `observers` are called on rank 0 only.
  /// If a rank asks to stop, saves a checkpoint after that step and returns, without an evaluation;
  /// within an evaluation it saves what was trained.
  /// Starts with the evaluation if all steps of the current epoch, or of the run, are completed.
  ///
  /// Errors   throws comm::AgreedError on all ranks: training diverged (76), replicas differ (70,
  ///          see integrity.hpp), a step that is repeated from a snapshot has another loss (70);
  ///          and the errors of reading, communication and observers.
  /// Ranks    collective. The report is identical on all ranks except for its times.
  RunReport run(const std::vector<Observer*>& observers);

 private:
  void enter(Phase phase, std::uint64_t step) {
    if (options_.on_phase) options_.on_phase(phase, step);
  }

  /// Examples and seconds of training in this process.
  struct Timed {
    std::uint64_t examples = 0;
    double seconds = 0;
    double rate() const { return seconds > 0 ? static_cast<double>(examples) / seconds : 0; }
  };

  /// Sums of the ranks' times before the exchange, over the steps after the warm-up.
  struct BeforeExchange {
    std::uint64_t steps = 0;  ///< with those of the warm-up
    std::vector<double> seconds;
    void add(std::span<const RankMessage> messages);
    std::vector<double> means() const;
  };

  Evaluation evaluate_set(data::BatchReader& reader, const std::string& set);
  SetFigures figures_of(const Evaluation& set) const;
  std::optional<EpochReport> evaluate(const Timed& timed);
  void judge(const SetFigures& validation);
  Timed train_steps(const std::vector<Observer*>& observers);
  StepResult train(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop);
  std::string text_of_saved() const;
  std::vector<std::pair<std::string, std::uint64_t>> hashes_due();
  std::unique_ptr<data::Prefetch> read_ahead();
  std::vector<std::uint64_t> rebalance();
  void save(const std::vector<Observer*>& observers);
  void keep(const std::vector<Observer*>& observers);
  bool finished() const noexcept;

  TrainerOptions options_;
  Replica& replica_;
  data::BatchReader& reader_;
  std::unique_ptr<data::Prefetch> train_;
  data::BatchReader& test_;
  TrainingPosition position_;
  std::unique_ptr<Snapshot> snapshot_;  ///< null on ranks that do not copy to it
  Timed timed_;
  std::uint64_t stop_ = 0;                   ///< agreed between all ranks
  std::optional<std::uint64_t> saved_step_;  // of the last checkpoint
  std::uint64_t saved_best_;                 // and the step of the best epoch in it
  bool is_saving_ = false;                   // until keep() has waited for the last save()
  bool has_saved_ = false;                   // a checkpoint, since this was created
  double startup_seconds_ = 0;
  double evaluation_seconds_ = 0;
  Evaluation last_test_;
  std::vector<PhaseSeconds> phases_;
  BeforeExchange before_exchange_;
  std::unique_ptr<Balance> balance_;  ///< null unless the plan allows it
};

}  // namespace lockstep::train
