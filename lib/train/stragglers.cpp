#include "lockstep/train/stragglers.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "lockstep/base/text.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {
namespace {

constexpr std::uint64_t window_steps = 50;
constexpr double window_seconds = 5;
constexpr double least_excess = 1e-3;  // seconds
constexpr double least_share = 0.1;    // of a step

std::string milliseconds(double seconds) { return with_decimals(seconds * 1e3, 1) + " ms"; }

}  // namespace

Stragglers::Stragglers(double factor, const data::Plan& plan, std::vector<std::string> names,
                       Warn warn)
    : factor_(factor),
      plan_(plan),
      names_(std::move(names)),
      warn_(std::move(warn)),
      is_reported_(names_.size()),
      ranks_(names_.size()) {}

void Stragglers::on_step(const StepReport& report) {
  if (names_.size() < 2 || seen_++ < warm_up_steps) return;
  add(report);
  if (steps_ >= window_steps && step_seconds_ >= window_seconds) end_window();
}

void Stragglers::add(const StepReport& report) {
  assert(report.messages.size() == names_.size());
  const std::uint64_t step = (report.step - 1) % plan_.steps();
  ++steps_;
  step_seconds_ += report.seconds;
  std::vector<double> seconds;  // of the ranks with examples
  std::vector<std::uint64_t> examples;
  for (std::size_t rank = 0; rank < names_.size(); ++rank) {
    const std::uint64_t piece = plan_.piece_size(step, rank);
    if (piece == 0) continue;
    seconds.push_back(report.messages[rank].seconds);
    examples.push_back(piece);
  }
  if (seconds.empty()) return;
  const double median_seconds = median(seconds);
  const auto median_piece = static_cast<double>(median(examples));
  median_ += median_seconds;
  for (std::size_t rank = 0; rank < names_.size(); ++rank) {
    const std::uint64_t piece = plan_.piece_size(step, rank);
    if (piece == 0) continue;
    const double expected =
        median_seconds * std::max(1.0, static_cast<double>(piece) / median_piece);
    const double own = report.messages[rank].seconds;
    ranks_[rank].seconds += own;
    ranks_[rank].expected += expected;
    if (own > factor_ * expected) ++ranks_[rank].slow_steps;
  }
}

void Stragglers::end_window() {
  const auto steps = static_cast<double>(steps_);
  const double worth = std::max(least_excess * steps, least_share * step_seconds_);
  for (std::size_t rank = 0; rank < names_.size(); ++rank) {
    const auto [seconds, expected, slow_steps] = std::exchange(ranks_[rank], {});
    const bool is_slow = 2 * slow_steps > steps_ && seconds > factor_ * expected;
    if (!is_slow || seconds - expected < worth || is_reported_[rank]) continue;
    is_reported_[rank] = true;
    warn_(names_[rank] + " is slow: " + milliseconds(seconds / steps) +
          " before the exchange of a step, where the median of " + std::to_string(names_.size()) +
          " ranks is " + milliseconds(median_ / steps) + "; all ranks wait for it" +
          "\n  remedy: look for other processes on that host, throttled cores and ranks bound to "
          "the same core (`lockstep doctor`), or leave the host out" +
          (plan_.options().balance ? "" : "; `balance=true` lets slow ranks compute less"));
  }
  steps_ = 0;
  step_seconds_ = 0;
  median_ = 0;
}

}  // namespace lockstep::train
