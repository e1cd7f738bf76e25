#include "lockstep/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/balance.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/nonfinite.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

constexpr std::uint64_t max_timed_steps = 1 << 20;

double median_of(std::span<const PhaseSeconds> steps, double PhaseSeconds::*phase) {
  if (steps.empty()) return 0;
  std::vector<double> values;
  for (const auto& step : steps) values.push_back(step.*phase);
  return median(values);
}

/// Medians after the warm-up steps; over all steps if the run is not longer than the warm-up.
PhaseSeconds medians(std::span<const PhaseSeconds> steps) {
  if (steps.size() > warm_up_steps) steps = steps.subspan(warm_up_steps);
  return {median_of(steps, &PhaseSeconds::total),   median_of(steps, &PhaseSeconds::data),
          median_of(steps, &PhaseSeconds::compute), median_of(steps, &PhaseSeconds::reduce),
          median_of(steps, &PhaseSeconds::update),  median_of(steps, &PhaseSeconds::forward),
          median_of(steps, &PhaseSeconds::publish)};
}

}  // namespace

std::uint64_t total_steps(std::uint64_t epochs, std::optional<std::uint64_t> steps,
                          const data::Plan& plan) {
  const std::uint64_t max = steps.value_or(std::numeric_limits<std::uint64_t>::max());
  const std::uint64_t each = std::max<std::uint64_t>(plan.steps(), 1);
  return epochs > max / each ? max : std::min(max, epochs * each);
}

Trainer::Trainer(const TrainerOptions& options, Replica& replica, data::BatchReader& train,
                 data::BatchReader& test, const TrainingPosition& start)
    : options_(options),
      replica_(replica),
      reader_(train),
      train_(read_ahead()),
      test_(test),
      position_(start),
      snapshot_(replica.make_snapshot()),
      saved_best_(start.best.step) {
  if (options.start_is_saved) saved_step_ = replica.steps();
  // An epoch that was cut short, and goes on, is not compared with its first steps.
  const bool is_cut = start.best.epoch > start.epoch && start.step < train.plan().steps();
  if (is_cut) position_.best = {};
  if (train.plan().options().balance) balance_ = std::make_unique<Balance>(train.plan());
  const std::uint64_t each = std::min(train.plan().steps(), max_timed_steps);
  const std::uint64_t epochs = std::min(options.epochs, max_timed_steps);
  phases_.reserve(
      std::min({epochs * each, options.steps.value_or(max_timed_steps), max_timed_steps}));
}

/// The batches of the whole run.
std::unique_ptr<data::Prefetch> Trainer::read_ahead() {
  const auto batches = total_steps(options_.epochs, options_.steps, reader_.plan());
  return std::unique_ptr<data::Prefetch>(  // which cannot be moved
      new data::Prefetch(replica_.prefetch(reader_, batches)));
}

Trainer::~Trainer() { replica_.drop_staged(); }  // before train_ frees their memory

namespace {

/// Waits at the end of a scope until observers no longer use the snapshot.
class SnapshotInUse {
 public:
  explicit SnapshotInUse(const std::vector<Observer*>& observers) : observers_(observers) {}
  SnapshotInUse(const SnapshotInUse&) = delete;
  SnapshotInUse& operator=(const SnapshotInUse&) = delete;
  ~SnapshotInUse() {
    for (Observer* observer : observers_) {
      try {
        observer->finish_checkpoint();
      } catch (const std::exception&) {  // the error that ends the scope is reported instead
      }
    }
  }

 private:
  const std::vector<Observer*>& observers_;
};

}  // namespace

RunReport Trainer::run(const std::vector<Observer*>& observers) {
  const SnapshotInUse guard(observers);
  RunReport report;
  comm::together(replica_.groups().all, [&] { train_->start(); });
  replica_.begin_training();  // what is kept and saved must be good
  keep(observers);
  for (;;) {
    const Timed timed = train_steps(observers);
    timed_.examples += timed.examples;
    timed_.seconds += timed.seconds;
    if (stop_ != 0) break;
    if (position_.examples == 0) {
      // One that `steps` cut short can be continued; a whole one would end so again.
      if (position_.step < reader_.plan().steps()) save(observers);
      throw_diverged(replica_.steps(), "all steps of the epoch were skipped" + text_of_saved(),
                     lower_rate);
    }
    std::optional<EpochReport> epoch = evaluate(timed);
    if (!epoch) break;
    report.epochs.push_back(std::move(*epoch));
    // The first steps of an epoch, which `steps` cut short, are the best only if no epoch is.
    const bool is_whole = position_.step == reader_.plan().steps();
    const auto& figures = report.epochs.back().validation;
    if (figures && (is_whole || position_.best.epoch == 0)) judge(*figures);
    const bool is_end = finished() || position_.epoch + 1 >= options_.epochs;
    report.stopped_early = !is_end && is_patience_over(position_, options_.validation.patience);
    const bool is_last = is_end || report.stopped_early;
    if (options_.validation.keeps_best && position_.best.step == replica_.steps()) save(observers);
    if (balance_ && !is_last) report.epochs.back().new_shares = rebalance();
    for (Observer* observer : observers) observer->on_epoch(report.epochs.back());
    if (is_last) break;
    position_ = {.epoch = position_.epoch + 1, .best = position_.best};
  }
  replica_.drop_staged();
  train_.reset();  // after an early stop it may still read: the caller may use the source
  Lap saving;
  save(observers);
  for (Observer* observer : observers) observer->finish_checkpoint();
  report.checkpoint_seconds = saving.take();
  enter(Phase::end, replica_.steps());
  report.steps = replica_.steps();
  report.examples = replica_.examples();
  report.skipped_steps = replica_.skipped_steps();
  report.step_seconds = medians(phases_);
  report.seconds_before_exchange = before_exchange_.means();
  report.shares = reader_.plan().shares();
  report.startup_seconds = startup_seconds_;
  report.evaluation_seconds = evaluation_seconds_;
  report.examples_per_second = timed_.rate();
  report.stop = stop_;
  report.best = position_.best;
  if (!report.epochs.empty()) report.weights_hash = report.epochs.back().weights_hash;
  report.test = last_test_;
  return report;
}

/// Evaluates the records of `reader`, the `set` of an error message, or sets `stop_`. Collective.
Evaluation Trainer::evaluate_set(data::BatchReader& reader, const std::string& set) {
  Evaluation result = replica_.evaluate(reader, options_.metrics, options_.stop);
  stop_ = result.stop;
  if (!std::isfinite(result.loss_sum)) {
    throw_diverged(replica_.steps(), "the " + set + " loss is not finite" + text_of_saved(),
                   lower_rate);
  }
  return result;
}

/// Loss, score and metrics of a set.
SetFigures Trainer::figures_of(const Evaluation& set) const {
  SetFigures figures = {set.loss(), set.score(), {}};
  for (std::size_t m = 0; m < options_.metrics.size(); ++m) {
    figures.metrics.emplace_back(options_.metrics[m].name, set.metrics[m]);
  }
  return figures;
}

/// Evaluates at the end of an epoch; nullopt after a request to stop.
std::optional<EpochReport> Trainer::evaluate(const Timed& timed) {
  enter(Phase::evaluation, replica_.steps());
  Lap testing;
  Evaluation tested = evaluate_set(test_, "test");
  if (stop_ != 0) return std::nullopt;
  evaluation_seconds_ = testing.take();
  std::optional<SetFigures> validation;
  if (options_.validation.reader != nullptr) {
    const Evaluation validated = evaluate_set(*options_.validation.reader, "validation");
    if (stop_ != 0) return std::nullopt;
    validation = figures_of(validated);
  }
  last_test_ = std::move(tested);
  const std::uint64_t hash = replica_.weights_hash();
  const auto count = static_cast<double>(position_.examples);
  const bool is_regression = !last_test_.values.empty();
  const double loss = position_.tally.loss_sum / position_.tally.weight;
  std::optional<double> score;
  if (!is_regression) {
    score = static_cast<double>(position_.tally.correct) / count;
  } else if (!reader_.has_weights() &&
             replica_.network().loss_function().name() == std::string_view(nn::regression_loss)) {
    score = 1 - loss;  // of examples that count alike
  }
  return EpochReport{.epoch = position_.epoch + 1,
                     .train_loss = loss,
                     .train_score = score,
                     .test = figures_of(last_test_),
                     .is_regression = is_regression,
                     .validation = std::move(validation),
                     .seconds = timed.seconds,
                     .examples_per_second = timed.rate(),
                     .weights_hash = hash};
}

/// Compares an epoch with the best one. Of equal ones the first is the best.
void Trainer::judge(const SetFigures& validation) {
  BestEpoch& best = position_.best;
  const std::string& name = options_.validation.monitored;
  const double figure = validation.named(name).value_or(validation.score);
  const bool is_better = is_less_better(name) ? figure < best.figure : figure > best.figure;
  const bool is_first = best.epoch == 0 || (std::isnan(best.figure) && !std::isnan(figure));
  if (!is_first && !is_better) return;
  best = {position_.epoch + 1, replica_.steps(), figure};
}

bool is_patience_over(const TrainingPosition& position,
                      std::optional<std::uint64_t> patience) noexcept {
  return patience && position.best.epoch > 0 &&
         position.epoch + 1 - position.best.epoch >= *patience;
}

/// Moves leaves from slow ranks to fast ones. Returns the new shares; empty: all is as before.
std::vector<std::uint64_t> Trainer::rebalance() {
  std::vector<std::uint64_t> shares = balance_->next_shares(replica_.groups());
  if (shares == reader_.plan().shares()) return {};
  comm::together(replica_.groups().all, [&] {
    replica_.drop_staged();
    train_.reset();  // whose thread reads according to the plan
    reader_.set_shares(shares);
    train_ = read_ahead();
    train_->start();
  });
  return shares;
}

/// For the end of the problem of an error: "; checkpoints ...", or empty.
std::string Trainer::text_of_saved() const {
  return has_saved_ ? "; checkpoints saved before are intact" : "";
}

/// Replica::train(). Where training diverged, the error also names the remedies of a whole run.
StepResult Trainer::train(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop) {
  try {
    return replica_.train(batch, seconds, stop);
  } catch (const comm::AgreedError& error) {
    if (error.code() != ExitCode::diverged) throw;
    const char* const skip =
        "; or leave out steps of such losses and gradients with `on_nonfinite=skip`";
    throw comm::AgreedError(error.code(), error.problem() + text_of_saved(),
                            error.remedy() + (replica_.skips_nonfinite() ? "" : skip));
  }
}

Trainer::Timed Trainer::train_steps(const std::vector<Observer*>& observers) {
  Timed timed;
  Lap whole_step;
  while (position_.step < reader_.plan().steps() && !finished() && stop_ == 0) {
    PhaseSeconds seconds;
    Lap phase;
    enter(Phase::data, replica_.steps() + 1);
    const data::Batch batch = replica_.load(*train_, position_.epoch, position_.step);
    seconds.data = phase.take();
    enter(Phase::step, replica_.steps() + 1);
    const std::uint64_t request = options_.stop ? options_.stop() : 0;
    seconds.compute = phase.take();
    const StepResult result = train(batch, seconds, request);
    stop_ = result.stop;
    const std::uint64_t step = replica_.steps();
    const std::uint64_t examples = batch.global_examples;
    if (startup_seconds_ == 0) startup_seconds_ = process_age_seconds();
    auto hashes = hashes_due();

    seconds.total = whole_step.take();
    if (phases_.size() < phases_.capacity()) phases_.push_back(seconds);
    before_exchange_.add(result.messages);
    if (balance_) {  // without the time of saving and reporting
      balance_->add(position_.step, result.messages,
                    seconds.data + seconds.compute + seconds.reduce + seconds.update);
    }
    ++position_.step;
    if (!result.skipped) {
      position_.tally.loss_sum += result.tally.loss_sum;
      position_.tally.correct += result.tally.correct;
      position_.tally.weight += result.tally.weight;
      position_.examples += examples;
    }
    timed.examples += examples;
    timed.seconds += seconds.total;
    const auto count = static_cast<double>(examples);
    StepReport report{.step = step,
                      .epoch = position_.epoch + 1,
                      .examples = examples,
                      .loss = result.tally.loss_sum / result.tally.weight,
                      .seconds = seconds.total,
                      .hashes = std::move(hashes),
                      .skipped = replica_.why_skipped(),
                      .messages = result.messages,
                      .weight = result.tally.weight};
    if (replica_.network().loss_function().target() != nn::TargetKind::values) {
      report.accuracy = static_cast<double>(result.tally.correct) / count;
    }
    const optim::OptimizerOptions& optimizer = replica_.optimizer();
    if (optimizer.schedule.kind != optim::ScheduleKind::constant || optimizer.schedule.warmup > 0) {
      report.learning_rate = optimizer.learning_rate * optimizer.schedule.factor(step - 1);
    }
    report.gradient_norm = result.gradient_norm;
    if (options_.snapshot != nullptr) {
      options_.snapshot->require_repeated(step, report.loss, replica_.groups().all);
    }
    for (Observer* observer : observers) observer->on_step(report);
    if (options_.checkpoint_every && step % *options_.checkpoint_every == 0) save(observers);
    if (step % options_.snapshot_every == 0) keep(observers);
  }
  return timed;
}

void Trainer::BeforeExchange::add(std::span<const RankMessage> messages) {
  if (steps == 0 || steps == warm_up_steps) seconds.assign(messages.size(), 0);
  ++steps;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    seconds[rank] += messages[rank].seconds;
  }
}

std::vector<double> Trainer::BeforeExchange::means() const {
  const std::uint64_t summed = steps > warm_up_steps ? steps - warm_up_steps : steps;
  std::vector<double> means = seconds;
  for (double& mean : means) mean /= static_cast<double>(summed);
  return means;
}

std::vector<std::pair<std::string, std::uint64_t>> Trainer::hashes_due() {
  if (!options_.hash_every || replica_.steps() % *options_.hash_every != 0) return {};
  return replica_.tensor_hashes();
}

/// Copies the state after the last step for a checkpoint, unless that is saved. One that was due at
/// the end of an epoch is saved again if the epoch is the best one: it has to say so.
void Trainer::save(const std::vector<Observer*>& observers) {
  if (saved_step_ == replica_.steps() && saved_best_ == position_.best.step) return;
  saved_step_ = replica_.steps();
  saved_best_ = position_.best.step;
  enter(Phase::checkpoint, replica_.steps());
  comm::together(replica_.groups().all, [&] {  // the snapshot may be in use
    for (Observer* observer : observers) observer->finish_checkpoint();
  });
  replica_.take(snapshot_.get());
  comm::together(replica_.groups().all, [&] {  // the others wait in this phase
    for (Observer* observer : observers) {
      observer->on_checkpoint({*snapshot_, position_, replica_.steps(), replica_.examples()});
    }
  });
  has_saved_ = true;
  is_saving_ = true;
}

/// Copies the state to the shared snapshot, if there is one, when the records and checkpoints so
/// far are safe from the end of this process: the others would not write them again.
void Trainer::keep(const std::vector<Observer*>& observers) {
  if (options_.snapshot == nullptr) return;
  if (std::exchange(is_saving_, false)) enter(Phase::checkpoint, replica_.steps());
  comm::together(replica_.groups().all, [&] {
    for (Observer* observer : observers) {
      observer->finish_checkpoint();
      observer->flush();
    }
  });
  replica_.keep(*options_.snapshot, position_);
}

bool Trainer::finished() const noexcept {
  return options_.steps && replica_.steps() >= *options_.steps;
}

}  // namespace lockstep::train
