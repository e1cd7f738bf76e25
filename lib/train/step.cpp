#include "lockstep/train/step.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/nonfinite.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

GatheredResults::GatheredResults(std::size_t rows, comm::Communicator& comm)
    : comm_(comm), all_(rows, comm.memory()) {}

std::span<std::byte> GatheredResults::put(std::span<const nn::ExampleResult> mine,
                                          const data::Batch& batch) {
  const auto all = all_.span().first(batch.block * static_cast<std::size_t>(comm_.size()));
  const auto own = all.subspan(static_cast<std::size_t>(comm_.rank()) * batch.block, batch.block);
  assert(mine.size() <= own.size());
  const auto rest = std::copy(mine.begin(), mine.end(), own.begin());
  std::fill(rest, own.end(), nn::ExampleResult{.weight = 0});
  return std::as_writable_bytes(all);
}

std::span<const nn::ExampleResult> GatheredResults::in_order(const data::Batch& batch) {
  const auto all = all_.span();
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(comm_.size()); ++rank) {
    const Range rows = batch.summed_rows_of(rank);
    const std::size_t first = rank * batch.block;  // not before rows.begin
    if (first == rows.begin) continue;
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), rows.size(),
                all.begin() + static_cast<std::ptrdiff_t>(rows.begin));
  }
  return all.first(batch.summed_rows);
}

std::span<const nn::ExampleResult> GatheredResults::gather(std::span<const nn::ExampleResult> mine,
                                                           const data::Batch& batch) {
  const auto bytes = put(mine, batch);
  comm_.all_gather(std::span(&bytes, 1));
  return in_order(batch);
}

std::vector<Range> segments_of(const nn::ParameterLayout<float>& layout, std::size_t ranks,
                               std::size_t least) {
  const std::size_t unit = line_floats * ranks;
  std::vector<Range> segments;
  std::size_t begin = 0;
  for (const nn::ParameterSpec& tensor : layout.tensors()) {
    if (ranks == 1 || tensor.stored < least * ranks) continue;
    const std::size_t cut = tensor.offset / unit * unit;
    if (cut < begin + least * ranks) continue;
    segments.push_back({begin, cut});
    begin = cut;
  }
  segments.push_back({begin, layout.length()});
  return segments;
}

std::vector<Range> ranges_in(std::span<const Range> segments, std::size_t rank, std::size_t ranks) {
  std::vector<Range> ranges;
  for (const Range segment : segments) {
    const std::size_t each = segment.size() / ranks;
    ranges.push_back({segment.begin + rank * each, segment.begin + (rank + 1) * each});
  }
  return ranges;
}

std::size_t elements_of(std::span<const Range> ranges) noexcept {
  std::size_t count = 0;
  for (const Range range : ranges) count += range.size();
  return count;
}

std::vector<optim::UpdatedTensor> tensors_in(const nn::ParameterLayout<float>& layout,
                                             std::span<const Range> slice) {
  const auto in_slice = [&](std::uint64_t at) {  // elements of the slice before `at`
    std::uint64_t before = 0;
    for (const Range range : slice) before += std::clamp(at, range.begin, range.end) - range.begin;
    return before;
  };
  std::vector<optim::UpdatedTensor> tensors;
  for (const nn::ParameterSpec& tensor : layout.tensors()) {
    tensors.push_back({.range = {in_slice(tensor.offset), in_slice(tensor.offset + tensor.stored)},
                       .vector = tensor.vector,
                       .cut = tensor.cut.has_value(),
                       .frozen = tensor.frozen});
  }
  return tensors;
}

optim::RankSums rank_sums(comm::Communicator* batch, comm::Communicator* model) {
  const auto over = [](comm::Communicator* comm) -> std::function<void(std::span<std::uint64_t>)> {
    if (comm == nullptr || comm->size() == 1) return {};
    return [comm](std::span<std::uint64_t> words) { comm->all_reduce(words); };
  };
  return {over(batch), over(model)};
}

namespace {

/// True if a float32 can be divided by the sum of weights `weight`: by a product with its inverse.
bool can_divide_by(double weight) {
  if (weight == 0) return false;
  const auto inverse = static_cast<float>(1 / weight);
  return inverse >= std::numeric_limits<float>::min() && std::isfinite(inverse);
}

}  // namespace

Step::Step(const StepOptions& options, comm::Communicator& comm, Sentinel& sentinel,
           std::unique_ptr<MicroBatches> micro_batches)
    : comm_(comm),
      micro_batches_(std::move(micro_batches)),
      sentinel_(sentinel),
      skips_with_(options.skip_with),
      results_(options.plan->largest_gathered(), comm),
      messages_(static_cast<std::size_t>(comm.size()), comm.memory()) {}

Step::~Step() = default;

bool Step::has_finite_gradients(double weight) {
  const auto all = gradient_sums();
  return std::all_of(all.begin(), all.end(), [&](const optim::GradientSums& some) {
    return optim::is_finite(some.sums, weight);
  });
}

void Step::throw_of_weight(const data::Batch& batch, double weight) {
  std::string mine;
  if (!batch.piece.empty()) mine = example_text(0, batch);
  const auto places = comm::gather_text(comm_, mine);
  const auto first = std::find_if(places.begin(), places.end(),
                                  [](const std::string& place) { return !place.empty(); });
  throw comm::AgreedError(
      ExitCode::data,
      *first + ": the weights of the " + counted(batch.global_examples, "example") + " of step " +
          std::to_string(steps_ + 1) + ", of which it is the first, sum to " +
          (weight == 0 ? "zero" : shortest(weight) + ", by which a float32 cannot be divided"),
      weight > 1 ? "scale the weights down, so that each step's sum to less"
                 : "leave records of weight 0 out of the data, give classes weights above 0, scale "
                   "small weights up, or train with a larger `batch_size`");
}

StepResult Step::run(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop) {
  Lap phase;
  const double before = comm_.recorded_seconds();
  const auto hashes = sentinel_.begin(steps_ + 1);  // of the weights that forward reads
  compute(batch, seconds);
  blocks_ = {results_.put(results(batch), batch), hashes, std::as_writable_bytes(messages_.span())};
  add_blocks(batch, blocks_);
  seconds.compute += phase.take();
  const double own =
      seconds.data + seconds.compute - (comm_.recorded_seconds() - before);  // without waiting
  messages_.data()[comm_.rank()] = {stop, std::max(0.0, own)};

  comm_.all_gather(blocks_);
  sentinel_.compare();
  seconds.reduce += phase.take();

  reduce(batch, seconds);
  phase.take();
  const std::span<const RankMessage> messages = messages_.span();
  const auto last_stop = std::max_element(messages.begin(), messages.end(),
                                          [](auto& a, auto& b) { return a.stop < b.stop; });
  StepResult result = {.tally = nn::sum_over_leaves(results_.in_order(batch), batch.leaf),
                       .stop = last_stop->stop,
                       .messages = messages};
  const double weight = result.tally.weight;
  if (!can_divide_by(weight)) throw_of_weight(batch, weight);
  bool updates = std::isfinite(result.tally.loss_sum);
  if (!updates) result.not_finite = "loss";
  if (skips()) {
    const bool finite = updates && has_finite_gradients(weight);
    result.skipped = !skips_with_->all_agree(finite);
    updates = !result.skipped;
    if (result.skipped && result.not_finite == nullptr) result.not_finite = "gradient";
  }
  if (updates) {
    update(weight);
    result.gradient_norm = optimizer().gradient_norm();
    seconds.update += phase.take();
    if (!publish()) result.not_finite = "gradient or its update";
    const double publishing = phase.take();
    seconds.publish += publishing;
    seconds.reduce += publishing;
  }
  seconds.reduce += phase.take();
  ++steps_;
  return result;
}

}  // namespace lockstep::train
