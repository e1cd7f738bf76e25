#include "lockstep/train/balance.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/train/report.hpp"

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

/// Deals `leaves` in runs of `run`, which divides them.
std::vector<std::uint64_t> dealt(std::uint64_t leaves, std::uint64_t run,
                                 const std::vector<double>& seconds, std::uint64_t largest_share) {
  const std::uint64_t least = leaves / run >= seconds.size() ? run : 0;
  std::vector<std::uint64_t> shares(seconds.size(), least);
  for (leaves -= least * shares.size(); leaves > 0; leaves -= run) {
    std::size_t first = 0;
    double first_end = std::numeric_limits<double>::infinity();
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      if (shares[rank] + run > largest_share) continue;
      const double end = static_cast<double>(shares[rank] + run) * seconds[rank];
      if (end >= first_end) continue;
      first = rank;
      first_end = end;
    }
    shares[first] += run;
  }
  return shares;
}

}  // namespace

std::vector<std::uint64_t> balanced_shares(const std::vector<std::uint64_t>& shares,
                                           std::vector<double> seconds,
                                           std::uint64_t largest_share) {
  assert(shares.size() == seconds.size());
  fill_unknown(shares, seconds);
  const auto leaves = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  auto best = dealt(leaves, 1, seconds, largest_share);
  const double most = slowest(best, seconds) / worth;
  for (std::uint64_t run = 2; leaves % run == 0 && leaves / run >= shares.size(); run *= 2) {
    if (largest_share % run != 0) break;  // they might not have room
    auto longer = dealt(leaves, run, seconds, largest_share);
    if (slowest(longer, seconds) <= most) best = std::move(longer);
  }
  return slowest(best, seconds) < worth * slowest(shares, seconds) ? best : shares;
}

Balance::Balance(const data::Plan& plan)
    : plan_(plan), warm_up_(warm_up_steps), rank_seconds_(plan.options().ranks) {}

void Balance::add(std::uint64_t step, std::span<const RankMessage> messages, double seconds) {
  assert(messages.size() == rank_seconds_.size());
  if (warm_up_ > 0) {
    --warm_up_;
    return;
  }
  if (plan_.examples(step) != plan_.examples(0)) return;
  if (std::exchange(is_first_, false)) return;
  ++steps_;
  seconds_ += seconds;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    rank_seconds_[rank] += messages[rank].seconds;
  }
}

std::vector<std::uint64_t> Balance::next_shares(const Groups& groups) {
  const auto& shares = plan_.shares();
  const auto steps = std::exchange(steps_, 0);
  if (steps == 0) return shares;
  auto seconds = std::exchange(rank_seconds_, std::vector<double>(shares.size()));
  if (groups.model != nullptr) groups.model->all_reduce(std::span(seconds), comm::Op::max);
  double step = std::exchange(seconds_, 0) / static_cast<double>(steps);
  groups.all.all_reduce(std::span(&step, 1), comm::Op::max);

  if (const auto before = std::exchange(shares_before_, {}); !before.empty()) {
    if (step >= step_before_) {
      wait_ = std::exchange(next_wait_, 2 * next_wait_);
      return before;
    }
    next_wait_ = 1;
  }
  if (wait_ > 0) {
    --wait_;
    return shares;
  }
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    seconds[rank] /= static_cast<double>(std::max<std::uint64_t>(shares[rank], 1));  // of a leaf
  }
  auto balanced = balanced_shares(shares, std::move(seconds), plan_.largest_share());
  if (balanced == shares) return balanced;
  shares_before_ = shares;
  step_before_ = step;
  is_first_ = true;
  return balanced;
}

}  // namespace lockstep::train
