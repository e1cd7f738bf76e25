#include "lockstep/train/micro_batches.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lockstep/base/range.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/train/evaluation.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {

bool needs_micro_batches(std::size_t limit, const data::Plan& plan) noexcept {
  return limit > 0 && limit < rows_needed(Exchange::partial_sums, plan);
}

std::size_t micro_batch_blocks(std::size_t limit, const data::Plan& plan) noexcept {
  const std::size_t rows = rows_needed(Exchange::partial_sums, plan);
  const std::size_t each =
      std::min(node_rows(limit, plan.leaf(0)), node_rows(limit, plan.largest_leaf()));
  return rows <= each ? 0 : tree_slots(ceil_divide(rows, each));
}

MicroBatches::MicroBatches(nn::Network<float>& network, std::size_t limit, const data::Plan& plan)
    : network_(network), limit_(limit), results_(plan.largest_piece()) {
  waiting_ =
      AlignedBuffer<float>(micro_batch_blocks(limit, plan) * network.parameters().values().size());
}

void MicroBatches::stage(const data::StagedBatch& staged, float divisor) {
  floats_ = staged.floats;
  bytes_ = staged.bytes;
  if (bytes_.empty()) return;
  if (!scale_ || scale_->divisor() != divisor) scale_.emplace(divisor);
}

void MicroBatches::begin(const data::Batch& batch, std::uint64_t step) {
  batch_ = &batch;
  step_ = step;
  nonfinite_ = {};
}

void MicroBatches::sum(Range rows, std::span<float> sums, PhaseSeconds& seconds) {
  const std::size_t each = node_rows(limit_, batch_->leaf);
  if (rows.size() <= each) return compute(rows, sums, seconds);
  const std::size_t parts = ceil_divide(rows.size(), each);
  const std::size_t needed = tree_slots(parts) * sums.size();
  if (waiting_.size() < needed) waiting_ = AlignedBuffer<float>(needed);
  sum_tree(parts, waiting_.span().first(needed), sums, [&](std::uint64_t part, auto into) {
    const std::size_t first = rows.begin + part * each;
    compute({first, std::min(first + each, rows.end)}, into, seconds);
  });
}

/// One micro-batch: `rows` of the piece, in the first rows of the network's buffers.
void MicroBatches::compute(Range rows, std::span<float> sums, PhaseSeconds& seconds) {
  Lap phase;
  const std::size_t end = std::min(rows.end, batch_->piece.size());
  const Range examples = {std::min(rows.begin, end), end};
  const Range mine = {0, examples.size()};
  network_.clear_exchanged({mine.end, rows.size()});
  read_features(examples);
  network_.forward(mine, nn::TrainingRows{step_, batch_->piece.begin + examples.begin});
  network_.loss(mine, targets(examples), true);
  const auto results = network_.results(mine);
  std::copy(results.begin(), results.end(), results_.begin() + examples.begin);
  seconds.forward += phase.take();
  network_.backward(mine);
  network_.weight_gradients({0, rows.size()}, batch_->leaf, {0, sums.size()}, sums);
  const bool is_finite =
      std::all_of(results.begin(), results.end(),
                  [](const nn::ExampleResult& result) { return std::isfinite(result.loss); }) &&
      optim::is_finite(sums, 1);
  if (is_finite) return;
  const auto values = [&](std::size_t i) -> Matrix<const float> {
    return network_.activation(i, mine);
  };
  const auto gradients = [&](std::size_t i) -> Matrix<const float> {
    return network_.gradient(i, mine);
  };
  nonfinite_.add(find_nonfinite(
      network_, ExampleValues{*batch_, values, gradients, network_.results(mine), examples.begin}));
}

void MicroBatches::read_features(Range rows) {
  const std::size_t width = network_.shape().features;
  const auto inputs = network_.inputs({0, rows.size()}).flat();
  const std::size_t first = rows.begin * width;
  if (bytes_.empty()) {
    const auto from = floats_.subspan(first, inputs.size());
    std::copy(from.begin(), from.end(), inputs.begin());
  } else {
    scale_->apply(bytes_.subspan(first, inputs.size()), inputs);
  }
}

nn::Targets MicroBatches::targets(Range rows) const {
  const auto part = [&](auto all, std::size_t width) {
    return all.empty() ? all : all.subspan(rows.begin * width, rows.size() * width);
  };
  const std::size_t width = network_.loss_function().target_width(network_.shape().classes);
  nn::Targets targets = {part(batch_->labels, 1), part(batch_->values, width)};
  targets.weights = part(batch_->weights, 1);
  return targets;
}

std::unique_ptr<MicroBatches> make_micro_batches(nn::Network<float>& network, std::size_t limit,
                                                 const data::Plan& plan) {
  if (!needs_micro_batches(limit, plan)) return nullptr;
  return std::make_unique<MicroBatches>(network, limit, plan);
}

}  // namespace lockstep::train
