#include "lockstep/train/step.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "lockstep/train/integrity.hpp"

namespace lockstep::train {

GatheredResults::GatheredResults(std::size_t rows, comm::Communicator& comm)
    : comm_(comm), all_(rows, comm.memory()) {}

std::span<std::byte> GatheredResults::put(std::span<const nn::ExampleResult> mine,
                                          std::size_t block) {
  const auto all = all_.span().first(block * static_cast<std::size_t>(comm_.size()));
  const auto own = all.subspan(static_cast<std::size_t>(comm_.rank()) * block, block);
  assert(mine.size() <= block);
  const auto rest = std::copy(mine.begin(), mine.end(), own.begin());
  std::fill(rest, own.end(), nn::ExampleResult{});
  return std::as_writable_bytes(all);
}

std::span<const nn::ExampleResult> GatheredResults::gather(std::span<const nn::ExampleResult> mine,
                                                           std::size_t block) {
  const auto bytes = put(mine, block);
  comm_.all_gather(std::span(&bytes, 1));
  return first(bytes.size() / sizeof(nn::ExampleResult));
}

Step::Step(const StepOptions& options, comm::Communicator& comm, Sentinel& sentinel)
    : comm_(comm),
      sentinel_(sentinel),
      skips_with_(options.skip_with),
      results_(options.plan->largest_gathered(), comm),
      messages_(static_cast<std::size_t>(comm.size()), comm.memory()) {}

StepResult Step::run(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop) {
  Lap phase;
  const auto hashes = sentinel_.begin(steps_ + 1);  // of the weights that forward reads
  compute(batch);
  blocks_ = {results_.put(results(batch), batch.block), hashes,
             std::as_writable_bytes(messages_.span())};
  add_blocks(batch, blocks_);
  seconds.compute += phase.take();
  constexpr double nanoseconds = 1e9;
  messages_.data()[comm_.rank()] = {
      stop, static_cast<std::uint64_t>((seconds.data + seconds.compute) * nanoseconds)};

  comm_.all_gather(blocks_);
  sentinel_.compare();
  seconds.reduce += phase.take();

  reduce(batch, seconds);
  phase.take();
  const std::span<const RankMessage> messages = messages_.span();
  const auto last_stop = std::max_element(messages.begin(), messages.end(),
                                          [](auto& a, auto& b) { return a.stop < b.stop; });
  StepResult result = {.tally = nn::sum_over_leaves(results_.first(batch.summed_rows), batch.leaf),
                       .stop = last_stop->stop,
                       .messages = messages};
  bool updates = std::isfinite(result.tally.loss_sum);
  if (!updates) result.not_finite = "loss";
  if (skips_with_ != nullptr) {
    const bool finite = updates && optim::is_finite(gradient_sums(), batch.global_examples);
    result.skipped = !skips_with_->all_agree(finite);
    updates = !result.skipped;
    if (result.skipped && result.not_finite == nullptr) result.not_finite = "gradient";
  }
  if (updates) {
    update(batch.global_examples);
    seconds.update += phase.take();
    if (!publish()) result.not_finite = "gradient";
  }
  seconds.reduce += phase.take();
  ++steps_;
  return result;
}

}  // namespace lockstep::train
