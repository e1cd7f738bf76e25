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

namespace lockstep::data {

/// The thread of a ReadAhead and the numbers of its slots, for slots of any type.
class ReadAheadRing {
 public:
  using Fill = std::function<bool(std::size_t slot, std::uint64_t index)>;

  /// See ReadAhead.
  ReadAheadRing(std::size_t slots, std::size_t depth, Fill fill, std::uint64_t limit)
      : slots_(slots), depth_(depth), fill_(std::move(fill)), limit_(limit) {}
  ReadAheadRing(const ReadAheadRing&) = delete;
  ReadAheadRing& operator=(const ReadAheadRing&) = delete;

  void start();
  std::optional<std::size_t> take(std::uint64_t index);
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
      : slots_(std::move(slots)),
        ring_(
            slots_.size(), depth,
            [this, fill = std::move(fill)](std::size_t slot, std::uint64_t index) {
              return fill(slots_[slot], index);
            },
            limit) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Starts the thread; it has nothing to read before the first take().
  ///
  /// Errors   throws Error with exit code 2 if the system permits no further thread.
  void start() { ring_.start(); }

  /// The slot that holds value `index`; null if the sequence ends before it.
  ///
  /// Errors   throws what the fill function threw; taking the same index again retries. Also what
  ///          start() throws.
  Slot* take(std::uint64_t index) {
    const auto slot = ring_.take(index);
    return slot ? &slots_[*slot] : nullptr;
  }

  /// The slot that sequential calls of take() will return for `index`, if it is already filled;
  /// null otherwise, and at depth 0. Never waits for the fill function.
  const Slot* ready(std::uint64_t index) noexcept {
    const auto slot = ring_.ready(index);
    return slot ? &slots_[*slot] : nullptr;
  }

 private:
  std::vector<Slot> slots_;
  ReadAheadRing ring_;  // last member: its thread ends before the slots are destroyed
};

}  // namespace lockstep::data
