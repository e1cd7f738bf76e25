#include "lib/train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "collectives/agreement.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/process.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t warm_up_steps = 10;
constexpr std::uint64_t most_timed_steps = 1 << 20;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds since the last call, or since it was made.
class Lap {
 public:
  double take() {
    const double now = now_seconds();
    return now - std::exchange(last_, now);
  }

 private:
  double last_ = now_seconds();
};

double median_of(std::span<const PhaseSeconds> steps, double PhaseSeconds::*phase) {
  if (steps.empty()) return 0;
  std::vector<double> values;
  for (const auto& step : steps) values.push_back(step.*phase);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Short runs have nothing but warm-up: then all of it counts.
PhaseSeconds medians(std::span<const PhaseSeconds> steps) {
  if (steps.size() > warm_up_steps) steps = steps.subspan(warm_up_steps);
  return {median_of(steps, &PhaseSeconds::total), median_of(steps, &PhaseSeconds::data),
          median_of(steps, &PhaseSeconds::compute), median_of(steps, &PhaseSeconds::reduce),
          median_of(steps, &PhaseSeconds::update)};
}

}  // namespace

struct Trainer::EpochSums {
  nn::Tally tally;
  std::uint64_t examples = 0;
  double seconds = 0;
};

Trainer::Trainer(const TrainerOptions& options, nn::Network<float>& network, optim::Adam& adam,
                 data::BatchReader& train, data::BatchReader& test, comm::Communicator& comm)
    : options_(options), network_(network), adam_(adam), train_(train), test_(test), comm_(comm) {
  const std::uint64_t each = std::min(train.plan().steps(), most_timed_steps);
  const std::uint64_t epochs = std::min(options.epochs, most_timed_steps);
  phases_.reserve(
      std::min({epochs * each, options.steps.value_or(most_timed_steps), most_timed_steps}));
}

RunReport Trainer::run(const std::vector<Observer*>& observers) {
  RunReport report;
  double seconds = 0;
  for (std::uint64_t epoch = 0; epoch < options_.epochs && !finished(); ++epoch) {
    report.epochs.push_back(run_epoch(epoch, observers));
    seconds += report.epochs.back().seconds;
    for (Observer* observer : observers) observer->on_epoch(report.epochs.back());
  }
  save(observers);
  report.steps = step_;
  report.examples = examples_;
  report.step_seconds = medians(phases_);
  report.startup_seconds = startup_seconds_;
  report.examples_per_second = static_cast<double>(examples_) / seconds;
  report.weights_hash = report.epochs.back().weights_hash;
  report.test = last_test_;
  return report;
}

EpochReport Trainer::run_epoch(std::uint64_t epoch, const std::vector<Observer*>& observers) {
  EpochSums sums;
  Lap whole_step;
  for (std::uint64_t s = 0; s < train_.plan().steps() && !finished(); ++s) {
    PhaseSeconds seconds;
    Lap reading;
    const data::Batch batch = train_.read(epoch, s);
    seconds.data = reading.take();
    const nn::Tally tally = train_step(batch, seconds);
    ++step_;
    const auto examples = batch.global_examples;
    examples_ += examples;
    if (step_ == 1) startup_seconds_ = process_age_seconds();

    seconds.total = whole_step.take();
    if (phases_.size() < phases_.capacity()) phases_.push_back(seconds);
    sums.tally.loss_sum += tally.loss_sum;
    sums.tally.correct += tally.correct;
    sums.examples += examples;
    sums.seconds += seconds.total;
    const auto count = static_cast<double>(examples);
    for (Observer* observer : observers) {
      observer->on_step({step_, epoch + 1, examples, tally.loss_sum / count,
                         static_cast<double>(tally.correct) / count, seconds.total});
    }
    if (options_.checkpoint_every && step_ % *options_.checkpoint_every == 0) save(observers);
  }
  last_test_ = evaluate(network_, test_, comm_);
  require_finite(std::isfinite(last_test_.loss_sum), step_, "test loss");
  const std::uint64_t hash = nn::weights_hash(network_.parameters());
  require_same_replicas(hash);
  const auto count = static_cast<double>(sums.examples);
  return {epoch + 1,
          sums.tally.loss_sum / count,
          static_cast<double>(sums.tally.correct) / count,
          last_test_.loss(),
          last_test_.accuracy(),
          sums.seconds,
          count / sums.seconds,
          hash};
}

/// One step of synchronous data-parallel training. Returns the tally of the global batch.
nn::Tally Trainer::train_step(const data::Batch& batch, PhaseSeconds& seconds) {
  auto& parameters = network_.parameters();
  Lap phase;
  const nn::Tally mine = network_.forward_backward(
      {batch.x.data(), batch.labels.size(), network_.shape().features}, batch.labels);
  seconds.compute = phase.take();

  const nn::Tally global = sum_over_ranks(mine);
  require_finite(std::isfinite(global.loss_sum), step_ + 1, "loss");
  comm_.all_reduce(parameters.gradients());
  seconds.reduce = phase.take();

  const bool finite =
      adam_.update(parameters.values(), parameters.gradients(), batch.global_examples);
  require_finite(finite, step_ + 1, "gradient");
  seconds.update = phase.take();
  return global;
}

nn::Tally Trainer::sum_over_ranks(nn::Tally mine) {
  // Counts are exact in double far beyond any batch, so one message carries both.
  std::array totals = {mine.loss_sum, static_cast<double>(mine.correct)};
  comm_.all_reduce(std::span<double>(totals));
  return {totals[0], static_cast<std::uint64_t>(totals[1])};
}

/// Saves the weights as they stand, unless that is done.
void Trainer::save(const std::vector<Observer*>& observers) {
  if (saved_step_ == step_) return;
  saved_step_ = step_;
  for (Observer* observer : observers) observer->on_checkpoint(network_, step_, examples_);
}

/// Sums are the same on every rank, so all ranks throw in the same step.
void Trainer::require_finite(bool finite, std::uint64_t step, const char* what) {
  if (finite) return;
  throw comm::AgreedError(
      ExitCode::diverged,
      "training diverged at step " + std::to_string(step) + ": the " + what +
          " is not finite; checkpoints saved before are intact",
      "lower --learning-rate, or look for extreme values in the data (--divide-by)");
}

void Trainer::require_same_replicas(std::uint64_t hash) {
  comm::require_equal(comm_, "the replica after step " + std::to_string(step_),
                      {{"the weights' hash", to_hex(hash)}},
                      "the weights saved before are those of rank 0; look for faulty memory on the "
                      "odd rank's host",
                      ExitCode::invariant);
}

bool Trainer::finished() const noexcept { return options_.steps && step_ >= *options_.steps; }

}  // namespace lockstep::train
