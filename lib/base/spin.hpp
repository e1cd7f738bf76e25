// How a thread waits for another one, or a rank for its peers, that is expected within
// microseconds.
#pragma once

#include <sched.h>

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

/// Step `step` of a spin-wait; false once the caller should sleep instead.
///
/// The first 200 steps (about 10 us) are spin hints: a barrier takes 0.3 us if each waiting thread
/// has its own core. Then sched_yield: on a busy machine two of them often share a core for
/// milliseconds; a barrier then takes 4 us, with hints alone 80 us.
inline bool spin(int step) noexcept {
  if (step >= 1000) return false;
  step < 200 ? spin_hint() : static_cast<void>(::sched_yield());
  return true;
}

}  // namespace lockstep
