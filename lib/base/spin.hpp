// How a thread waits for another one, or a rank for its peers, that is expected within
// microseconds.
#pragma once

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

/// Step `step` of a spin-wait; false once the caller should sleep instead, after some 100 us.
///
/// Never sched_yield(): beside other load, Linux (EEVDF) then leaves the core to that for a time
/// slice of milliseconds although the peer answers within microseconds. A thread that has slept is
/// preferred to a busy one when it is woken.
inline bool spin(int step) noexcept {
  spin_hint();
  return step < 2000;
}

}  // namespace lockstep
