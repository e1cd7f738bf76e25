#include "lib/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "collectives/agreement.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/process.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t warm_up_steps = 10;
constexpr std::uint64_t most_timed_steps = 1 << 20;

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

std::uint64_t total_steps(std::uint64_t epochs, std::optional<std::uint64_t> steps,
                          const data::Plan& plan) {
  const std::uint64_t most = steps.value_or(std::numeric_limits<std::uint64_t>::max());
  const std::uint64_t each = std::max<std::uint64_t>(plan.steps(), 1);
  return epochs > most / each ? most : std::min(most, epochs * each);
}

namespace {

data::Prefetch prefetch(data::BatchReader& reader, const TrainerOptions& options, Step& step) {
  const auto batches = total_steps(options.epochs, options.steps, reader.plan());
  auto* const memory = step.staging();
  if (memory == nullptr) return data::Prefetch(reader, options.prefetch, batches);
  return data::Prefetch(reader, options.prefetch, batches, {data::Features::bytes, memory});
}

}  // namespace

struct Trainer::EpochSums {
  nn::Tally tally;
  std::uint64_t examples = 0;
  double seconds = 0;
};

Trainer::Trainer(const TrainerOptions& options, nn::Network<float>& network, Step& step,
                 Inference& inference, data::BatchReader& train, data::BatchReader& test,
                 const Groups& groups)
    : options_(options),
      network_(network),
      update_(step),
      inference_(inference),
      sentinel_(network, groups.batch, options.sentinel_steps),
      train_(prefetch(train, options, step)),
      test_(test),
      groups_(groups),
      total_steps_(total_steps(options.epochs, options.steps, train.plan())) {
  const std::uint64_t each = std::min(train.plan().steps(), most_timed_steps);
  const std::uint64_t epochs = std::min(options.epochs, most_timed_steps);
  phases_.reserve(
      std::min({epochs * each, options.steps.value_or(most_timed_steps), most_timed_steps}));
}

Trainer::~Trainer() { update_.forget_staged(); }  // before train_ takes their memory away

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
  train_steps(epoch, sums, observers);
  last_test_ = evaluate(inference_, network_.loss_function(), test_, groups_);
  require_finite(std::isfinite(last_test_.loss_sum), step_, "test loss");
  show_weights();
  const std::uint64_t hash = whole_hash(network_.parameters(), groups_);
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

void Trainer::train_steps(std::uint64_t epoch, EpochSums& sums,
                          const std::vector<Observer*>& observers) {
  Lap whole_step;
  for (std::uint64_t s = 0; s < train_.plan().steps() && !finished(); ++s) {
    PhaseSeconds seconds;
    const nn::Tally tally = train_step(epoch, s, seconds);
    ++step_;
    const std::uint64_t examples = train_.plan().examples(s);
    examples_ += examples;
    if (step_ == 1) startup_seconds_ = process_age_seconds();
    auto hashes = hashes_due();

    seconds.total = whole_step.take();
    if (phases_.size() < phases_.capacity()) phases_.push_back(seconds);
    sums.tally.loss_sum += tally.loss_sum;
    sums.tally.correct += tally.correct;
    sums.examples += examples;
    sums.seconds += seconds.total;
    const auto count = static_cast<double>(examples);
    const StepReport report{step_,
                            epoch + 1,
                            examples,
                            tally.loss_sum / count,
                            static_cast<double>(tally.correct) / count,
                            seconds.total,
                            std::move(hashes)};
    for (Observer* observer : observers) observer->on_step(report);
    if (options_.checkpoint_every && step_ % *options_.checkpoint_every == 0) save(observers);
  }
}

/// Reads the batch where the step looks for it.
data::Batch Trainer::next_batch(std::uint64_t epoch, std::uint64_t step) {
  if (update_.staging() == nullptr) {
    return train_.read(epoch, step, update_.inputs(train_.piece(step)).flat());
  }
  const data::StagedBatch staged = train_.take(epoch, step);
  update_.stage(staged, train_.divisor());
  stage_following(epoch, step);
  return staged.batch;
}

/// Lets the batch of the step after this one travel beside this one's work, if it is read already.
void Trainer::stage_following(std::uint64_t epoch, std::uint64_t step) {
  if (step_ + 1 >= total_steps_) return;
  const bool last = step + 1 == train_.plan().steps();
  const auto following = train_.ready(last ? epoch + 1 : epoch, last ? 0 : step + 1);
  if (following) update_.stage(*following, train_.divisor());
}

/// One step of synchronous data-parallel training. Returns the tally of the global batch.
nn::Tally Trainer::train_step(std::uint64_t epoch, std::uint64_t step, PhaseSeconds& seconds) {
  Lap phase;
  const data::Batch batch = next_batch(epoch, step);
  seconds.data = phase.take();
  groups_.fail_together([&] { sentinel_.check(step_ + 1, update_); });
  seconds.reduce = phase.take();  // whoever is early waits here
  const StepResult result = update_.run(batch, seconds);
  require_finite(std::isfinite(result.tally.loss_sum), step_ + 1, "loss");
  require_finite(groups_.all_agree(result.finite), step_ + 1, "gradient");
  return result.tally;
}

/// One replica stands for all: whether they are equal is another question.
std::vector<std::pair<std::string, std::uint64_t>> Trainer::hashes_due() {
  if (!options_.hash_every || step_ % *options_.hash_every != 0) return {};
  if (groups_.batch.rank() != 0) return {};
  show_weights();
  const auto& block = network_.parameters();
  std::vector<std::pair<std::string, std::uint64_t>> hashes;
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    nn::WeightsHash hash;
    hash.add(block.tensors()[i], whole_tensor(block, i, groups_));
    hashes.emplace_back(block.tensors()[i].name, hash.value());
  }
  return hashes;
}

/// All of them, in the network's block.
void Trainer::show_weights() { update_.show_weights({0, network_.parameters().values().size()}); }

/// Saves the weights as they stand, unless that is done.
void Trainer::save(const std::vector<Observer*>& observers) {
  if (saved_step_ == step_) return;
  saved_step_ = step_;
  show_weights();
  const auto products = make_library_products<float>();  // which store weights as files do
  const auto whole = whole_network(network_, *products, groups_);
  const auto& saved = whole ? *whole : network_;
  for (Observer* observer : observers) observer->on_checkpoint(saved, step_, examples_);
}

/// Sums are the same on every rank, so all ranks throw in the same step.
void Trainer::require_finite(bool finite, std::uint64_t step, const char* what) {
  if (finite) return;
  throw comm::AgreedError(
      ExitCode::diverged,
      "training diverged at step " + std::to_string(step) + ": the " + what +
          " is not finite; checkpoints saved before are intact",
      "lower `learning_rate`, or look for extreme values in the data (`divide_by`)");
}

void Trainer::require_same_replicas(std::uint64_t hash) {
  comm::require_equal(groups_.all, "the replica after step " + std::to_string(step_),
                      {{"the weights' hash", to_hex(hash)}},
                      "the weights saved before are those of rank 0; look for faulty memory on the "
                      "odd rank's host",
                      ExitCode::invariant);
}

bool Trainer::finished() const noexcept { return options_.steps && step_ >= *options_.steps; }

}  // namespace lockstep::train
