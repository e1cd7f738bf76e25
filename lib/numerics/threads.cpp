#include "lockstep/numerics/threads.hpp"

#include <omp.h>

#include <algorithm>

namespace lockstep {
void set_product_threads(int threads) { omp_set_num_threads(std::max(1, threads)); }

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
