// The threads of a rank, shared by products and layers.
#pragma once

#include <cstddef>

#include "lockstep/numerics/matrix.hpp"

namespace lockstep {

/// Sets the number of threads of this rank's products, at least 1. Local to the calling thread.
///
/// Errors   throws Error with exit code 2 if the system does not permit that many threads; then
///          this thread computes alone.
void set_product_threads(int threads);

/// The number of these threads.
std::size_t product_threads() noexcept;

/// A call of `work` for one part of a range, that of thread number `thread`.
struct SharedWork {
  void (*call)(const void* work, Range part, std::size_t thread);
  const void* work;
};

void share_between_threads(std::size_t count, std::size_t unit, SharedWork work);

/// Work of fewer operations than this takes less time than a second thread needs to begin: some
/// ten microseconds.
inline constexpr std::size_t min_shared_operations = 200'000;

/// Calls work(part, thread) with parts of [0, count), each a multiple of `unit` except the last, on
/// the products' threads; at most one call for each number of a thread, and none for an empty
/// range. This thread does its own part and then those that their threads have not begun, under
/// their numbers. `operations`: multiplications and additions for one of `count`, about; little
/// work is done by this thread alone. `work` must not throw or call this function.
template <class Work>
void share(std::size_t count, std::size_t unit, std::size_t operations, const Work& work) {
  if (count > 0 && count * operations < min_shared_operations) {
    work(Range{0, count}, std::size_t{0});
    return;
  }
  const auto call = [](const void* w, Range part, std::size_t thread) {
    (*static_cast<const Work*>(w))(part, thread);
  };
  share_between_threads(count, unit, {call, &work});
}

}  // namespace lockstep
