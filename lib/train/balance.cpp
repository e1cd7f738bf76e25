#include "lockstep/train/balance.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "lockstep/train/timing.hpp"

namespace lockstep::train {
namespace {

constexpr double worth = 0.9;  // of the time with the old shares

/// The time of the slowest rank.
double slowest(const std::vector<std::uint64_t>& shares, const std::vector<double>& seconds) {
  double most = 0;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    most = std::max(most, static_cast<double>(shares[rank]) * seconds[rank]);
  }
  return most;
}

/// Replaces the times of ranks without a leaf.
void fill_unknown(const std::vector<std::uint64_t>& shares, std::vector<double>& seconds) {
  std::vector<double> known;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] > 0) known.push_back(seconds[rank]);
  }
  const double other = median(known);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] == 0) seconds[rank] = other;
  }
}

}  // namespace

std::vector<std::uint64_t> balanced_shares(const std::vector<std::uint64_t>& shares,
                                           std::vector<double> seconds,
                                           std::uint64_t largest_share) {
  assert(shares.size() == seconds.size());
  fill_unknown(shares, seconds);
  auto left = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  const std::uint64_t least = left >= shares.size() ? 1 : 0;
  std::vector<std::uint64_t> balanced(shares.size(), least);
  for (left -= least * shares.size(); left > 0; --left) {
    std::size_t first = 0;
    double first_end = 0;
    bool is_found = false;
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      if (balanced[rank] == largest_share) continue;
      const double end = static_cast<double>(balanced[rank] + 1) * seconds[rank];
      if (is_found && end >= first_end) continue;
      first = rank;
      first_end = end;
      is_found = true;
    }
    ++balanced[first];
  }
  return slowest(balanced, seconds) <= worth * slowest(shares, seconds) ? balanced : shares;
}

Balance::Balance(const data::Plan& plan)
    : plan_(plan), warm_up_(warm_up_steps), nanoseconds_(plan.options().ranks) {}

void Balance::add(std::uint64_t step, std::span<const RankMessage> messages) {
  assert(messages.size() == nanoseconds_.size());
  if (warm_up_ > 0) {
    --warm_up_;
    return;
  }
  if (plan_.examples(step) != plan_.examples(0)) return;
  ++steps_;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    nanoseconds_[rank] += messages[rank].nanoseconds;
  }
}

std::vector<std::uint64_t> Balance::next_shares(comm::Communicator* model) {
  const auto& shares = plan_.shares();
  if (model != nullptr) model->all_reduce(std::span(nanoseconds_), comm::Op::max);
  std::vector<double> seconds(shares.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const auto leaves = static_cast<double>(std::max<std::uint64_t>(shares[rank], 1));
    seconds[rank] = static_cast<double>(nanoseconds_[rank]) / leaves;
  }
  std::fill(nanoseconds_.begin(), nanoseconds_.end(), 0U);
  if (std::exchange(steps_, 0) == 0) return shares;
  return balanced_shares(shares, std::move(seconds), plan_.largest_share());
}

}  // namespace lockstep::train
