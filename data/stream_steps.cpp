#include "data/stream_steps.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint64_t most_steps = std::uint64_t{1} << 63;

}  // namespace

StreamSteps::StreamSteps(std::vector<std::uint64_t> lengths, std::uint64_t batch_size, Rebatch rule)
    : lengths_(std::move(lengths)),
      batch_size_(batch_size),
      rule_(rule),
      balanced_(batch_size, lengths_.size()),
      full_steps_(filled_pieces(batch_size, 1, lengths_.size())) {
  make_groups();
  if (ceil_divide(groups_.back().length, batch_size) > most_steps / ranks()) {
    throw ConfigError("a plan of more steps than can be counted", "use a larger --batch-size");
  }
  if (rule == Rebatch::ceil) {
    find_odd_rounds();
    return;
  }
  if (batch_size < ranks()) {
    throw ConfigError(
        "rebatch balanced: batch-size " + std::to_string(batch_size) + " for " +
            std::to_string(ranks()) + " ranks would leave pieces empty in every step",
        "use --rebatch ceil, or a --batch-size of at least " + std::to_string(ranks()));
  }
  for (std::uint64_t rank = 0; rank < ranks(); ++rank) {
    steps_ = std::max(steps_, filled_steps(rank));
  }
}

void StreamSteps::make_groups() {
  std::vector<std::uint64_t> sorted = lengths_;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (groups_.empty() || groups_.back().length != sorted[i]) {
      groups_.push_back({sorted[i], 0, sorted.size() - i});
    }
    ++groups_.back().ranks;
  }
}

void StreamSteps::find_odd_rounds() {
  const std::uint64_t full_rounds = groups_.back().length / batch_size_;  // of the longest stream
  std::map<std::uint64_t, std::uint64_t> steps_of_last;  // of rounds that end a stream
  for (const Group& group : groups_) {
    const std::uint64_t round = group.length / batch_size_;
    const std::uint64_t least = round < full_rounds ? full_steps_ : 0;
    const std::uint64_t filled = filled_pieces(group.length % batch_size_, 1, ranks());
    std::uint64_t& steps = steps_of_last[round];
    steps = std::max({steps, least, filled});
  }
  steps_ = full_rounds * full_steps_;
  std::uint64_t more = 0;  // steps that odd rounds have over those of full batches
  for (const auto& [round, steps] : steps_of_last) {
    const std::uint64_t usual = round < full_rounds ? full_steps_ : 0;
    if (steps == usual) continue;
    odd_rounds_.push_back({round, round * full_steps_ + more, steps});
    more += steps - usual;
  }
  steps_ += more;
}

StreamSteps::Place StreamSteps::place(std::uint64_t step) const noexcept {
  if (rule_ == Rebatch::balanced) return {step / ranks(), step % ranks()};
  const auto after =
      std::upper_bound(odd_rounds_.begin(), odd_rounds_.end(), step,
                       [](std::uint64_t s, const OddRound& odd) { return s < odd.first_step; });
  if (after == odd_rounds_.begin()) return {step / full_steps_, step % full_steps_};
  const OddRound& odd = *(after - 1);
  const std::uint64_t since = step - odd.first_step;
  if (since < odd.steps) return {odd.round, since};
  const std::uint64_t behind = since - odd.steps;
  return {odd.round + 1 + behind / full_steps_, behind % full_steps_};
}

Range StreamSteps::piece(std::uint64_t step, std::uint64_t rank) const noexcept {
  const std::uint64_t length = lengths_[rank];
  if (rule_ == Rebatch::balanced) {
    const Range whole = balanced_.piece(rank, step);
    return {std::min(whole.begin, length), std::min(whole.end, length)};
  }
  const auto [round, index] = place(step);
  const std::uint64_t first = std::min(round * batch_size_, length);
  const Range piece = piece_of(std::min(batch_size_, length - first), 1, index, ranks());
  return {first + piece.begin, first + piece.end};
}

template <class Visit>
void StreamSteps::for_each_size(std::uint64_t step, Visit visit) const {
  if (rule_ == Rebatch::balanced) {
    for (std::uint64_t rank = 0; rank < ranks(); ++rank) visit(piece(step, rank).size(), 1);
    return;
  }
  const auto [round, index] = place(step);
  const std::uint64_t first = round * batch_size_;
  auto group = std::upper_bound(groups_.begin(), groups_.end(), first,
                                [](std::uint64_t at, const Group& g) { return at < g.length; });
  for (; group != groups_.end() && group->length - first < batch_size_; ++group) {
    visit(piece_of(group->length - first, 1, index, ranks()).size(), group->ranks);
  }
  if (group == groups_.end()) return;
  visit(piece_of(batch_size_, 1, index, ranks()).size(), group->not_shorter);
}

std::uint64_t StreamSteps::examples(std::uint64_t step) const noexcept {
  if (rule_ == Rebatch::balanced && full_everywhere(step)) return batch_size_;
  std::uint64_t sum = 0;
  for_each_size(step, [&](std::uint64_t size, std::uint64_t ranks) { sum += size * ranks; });
  return sum;
}

std::uint64_t StreamSteps::largest_piece(std::uint64_t step) const noexcept {
  if (rule_ == Rebatch::balanced && full_everywhere(step)) return largest_piece();
  std::uint64_t largest = 0;
  for_each_size(step,
                [&](std::uint64_t size, std::uint64_t) { largest = std::max(largest, size); });
  return largest;
}

bool StreamSteps::full_everywhere(std::uint64_t step) const noexcept {
  return groups_.front().length / batch_size_ > step / ranks();
}

std::uint64_t StreamSteps::largest_piece() const noexcept {
  const std::uint64_t longest = groups_.back().length;
  const std::uint64_t of_batch = ceil_divide(batch_size_, ranks());
  if (rule_ == Rebatch::balanced) return std::min(of_batch, longest);
  return ceil_divide(std::min(batch_size_, longest), ranks());
}

std::uint64_t StreamSteps::filled_steps(std::uint64_t rank) const noexcept {
  const std::uint64_t length = lengths_[rank];
  if (rule_ == Rebatch::balanced) return balanced_.filled(rank, length);
  return length / batch_size_ * full_steps_ + filled_pieces(length % batch_size_, 1, ranks());
}

}  // namespace lockstep::data
