// What a waiting thread does between two looks at memory.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::comm {

/// Some tens of nanoseconds in which the core's other thread may run.
inline void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::comm
