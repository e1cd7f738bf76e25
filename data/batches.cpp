#include "lockstep/data/batches.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "lockstep/data/transform.hpp"

namespace lockstep::data {
Batch batch_at(const Plan& plan, std::uint64_t step, std::uint64_t rank,
               std::span<const std::int32_t> labels, std::span<const std::uint64_t> ids) noexcept {
  return {.piece = plan.rows(step, rank),
          .labels = labels,
          .ids = ids,
          .global_examples = plan.examples(step),
          .leaf = plan.leaf(step),
          .block = plan.block(step),
          .summed_rows = plan.summed_rows(step),
          .plan = &plan,
          .step = step,
          .rank = rank};
}

BatchReader::BatchReader(Source& source, const Plan& plan, int rank, Transform* transform)
    : source_(source),
      transform_(transform),
      plan_(plan),
      rank_(static_cast<std::uint64_t>(rank)),
      labels_(plan.largest_piece()),
      values_(plan.largest_piece() * source.targets()),
      weights_(source.has_weights() ? plan.largest_piece() : 0) {
  require_worker(rank_, plan.options().ranks);
  if (source.records() != plan.options().records) {
    throw std::invalid_argument("BatchReader: the plan is for another number of records");
  }
  ids_.reserve(plan.largest_piece());
}

Batch BatchReader::read(std::uint64_t epoch, std::uint64_t step, std::span<float> x) {
  const auto labels = look_up(epoch, step);
  read_records(x, labels);
  if (transform_ != nullptr) transform_->apply(epoch, ids_, x);
  return last_batch(step);
}

Batch BatchReader::read_bytes(std::uint64_t epoch, std::uint64_t step, std::span<std::uint8_t> x) {
  if (!gives_bytes()) throw std::logic_error("BatchReader: these features are not given as bytes");
  const auto labels = look_up(epoch, step);
  const std::lock_guard lock(source_.reading());
  source_.read_bytes(ids_, x, labels);
  return last_batch(step);
}

RecordTargets BatchReader::read_positions(std::uint64_t epoch, Range positions,
                                          std::span<float> x) {
  ids_.clear();
  for (std::uint64_t at = positions.begin; at < positions.end; ++at) {
    ids_.push_back(plan_.record(epoch, rank_, at));
  }
  const auto labels = look_up_targets();
  read_records(x, labels);
  if (transform_ != nullptr) transform_->apply(epoch, ids_, x);
  return {labels, std::span(values_).first(ids_.size() * source_.targets()),
          source_.has_weights() ? std::span(weights_).first(ids_.size()) : std::span<float>()};
}

void BatchReader::read_records(std::span<float> x, std::span<std::int32_t> labels) {
  const std::lock_guard lock(source_.reading());
  source_.read(ids_, x, labels);
}

std::span<std::int32_t> BatchReader::look_up(std::uint64_t epoch, std::uint64_t step) {
  plan_.records(epoch, step, rank_, ids_);
  return look_up_targets();
}

std::span<std::int32_t> BatchReader::look_up_targets() {
  const std::size_t targets = source_.targets();
  if (labels_.size() < ids_.size()) {
    labels_.resize(ids_.size());
    values_.resize(ids_.size() * targets);
  }
  if (source_.has_weights()) {
    weights_.resize(std::max(weights_.size(), ids_.size()));
    std::transform(ids_.begin(), ids_.end(), weights_.begin(),
                   [&](std::uint64_t id) { return source_.weight(id); });
  }
  for (std::size_t i = 0; targets > 0 && i < ids_.size(); ++i) {
    source_.target_values(ids_[i], std::span(values_).subspan(i * targets, targets));
  }
  return std::span(labels_).first(ids_.size());
}

Prefetch::Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches)
    : reader_(reader), reads_here_(true) {
  if (depth > 0) make_slots(depth + 1, depth, batches, *std::pmr::new_delete_resource());
}

Prefetch::Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches,
                   std::pmr::memory_resource& memory)
    : reader_(reader), holds_bytes_(reader.gives_bytes()) {
  make_slots(depth + 2, depth, batches, memory);
}

void Prefetch::make_slots(std::size_t count, std::size_t depth, std::uint64_t batches,
                          std::pmr::memory_resource& memory) {
  slots_.resize(count);
  const auto rows = static_cast<std::size_t>(plan().largest_piece());
  for (Slot& slot : slots_) {
    if (holds_bytes_) {
      slot.bytes = AlignedBuffer<std::uint8_t>(rows * reader_.features(), memory);
    } else {
      slot.floats = AlignedBuffer<float>(rows * reader_.features(), memory);
    }
    slot.labels = AlignedBuffer<std::int32_t>(rows, memory);
    if (reader_.targets() > 0) {
      slot.values = AlignedBuffer<float>(rows * reader_.targets(), memory);
    }
    if (reader_.has_weights()) slot.weights = AlignedBuffer<float>(rows, memory);
    slot.ids.resize(rows);
  }
  ahead_.emplace(
      count, depth,
      [this](std::size_t slot, std::uint64_t index) {
        fill(slots_[slot], index);
        return true;  // the sequence is unbounded
      },
      batches);
}

Batch Prefetch::read(std::uint64_t epoch, std::uint64_t step, std::span<float> x) {
  if (reads_here_) return read_here(epoch, step, x);
  const StagedBatch staged = take(epoch, step);
  assert(!holds_bytes_);
  std::copy(staged.floats.begin(), staged.floats.end(), x.begin());
  return staged.batch;
}

Batch Prefetch::read_here(std::uint64_t epoch, std::uint64_t step, std::span<float> x) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const Batch batch = reader_.read(epoch, step, x);
  const auto quick =
      std::chrono::microseconds(20) + std::chrono::nanoseconds(2 * batch.ids.size() * features());
  lost_ = std::max(std::chrono::nanoseconds(0), lost_ + (Clock::now() - begin) - quick);
  if (ahead_ && lost_ > std::chrono::milliseconds(5)) reads_here_ = false;
  return batch;
}

StagedBatch Prefetch::take(std::uint64_t epoch, std::uint64_t step) {
  assert(ahead_);
  return view(slots_[*ahead_->take(index_of(epoch, step))]);
}

std::optional<StagedBatch> Prefetch::ready(std::uint64_t epoch, std::uint64_t step) noexcept {
  assert(ahead_);
  const auto slot = ahead_->ready(index_of(epoch, step));
  return slot ? std::optional(view(slots_[*slot])) : std::nullopt;
}

StagedBatch Prefetch::view(const Slot& slot) const noexcept {
  const std::size_t count = slot.batch.ids.size() * reader_.features();
  if (holds_bytes_) return {slot.batch, {}, slot.bytes.span().first(count)};
  return {slot.batch, slot.floats.span().first(count), {}};
}

void Prefetch::fill(Slot& slot, std::uint64_t index) {
  const std::uint64_t epoch = index / plan().steps();
  const std::uint64_t step = index % plan().steps();
  const auto rows = static_cast<std::size_t>(reader_.piece(step).size());
  const std::size_t count = rows * reader_.features();
  slot.batch = holds_bytes_ ? reader_.read_bytes(epoch, step, slot.bytes.span().first(count))
                            : reader_.read(epoch, step, slot.floats.span().first(count));
  std::copy(slot.batch.labels.begin(), slot.batch.labels.end(), slot.labels.data());
  std::copy(slot.batch.ids.begin(), slot.batch.ids.end(), slot.ids.begin());
  std::copy(slot.batch.values.begin(), slot.batch.values.end(), slot.values.data());
  std::copy(slot.batch.weights.begin(), slot.batch.weights.end(), slot.weights.data());
  slot.batch.labels = slot.labels.span().first(rows);
  slot.batch.ids = std::span(slot.ids).first(rows);
  slot.batch.values = slot.values.span().first(slot.batch.values.size());
  slot.batch.weights = slot.weights.span().first(slot.batch.weights.size());
}

}  // namespace lockstep::data
