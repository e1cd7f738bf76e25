#include "lib/train/gathered_results.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <type_traits>

namespace lockstep::train {

GatheredResults::GatheredResults(std::size_t rows, comm::Communicator& comm)
    : comm_(comm), all_(rows, comm.memory()) {}

std::span<const nn::ExampleResult> GatheredResults::gather(std::span<const nn::ExampleResult> mine,
                                                           std::size_t block) {
  static_assert(std::is_standard_layout_v<nn::ExampleResult> &&
                sizeof(nn::ExampleResult) == 2 * sizeof(double));
  const auto all = all_.span().first(block * static_cast<std::size_t>(comm_.size()));
  const auto own = all.subspan(static_cast<std::size_t>(comm_.rank()) * block, block);
  assert(mine.size() <= block);
  const auto rest = std::copy(mine.begin(), mine.end(), own.begin());
  std::fill(rest, own.end(), nn::ExampleResult{});
  comm_.all_gather(std::span(reinterpret_cast<double*>(all.data()), 2 * all.size()));
  return all;
}

nn::Tally sum_over_ranks(nn::Tally mine, comm::Communicator& comm) {
  // Counts are exact in double far beyond any batch, so one message carries both.
  std::array totals = {mine.loss_sum, static_cast<double>(mine.correct)};
  comm.all_reduce(std::span<double>(totals));
  return {totals[0], static_cast<std::uint64_t>(totals[1])};
}

}  // namespace lockstep::train
