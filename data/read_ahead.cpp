#include "lockstep/data/read_ahead.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>

#include "lockstep/base/process.hpp"

namespace lockstep::data {

class ReadAheadRing::Thread {
 public:
  Thread(std::size_t slots, std::size_t depth, Fill fill, std::uint64_t limit)
      : slots_(slots), depth_(depth), fill_(std::move(fill)), limit_(limit) {}

  void start() {
    if (depth_ == 0 || thread_.joinable()) return;
    thread_ =
        start_thread("that reads data ahead", [this](const std::stop_token& stop) { run(stop); });
  }

  std::optional<std::size_t> take(std::uint64_t index) {
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

  std::optional<std::size_t> ready(std::uint64_t index) noexcept {
    const std::lock_guard lock(mutex_);
    if (!next_ || index < *next_ || index - *next_ >= full_) return std::nullopt;
    return (first_ + static_cast<std::size_t>(index - *next_)) % slots_;
  }

 private:
  void restart(std::uint64_t index) {
    ++generation_;
    full_ = 0;
    ended_ = false;
    error_ = nullptr;
    ahead_ = index;
    next_ = index;
  }

  bool has_work() const noexcept {
    const bool wanted = asked_ && full_ == 0;
    return next_ && !ended_ && error_ == nullptr && full_ < depth_ && (wanted || ahead_ < limit_);
  }

  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (!changed_.wait(lock, stop, [&] { return has_work(); })) return;
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

  std::size_t slots_;
  std::size_t depth_;
  Fill fill_;
  std::uint64_t limit_;

  // Guarded by mutex_. Slots [first_, first_ + full_) of the ring hold values next_, next_ + 1, ...
  // The slots before first_ are in use by the consumer.
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t first_ = 0;
  std::size_t full_ = 0;
  std::optional<std::uint64_t> next_;  // expected index of the next take()
  std::uint64_t ahead_ = 0;            // index that the thread fills next
  bool asked_ = false;                 // the consumer waits
  bool ended_ = false;                 // the sequence ends before ahead_
  std::uint64_t generation_ = 0;       // number of restarts; older results are dropped
  std::exception_ptr error_;           // thrown at ahead_; the thread pauses there

  std::jthread thread_;  // last member: joined before the others are destroyed
};

ReadAheadRing::ReadAheadRing(std::size_t slots, std::size_t depth, Fill fill, std::uint64_t limit)
    : thread_(std::make_unique<Thread>(slots, depth, std::move(fill), limit)) {}

ReadAheadRing::~ReadAheadRing() = default;

void ReadAheadRing::start() { thread_->start(); }

std::optional<std::size_t> ReadAheadRing::take(std::uint64_t index) { return thread_->take(index); }

std::optional<std::size_t> ReadAheadRing::ready(std::uint64_t index) noexcept {
  return thread_->ready(index);
}

}  // namespace lockstep::data
