// A thread that reads values ahead of one consumer, into a ring of slots.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/process.hpp"

namespace lockstep::data {

/// Fills values 0, 1, 2, ... of a sequence in a background thread, at most `depth` ahead of the
/// consumer. All prefetching of the project uses this class.
///
/// The consumer takes consecutive indices. Taking any other index drops all prefetched values and
/// restarts prefetching there. A taken slot stays valid for slots - depth - 1 further calls of
/// take(). The destructor waits only for the running call of the fill function.
///
/// Threads  all members are called by one thread. The fill function runs in this object's thread,
///          started by start() or the first take(); at depth 0 there is no thread, and take() calls
///          the function. No other thread may use the objects that the function uses;
///          the function must not use a communicator.
template <class Slot>
class ReadAhead {
 public:
  /// Writes value `index` to `slot`; false if the sequence ends before it.
  using Fill = std::function<bool(Slot& slot, std::uint64_t index)>;

  static constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

  /// Needs more than `depth` slots. Values from `limit` on are not prefetched.
  ReadAhead(std::vector<Slot> slots, std::size_t depth, Fill fill, std::uint64_t limit = endless)
      : slots_(std::move(slots)), depth_(depth), fill_(std::move(fill)), limit_(limit) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Starts the thread; it has nothing to read before the first take().
  ///
  /// Errors   throws Error with exit code 2 if the system permits no further thread.
  void start() {
    if (depth_ == 0 || thread_.joinable()) return;
    thread_ =
        start_thread("that reads data ahead", [this](const std::stop_token& stop) { run(stop); });
  }

  /// The slot that holds value `index`; null if the sequence ends before it.
  ///
  /// Errors   throws what the fill function threw; taking the same index again retries. Also what
  ///          start() throws.
  Slot* take(std::uint64_t index) {
    if (depth_ == 0) {
      Slot& slot = slots_[first_];
      if (!fill_(slot, index)) return nullptr;
      first_ = (first_ + 1) % slots_.size();
      return &slot;
    }
    start();
    std::unique_lock lock(mutex_);
    if (next_ != index) restart(index);
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return full_ > 0 || ended_ || error_ != nullptr; });
    asked_ = false;
    if (full_ == 0) {
      if (error_ == nullptr) return nullptr;
      next_.reset();
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
    Slot& slot = slots_[first_];
    first_ = (first_ + 1) % slots_.size();
    --full_;
    next_ = index + 1;
    changed_.notify_all();  // a previously taken slot is free
    return &slot;
  }

  /// The slot that sequential calls of take() will return for `index`, if it is already filled;
  /// null otherwise, and at depth 0. Never waits for the fill function.
  const Slot* ready(std::uint64_t index) noexcept {
    const std::lock_guard lock(mutex_);
    if (!next_ || index < *next_ || index - *next_ >= full_) return nullptr;
    return &slots_[(first_ + static_cast<std::size_t>(index - *next_)) % slots_.size()];
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
      Slot& slot = slots_[(first_ + full_) % slots_.size()];
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

  std::vector<Slot> slots_;
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

}  // namespace lockstep::data
