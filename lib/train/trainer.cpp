#include "lockstep/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t warm_up_steps = 10;
constexpr std::uint64_t max_timed_steps = 1 << 20;

double median_of(std::span<const PhaseSeconds> steps, double PhaseSeconds::*phase) {
  if (steps.empty()) return 0;
  std::vector<double> values;
  for (const auto& step : steps) values.push_back(step.*phase);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Medians after the warm-up steps; over all steps if the run is not longer than the warm-up.
PhaseSeconds medians(std::span<const PhaseSeconds> steps) {
  if (steps.size() > warm_up_steps) steps = steps.subspan(warm_up_steps);
  return {median_of(steps, &PhaseSeconds::total), median_of(steps, &PhaseSeconds::data),
          median_of(steps, &PhaseSeconds::compute), median_of(steps, &PhaseSeconds::reduce),
          median_of(steps, &PhaseSeconds::update)};
}

}  // namespace

std::uint64_t total_steps(std::uint64_t epochs, std::optional<std::uint64_t> steps,
                          const data::Plan& plan) {
  const std::uint64_t max = steps.value_or(std::numeric_limits<std::uint64_t>::max());
  const std::uint64_t each = std::max<std::uint64_t>(plan.steps(), 1);
  return epochs > max / each ? max : std::min(max, epochs * each);
}

struct Trainer::EpochSums {
  nn::Tally tally;
  std::uint64_t examples = 0;
  double seconds = 0;
};

Trainer::Trainer(const TrainerOptions& options, Replica& replica, data::BatchReader& train,
                 data::BatchReader& test)
    : options_(options),
      replica_(replica),
      train_(replica.prefetch(train, total_steps(options.epochs, options.steps, train.plan()))),
      test_(test) {
  const std::uint64_t each = std::min(train.plan().steps(), max_timed_steps);
  const std::uint64_t epochs = std::min(options.epochs, max_timed_steps);
  phases_.reserve(
      std::min({epochs * each, options.steps.value_or(max_timed_steps), max_timed_steps}));
}

Trainer::~Trainer() { replica_.drop_staged(); }  // before train_ frees their memory

RunReport Trainer::run(const std::vector<Observer*>& observers) {
  RunReport report;
  double seconds = 0;
  for (std::uint64_t epoch = 0; epoch < options_.epochs && !finished(); ++epoch) {
    report.epochs.push_back(run_epoch(epoch, observers));
    seconds += report.epochs.back().seconds;
    for (Observer* observer : observers) observer->on_epoch(report.epochs.back());
  }
  save(observers);
  report.steps = replica_.steps();
  report.examples = replica_.examples();
  report.step_seconds = medians(phases_);
  report.startup_seconds = startup_seconds_;
  report.examples_per_second = static_cast<double>(report.examples) / seconds;
  report.weights_hash = report.epochs.back().weights_hash;
  report.test = last_test_;
  return report;
}

EpochReport Trainer::run_epoch(std::uint64_t epoch, const std::vector<Observer*>& observers) {
  EpochSums sums;
  train_steps(epoch, sums, observers);
  last_test_ = replica_.evaluate(test_);
  require_finite(std::isfinite(last_test_.loss_sum), replica_.steps(), "test loss");
  const std::uint64_t hash = replica_.weights_hash();
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

void Trainer::train_steps(std::uint64_t epoch, EpochSums& sums,
                          const std::vector<Observer*>& observers) {
  Lap whole_step;
  for (std::uint64_t s = 0; s < train_.plan().steps() && !finished(); ++s) {
    PhaseSeconds seconds;
    Lap phase;
    const data::Batch batch = replica_.load(train_, epoch, s);
    seconds.data = phase.take();
    const nn::Tally tally = replica_.train(batch, seconds);
    const std::uint64_t step = replica_.steps();
    const std::uint64_t examples = batch.global_examples;
    if (step == 1) startup_seconds_ = process_age_seconds();
    auto hashes = hashes_due();

    seconds.total = whole_step.take();
    if (phases_.size() < phases_.capacity()) phases_.push_back(seconds);
    sums.tally.loss_sum += tally.loss_sum;
    sums.tally.correct += tally.correct;
    sums.examples += examples;
    sums.seconds += seconds.total;
    const auto count = static_cast<double>(examples);
    const StepReport report{step,
                            epoch + 1,
                            examples,
                            tally.loss_sum / count,
                            static_cast<double>(tally.correct) / count,
                            seconds.total,
                            std::move(hashes)};
    for (Observer* observer : observers) observer->on_step(report);
    if (options_.checkpoint_every && step % *options_.checkpoint_every == 0) save(observers);
  }
}

std::vector<std::pair<std::string, std::uint64_t>> Trainer::hashes_due() {
  if (!options_.hash_every || replica_.steps() % *options_.hash_every != 0) return {};
  return replica_.tensor_hashes();
}

/// Saves the weights of the last step, unless they are saved.
void Trainer::save(const std::vector<Observer*>& observers) {
  if (saved_step_ == replica_.steps()) return;
  saved_step_ = replica_.steps();
  replica_.visit_whole([&](const nn::Network<float>& network) {
    for (Observer* observer : observers) {
      observer->on_checkpoint(network, replica_.steps(), replica_.examples());
    }
  });
}

bool Trainer::finished() const noexcept {
  return options_.steps && replica_.steps() >= *options_.steps;
}

}  // namespace lockstep::train
