// How a thread waits for another one, or a rank for its peers, that is expected within
// microseconds.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {

/// Tells the processor that this thread waits in a loop.
inline void spin_hint() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A wait in a loop, for some 100 us.
///
/// Never sched_yield(): beside other load, Linux (EEVDF) then leaves the core to that for a time
/// slice of milliseconds although the peer answers within microseconds. A thread that has slept is
/// preferred to a busy one when it is woken.
class SpinWait {
 public:
  /// One round of the loop; false once the caller should sleep instead.
  bool spin() noexcept {
    spin_hint();  // takes 1 to 140 cycles
    if (++rounds_ % rounds_a_look != 0) return true;
    const auto now = std::chrono::steady_clock::now();
    if (rounds_ == rounds_a_look) end_ = now + std::chrono::microseconds(100);
    return now < end_;
  }

 private:
  static constexpr std::uint32_t rounds_a_look = 64;

  std::uint32_t rounds_ = 0;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace lockstep
