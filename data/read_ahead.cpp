#include "lockstep/data/read_ahead.hpp"

#include "lockstep/base/process.hpp"

namespace lockstep::data {

void ReadAhead::start() {
  if (depth_ == 0 || thread_.joinable()) return;
  thread_ =
      start_thread("that reads data ahead", [this](const std::stop_token& stop) { run(stop); });
}

std::optional<std::size_t> ReadAhead::take(std::uint64_t index) {
  if (depth_ == 0) {
    const std::size_t slot = first_;
    if (!fill_(slot, index)) return std::nullopt;
    first_ = (first_ + 1) % slots_;
    return slot;
  }
  start();
  std::unique_lock lock(mutex_);
  if (next_ != index) restart(index);
  asked_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return full_ > 0 || ended_ || error_ != nullptr; });
  asked_ = false;
  if (full_ == 0) {
    if (error_ == nullptr) return std::nullopt;
    next_.reset();
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  const std::size_t slot = first_;
  first_ = (first_ + 1) % slots_;
  --full_;
  next_ = index + 1;
  changed_.notify_all();  // a previously taken slot is free
  return slot;
}

std::optional<std::size_t> ReadAhead::ready(std::uint64_t index) noexcept {
  const std::lock_guard lock(mutex_);
  if (!next_ || index < *next_ || index - *next_ >= full_) return std::nullopt;
  return (first_ + static_cast<std::size_t>(index - *next_)) % slots_;
}

void ReadAhead::restart(std::uint64_t index) {
  ++generation_;
  full_ = 0;
  ended_ = false;
  error_ = nullptr;
  ahead_ = index;
  next_ = index;
}

bool ReadAhead::has_work() const noexcept {
  const bool wanted = asked_ && full_ == 0;
  return next_ && !ended_ && error_ == nullptr && full_ < depth_ && (wanted || ahead_ < limit_);
}

void ReadAhead::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    // After a request to stop wait() still gives what has_work() does.
    if (!changed_.wait(lock, stop, [&] { return has_work(); }) || stop.stop_requested()) return;
    const std::uint64_t index = ahead_;
    const std::uint64_t generation = generation_;
    const std::size_t slot = (first_ + full_) % slots_;
    bool filled = false;
    std::exception_ptr error;
    lock.unlock();
    try {
      filled = fill_(slot, index);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (generation != generation_) continue;  // restarted meanwhile
    error_ = error;
    ended_ = !filled && error == nullptr;
    if (filled) {
      ++full_;
      ahead_ = index + 1;
    }
    changed_.notify_all();
  }
}

}  // namespace lockstep::data
