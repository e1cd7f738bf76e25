#include "data/batches.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace lockstep::data {
BatchReader::BatchReader(Source& source, const Plan& plan, int rank, Transform* transform)
    : source_(source),
      transform_(transform),
      plan_(plan),
      rank_(static_cast<std::uint64_t>(rank)),
      labels_(plan.largest_piece()) {
  require_worker(rank_, plan.options().ranks);
  if (source.records() != plan.options().records) {
    throw std::invalid_argument("BatchReader: the plan is for another number of records");
  }
  ids_.reserve(plan.largest_piece());
}

Batch BatchReader::read(std::uint64_t epoch, std::uint64_t step, std::span<float> x) {
  const auto labels = look_up(epoch, step);
  source_.read(ids_, x, labels);
  if (transform_ != nullptr) transform_->apply(epoch, ids_, x);
  return batch_at(step);
}

Batch BatchReader::read_bytes(std::uint64_t epoch, std::uint64_t step, std::span<std::uint8_t> x) {
  if (!gives_bytes()) throw std::logic_error("BatchReader: these features are not given as bytes");
  const auto labels = look_up(epoch, step);
  source_.read_bytes(ids_, x, labels);
  return batch_at(step);
}

std::span<std::int32_t> BatchReader::look_up(std::uint64_t epoch, std::uint64_t step) {
  plan_.records(epoch, step, rank_, ids_);
  return std::span(labels_).first(ids_.size());
}

Batch BatchReader::batch_at(std::uint64_t step) const noexcept {
  return {.piece = piece(step),
          .labels = std::span(labels_).first(ids_.size()),
          .ids = ids_,
          .global_examples = plan_.examples(step),
          .leaf = plan_.leaf(step),
          .block = plan_.block(step),
          .summed_rows = plan_.summed_rows(step),
          .plan = &plan_,
          .step = step};
}

Prefetch::Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches)
    : reader_(reader), depth_(depth), batches_(batches) {
  if (depth == 0) return;
  make_slots(depth + 1, *std::pmr::new_delete_resource());
  thread_ = std::thread([this] { read_ahead(); });
}

Prefetch::Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches,
                   const Staging& staging)
    : reader_(reader), depth_(depth), batches_(batches), staged_(true) {
  if (staging.features == Features::bytes && reader.gives_bytes()) {
    scale_.emplace(reader.divisor());
  }
  make_slots(depth + 2, *staging.memory);
  if (depth > 0) thread_ = std::thread([this] { read_ahead(); });
}

void Prefetch::make_slots(std::size_t count, std::pmr::memory_resource& memory) {
  slots_.resize(count);
  const auto rows = static_cast<std::size_t>(plan().largest_piece());
  for (Slot& slot : slots_) {
    if (holds_bytes()) {
      slot.bytes = AlignedBuffer<std::uint8_t>(rows * reader_.features(), memory);
    } else {
      slot.floats = AlignedBuffer<float>(rows * reader_.features(), memory);
    }
    slot.labels = AlignedBuffer<std::int32_t>(rows, memory);
    slot.ids.resize(rows);
  }
}

Prefetch::~Prefetch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Batch Prefetch::read(std::uint64_t epoch, std::uint64_t step, std::span<float> x) {
  if (depth_ == 0) return reader_.read(epoch, step, x);
  const StagedBatch staged = view(wait_for_batch({epoch, step}));
  if (holds_bytes()) {
    scale_->apply(staged.bytes, x);
  } else {
    std::copy(staged.floats.begin(), staged.floats.end(), x.begin());
  }
  return staged.batch;
}

StagedBatch Prefetch::take(std::uint64_t epoch, std::uint64_t step) {
  if (!staged_) throw std::logic_error("Prefetch::take: made without Staging");
  return view(depth_ == 0 ? fill_next({epoch, step}) : wait_for_batch({epoch, step}));
}

std::optional<StagedBatch> Prefetch::ready(std::uint64_t epoch, std::uint64_t step) noexcept {
  if (!staged_) return {};
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < full_; ++i) {
    const Slot& slot = slots_[(first_ + i) % slots_.size()];
    if (slot.position == Position{epoch, step}) return view(slot);
  }
  return {};
}

StagedBatch Prefetch::view(const Slot& slot) const noexcept {
  const std::size_t count = slot.batch.ids.size() * reader_.features();
  if (holds_bytes()) return {slot.batch, {}, slot.bytes.span().first(count)};
  return {slot.batch, slot.floats.span().first(count), {}};
}

/// Reads on the consumer's own thread, into the slots by turns.
Prefetch::Slot& Prefetch::fill_next(Position position) {
  Slot& slot = slots_[first_];
  fill(slot, position);
  first_ = (first_ + 1) % slots_.size();
  return slot;
}

/// Takes the batch out of the queue; its slot stays the consumer's until the next call,
/// staged until the one after that.
Prefetch::Slot& Prefetch::wait_for_batch(Position position) {
  std::unique_lock lock(mutex_);
  if (next_ != position) seek(position);
  asked_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return full_ > 0 || error_ != nullptr; });
  asked_ = false;
  if (full_ == 0) {
    next_.reset();  // whoever asks again, reads again
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  Slot& slot = slots_[first_];
  first_ = (first_ + 1) % slots_.size();
  --full_;
  next_ = after(position);
  changed_.notify_all();  // a slot of the calls before is free now
  return slot;
}

void Prefetch::seek(Position position) {
  ++journey_;
  full_ = 0;
  error_ = nullptr;
  ahead_ = position;
  next_ = position;
}

Prefetch::Position Prefetch::after(Position position) const noexcept {
  if (position.step + 1 < plan().steps()) return {position.epoch, position.step + 1};
  return {position.epoch + 1, 0};
}

bool Prefetch::is_foreseen(Position position) const noexcept {
  const std::uint64_t steps = plan().steps();
  return position.epoch < batches_ / steps ||
         (position.epoch == batches_ / steps && position.step < batches_ % steps);
}

void Prefetch::read_ahead() {
  std::unique_lock lock(mutex_);
  const auto has_work = [&] {
    const bool wanted = asked_ && full_ == 0;
    return next_.has_value() && error_ == nullptr && full_ < depth_ &&
           (wanted || is_foreseen(ahead_));
  };
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || has_work(); });
    if (stop_) return;
    const Position position = ahead_;
    const std::uint64_t journey = journey_;
    Slot& slot = slots_[(first_ + full_) % slots_.size()];
    std::exception_ptr error;
    lock.unlock();
    try {
      fill(slot, position);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (journey != journey_) continue;
    if (error != nullptr) {
      error_ = error;
    } else {
      ++full_;
      ahead_ = after(position);
    }
    changed_.notify_all();
  }
}

void Prefetch::fill(Slot& slot, Position position) {
  const auto rows = static_cast<std::size_t>(reader_.piece(position.step).size());
  const std::size_t count = rows * reader_.features();
  const auto [epoch, step] = position;
  slot.position = position;
  slot.batch = holds_bytes() ? reader_.read_bytes(epoch, step, slot.bytes.span().first(count))
                             : reader_.read(epoch, step, slot.floats.span().first(count));
  std::copy(slot.batch.labels.begin(), slot.batch.labels.end(), slot.labels.data());
  std::copy(slot.batch.ids.begin(), slot.batch.ids.end(), slot.ids.begin());
  slot.batch.labels = slot.labels.span().first(rows);
  slot.batch.ids = std::span(slot.ids).first(rows);
}

}  // namespace lockstep::data
