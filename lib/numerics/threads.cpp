#include "lockstep/numerics/threads.hpp"

#include <omp.h>

#include <algorithm>
#include <latch>
#include <string>
#include <vector>

#include "lockstep/base/process.hpp"

namespace lockstep {
namespace {

/// Throws unless `count` threads can run besides this one. OpenMP, which starts them later, would
/// end the process with exit code 1.
void require_threads(int count) {
  std::latch all_started(1);
  std::vector<std::jthread> threads;
  const struct Release {
    ~Release() { latch.count_down(); }
    std::latch& latch;
  } release{all_started};  // before the threads are joined
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.push_back(start_thread("for matrix products, number " + std::to_string(i + 2) + " of " +
                                       std::to_string(count + 1) + " on this rank",
                                   [&] { all_started.wait(); }));
  }
}

}  // namespace

void set_product_threads(int threads) {
  const int count = std::max(1, threads);
  require_threads(count - 1);
  omp_set_num_threads(count);
}

std::size_t product_threads() noexcept { return static_cast<std::size_t>(omp_get_max_threads()); }

void share_between_threads(std::size_t count, std::size_t unit, SharedWork work) {
  const std::size_t threads = product_threads();
  if (count == 0) return;
  if (threads == 1) return work.call(work.work, {0, count}, 0);
  const std::size_t each = ((count + threads - 1) / threads + unit - 1) / unit * unit;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(threads))
  for (std::size_t i = 0; i < threads; ++i) {
    const Range mine = {std::min(count, i * each), std::min(count, (i + 1) * each)};
    if (mine.size() > 0) work.call(work.work, mine, i);
  }
}

}  // namespace lockstep
