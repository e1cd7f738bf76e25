#include "collectives/abortable_barrier.hpp"

#include <sched.h>

#include <algorithm>

#include "collectives/pause.hpp"

namespace lockstep::comm {
namespace {

constexpr std::uint32_t flip = 1;
constexpr std::uint32_t broken = 2;

int usable_cores() noexcept {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// First some 10 us of pauses: 0.3 us a round where the threads have cores of their own. Then the
// scheduler is asked, for on a busy machine two threads often share a core for milliseconds, and
// pausing alone made a round 80 us there instead of 4. Then sleep.
constexpr int pauses = 200;
constexpr int spins = 1000;

}  // namespace

AbortableBarrier::AbortableBarrier(int threads, int running)
    : threads_(static_cast<std::uint32_t>(threads)),
      spins_(running <= usable_cores() ? spins : 0) {}

bool AbortableBarrier::wait() noexcept {
  const std::uint32_t before = state_.load(std::memory_order_acquire);
  if ((before & broken) != 0) return false;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) return wait_for_flip(before);
  arrived_.store(0, std::memory_order_relaxed);
  state_.fetch_xor(flip, std::memory_order_acq_rel);
  state_.notify_all();
  return true;
}

bool AbortableBarrier::wait_for_flip(std::uint32_t before) noexcept {
  for (int spin = 0;; ++spin) {
    const std::uint32_t now = state_.load(std::memory_order_acquire);
    // In this order: a round may be complete and the next one already broken.
    if (((now ^ before) & flip) != 0) return true;
    if ((now & broken) != 0) return false;
    if (spin < std::min(spins_, pauses)) {
      pause();
    } else if (spin < spins_) {
      sched_yield();
    } else {
      state_.wait(now, std::memory_order_acquire);
    }
  }
}

void AbortableBarrier::abort() noexcept {
  state_.fetch_or(broken, std::memory_order_acq_rel);
  state_.notify_all();
}

}  // namespace lockstep::comm
