#include "lockstep/train/step.hpp"

#include <algorithm>
#include <cassert>
#include <string>

#include "lockstep/collectives/agreement.hpp"
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

void require_finite(bool finite, std::uint64_t step, const char* what) {
  if (finite) return;
  throw comm::AgreedError(
      ExitCode::diverged,
      "training diverged at step " + std::to_string(step) + ": the " + what +
          " is not finite; checkpoints saved before are intact",
      "lower `learning_rate`, or look for extreme values in the data (`divide_by`)");
}

Step::Step(std::size_t rows, comm::Communicator& comm, Sentinel& sentinel)
    : comm_(comm),
      sentinel_(sentinel),
      results_(rows, comm),
      stops_(static_cast<std::size_t>(comm.size()), comm.memory()) {}

StepResult Step::run(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop) {
  Lap phase;
  const auto hashes = sentinel_.begin(steps_ + 1);  // of the weights that forward reads
  compute(batch);
  stops_.data()[comm_.rank()] = stop;
  blocks_ = {results_.put(results(batch), batch.block), hashes,
             std::as_writable_bytes(stops_.span())};
  add_blocks(batch, blocks_);
  seconds.compute += phase.take();

  comm_.all_gather(blocks_);
  sentinel_.compare();
  seconds.reduce += phase.take();

  reduce(batch, seconds);
  phase.take();
  update(batch.global_examples);
  seconds.update += phase.take();
  const bool finite = publish();
  seconds.reduce += phase.take();
  ++steps_;
  const auto stops = stops_.span();
  return {nn::sum_over_leaves(results_.first(batch.summed_rows), batch.leaf), finite,
          *std::max_element(stops.begin(), stops.end())};
}

}  // namespace lockstep::train
