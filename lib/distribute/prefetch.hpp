// A thread that reads ahead.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

namespace lockstep {

/// Calls `produce` in a thread of its own, at most `depth` values ahead of next().
///
/// The thread starts at the first next(). It ends when `produce` returns nothing or throws, or with
/// the prefetcher, which waits for the call of `produce` that is running: that must return.
/// `produce` may touch nothing that its owner touches meanwhile; no communicator above all.
/// Threads  next() and the destructor belong to one thread.
template <class T>
class Prefetcher {
 public:
  using Produce = std::function<std::optional<T>()>;

  /// A depth of 0 means no thread: next() calls `produce`.
  Prefetcher(Produce produce, std::size_t depth) : produce_(std::move(produce)), depth_(depth) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  ~Prefetcher() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

  /// The next value in order, none at the end and ever after. Rethrows what `produce` threw, behind
  /// the values before it; every later call throws it again.
  std::optional<T> next() {
    if (depth_ == 0) return produce_();
    if (!thread_.joinable()) {
      thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    }
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !ready_.empty() || ended_; });
    if (ready_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    std::optional<T> value(std::move(ready_.front()));
    ready_.pop_front();
    taken_.notify_one();
    return value;
  }

 private:
  void run(const std::stop_token& stop) noexcept {
    try {
      while (offer(stop, produce_())) {
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    filled_.notify_one();
  }

  /// Waits for room. False where there is nothing more to do.
  bool offer(const std::stop_token& stop, std::optional<T> value) {
    if (!value) return false;
    std::unique_lock lock(mutex_);
    if (!taken_.wait(lock, stop, [&] { return ready_.size() < depth_; })) return false;
    ready_.push_back(std::move(*value));
    filled_.notify_one();
    return !stop.stop_requested();
  }

  Produce produce_;
  std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable_any taken_;
  std::deque<T> ready_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;  // the last: it ends before what it uses
};

}  // namespace lockstep
