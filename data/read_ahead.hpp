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

namespace lockstep::data {

/// Fills values 0, 1, 2, ... of a sequence into the slots of a ring, in a background thread, at
/// most `depth` ahead of the consumer. All prefetching of the project uses this class.
///
/// The owner has the slots, of any type; this object has their numbers. The consumer takes
/// consecutive indices. Taking any other index drops all prefetched values and restarts prefetching
/// there. A taken slot stays valid for slots - depth - 1 further calls of take(). The destructor
/// waits only for the running call of the fill function: destroy this object before the slots.
///
/// Threads  all members are called by one thread. The fill function runs in this object's thread,
///          started by start() or the first take(); at depth 0 there is no thread, and take() calls
///          the function. No other thread may use the objects that the function uses;
///          the function must not use a communicator.
class ReadAhead {
 public:
  /// Writes value `index` to slot `slot`; false if the sequence ends before it.
  using Fill = std::function<bool(std::size_t slot, std::uint64_t index)>;

  static constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

  /// Needs more than `depth` slots. Values from `limit` on are not prefetched.
  ReadAhead(std::size_t slots, std::size_t depth, Fill fill, std::uint64_t limit = endless)
      : slots_(slots), depth_(depth), fill_(std::move(fill)), limit_(limit) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Starts the thread; it has nothing to read before the first take().
  ///
  /// Errors   throws Error with exit code 2 if the system permits no further thread.
  void start();

  /// The slot that holds value `index`; nullopt if the sequence ends before it.
  ///
  /// Errors   throws what the fill function threw; taking the same index again retries. Also what
  ///          start() throws.
  std::optional<std::size_t> take(std::uint64_t index);

  /// The slot that sequential calls of take() will return for `index`, if it is already filled;
  /// nullopt otherwise, and at depth 0. Never waits for the fill function.
  std::optional<std::size_t> ready(std::uint64_t index) noexcept;

 private:
  void restart(std::uint64_t index);
  bool has_work() const noexcept;
  void run(const std::stop_token& stop);

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

}  // namespace lockstep::data
