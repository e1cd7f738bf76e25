#include "data/rebatch.hpp"

#include <algorithm>
#include <bit>

#include "data/policy.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {

/// Without the overflow of (a + b - 1) / b.
std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) noexcept {
  return a / b + (a % b == 0 ? 0 : 1);
}

std::uint64_t automatic_leaf(std::uint64_t examples) noexcept {
  return std::bit_floor(std::clamp<std::uint64_t>(examples / 8, 1, 16));
}

Range piece_of(std::uint64_t examples, std::uint64_t leaf, std::uint64_t index,
               std::uint64_t pieces) noexcept {
  const std::uint64_t leaves = ceil_divide(examples, leaf);
  const std::uint64_t each = ceil_divide(leaves, pieces);
  const std::uint64_t first = index < filled_pieces(examples, leaf, pieces)
                                  ? index * each
                                  : leaves;  // before any product can overflow
  const std::uint64_t last = std::min(leaves, first + each);
  const auto position = [&](std::uint64_t at) { return at == leaves ? examples : at * leaf; };
  return {position(first), position(last)};
}

std::uint64_t filled_pieces(std::uint64_t examples, std::uint64_t leaf,
                            std::uint64_t pieces) noexcept {
  const std::uint64_t leaves = ceil_divide(examples, leaf);
  return leaves == 0 ? 0 : ceil_divide(leaves, ceil_divide(leaves, pieces));
}

BalancedPieces::BalancedPieces(std::uint64_t batch, std::uint64_t workers,
                               std::uint64_t replicas_per_worker)
    : batch_(batch),
      workers_(workers),
      replicas_(replicas_per_worker),
      pieces_(workers * replicas_per_worker) {
  if (batch == 0) throw ConfigError("batch-size is 0", "give at least 1");
  if (pieces_ == 0) throw ConfigError("a batch for 0 workers or replicas", "give at least 1");
}

/// Examples of worker 0 before its piece `index`.
std::uint64_t BalancedPieces::before(std::uint64_t index) const noexcept {
  const std::uint64_t within = index % pieces_;
  return index / pieces_ * batch_ + within * (batch_ / pieces_) +
         std::min(within, batch_ % pieces_);
}

Range BalancedPieces::piece(std::uint64_t worker, std::uint64_t index) const noexcept {
  const std::uint64_t offset = worker * replicas_;
  const std::uint64_t skipped = before(offset);
  return {before(offset + index) - skipped, before(offset + index + 1) - skipped};
}

std::vector<std::uint64_t> BalancedPieces::sizes(std::uint64_t worker) const {
  require_worker(worker, workers_);
  std::vector<std::uint64_t> all(pieces_);
  for (std::uint64_t i = 0; i < pieces_; ++i) all[i] = piece(worker, i).size();
  return all;
}

std::uint64_t BalancedPieces::filled(std::uint64_t worker, std::uint64_t examples) const noexcept {
  const std::uint64_t rest = examples % batch_;
  std::uint64_t low = 0;  // the first piece that begins at or behind `rest`, by bisection
  std::uint64_t high = pieces_;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (piece(worker, middle).begin < rest) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return examples / batch_ * pieces_ + low;
}

}  // namespace lockstep::data
