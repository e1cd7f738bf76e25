#include "data/prefetch.hpp"

#include <algorithm>
#include <utility>

namespace lockstep::data {

Prefetch::Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches)
    : reader_(reader), batches_(batches) {
  if (depth == 0) return;
  slots_.resize(depth + 1);  // one is the consumer's
  const auto rows = static_cast<std::size_t>(reader.plan().largest_piece());
  for (Slot& slot : slots_) {
    slot.x.resize(rows * reader.features());
    slot.labels.resize(rows);
    slot.ids.resize(rows);
  }
  thread_ = std::thread([this] { read_ahead(); });
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
  if (slots_.empty()) return reader_.read(epoch, step, x);
  const Slot& slot = wait_for_batch({epoch, step});
  const std::size_t count = slot.batch.ids.size() * reader_.features();
  std::copy_n(slot.x.begin(), count, x.begin());
  return slot.batch;
}

/// Takes the batch out of the queue; its slot stays the consumer's until the next call.
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
  changed_.notify_all();  // the slot of the last call is free now
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
    return next_.has_value() && error_ == nullptr && full_ + 1 < slots_.size() &&
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
  slot.batch = reader_.read(position.epoch, position.step,
                            std::span(slot.x).first(rows * reader_.features()));
  std::copy(slot.batch.labels.begin(), slot.batch.labels.end(), slot.labels.begin());
  std::copy(slot.batch.ids.begin(), slot.batch.ids.end(), slot.ids.begin());
  slot.batch.labels = std::span(slot.labels).first(rows);
  slot.batch.ids = std::span(slot.ids).first(rows);
}

}  // namespace lockstep::data
