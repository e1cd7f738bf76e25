// Where the ranks of a thread group wait for each other, and how they are released.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::comm {

/// A barrier for a fixed number of threads that any of them may break for good.
///
/// Threads  wait() and abort() may be called from any thread; at most `threads` of them wait at
///          once. What a thread wrote before wait() is seen by all after it.
/// Cost     waiters spin for some microseconds, then sleep (futex). Where those that run outnumber
///          the cores that this process may use, they sleep at once.
class AbortableBarrier {
 public:
  /// `running`: threads that want the cores at the same time, these included.
  AbortableBarrier(int threads, int running);

  /// Returns true once all threads have called it, false once the barrier is broken.
  ///
  /// A round that was complete before abort() returns true, even to a thread that wakes later:
  /// so a thread may leave the group right after its last round.
  bool wait() noexcept;

  /// Breaks this round and all later ones. Only for a thread that will not wait again.
  void abort() noexcept;

 private:
  bool wait_for_flip(std::uint32_t before) noexcept;

  const std::uint32_t threads_;
  const int spins_;
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> state_{0};  // bit 0 flips each round; bit 1: broken
};

}  // namespace lockstep::comm
