#include "data/plan.hpp"

#include <algorithm>
#include <bit>

#include "data/permutation.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"

namespace lockstep::data {
namespace {

/// Without the overflow of (a + b - 1) / b.
std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) noexcept {
  return a / b + (a % b == 0 ? 0 : 1);
}

}  // namespace

std::uint64_t automatic_leaf(std::uint64_t examples) noexcept {
  return std::bit_floor(std::clamp<std::uint64_t>(examples / 8, 1, 16));
}

Range piece_of(std::uint64_t examples, std::uint64_t leaf, std::uint64_t rank,
               std::uint64_t ranks) noexcept {
  const std::uint64_t leaves = ceil_divide(examples, leaf);
  const std::uint64_t each = ceil_divide(leaves, ranks);
  const std::uint64_t first = rank < ceil_divide(leaves, std::max<std::uint64_t>(each, 1))
                                  ? rank * each
                                  : leaves;  // before any product can overflow
  const std::uint64_t last = std::min(leaves, first + each);
  const auto position = [&](std::uint64_t at) { return at == leaves ? examples : at * leaf; };
  return {position(first), position(last)};
}

Plan::Plan(const PlanOptions& options) : options_(options) {
  if (options.batch_size == 0) throw ConfigError("batch-size is 0", "give at least 1");
  if (options.ranks == 0) throw ConfigError("a plan for 0 ranks", "give at least 1");
  steps_ = options.drop_remainder ? options.records / options.batch_size
                                  : ceil_divide(options.records, options.batch_size);
}

std::uint64_t Plan::examples(std::uint64_t step) const noexcept {
  return std::min(options_.batch_size, options_.records - step * options_.batch_size);
}

std::uint64_t Plan::examples_per_epoch() const noexcept {
  return options_.drop_remainder ? steps_ * options_.batch_size : options_.records;
}

std::uint64_t Plan::leaf(std::uint64_t step) const noexcept {
  return options_.leaf > 0 ? options_.leaf : automatic_leaf(examples(step));
}

Range Plan::piece(std::uint64_t step, std::uint64_t rank) const noexcept {
  return piece_of(examples(step), leaf(step), rank, options_.ranks);
}

Range Plan::positions(std::uint64_t step, std::uint64_t rank) const noexcept {
  const Range mine = piece(step, rank);
  const std::uint64_t first = step * options_.batch_size;
  return {first + mine.begin, first + mine.end};
}

void Plan::records(std::uint64_t epoch, std::uint64_t step, std::uint64_t rank,
                   std::vector<std::uint64_t>& ids) const {
  const Range mine = positions(step, rank);
  ids.resize(mine.size());
  const Permutation order(options_.records, options_.seed, epoch);
  for (std::uint64_t i = 0; i < mine.size(); ++i) {
    const std::uint64_t position = mine.begin + i;
    ids[i] = options_.shuffle == Shuffle::global ? order(position) : position;
  }
}

std::uint64_t Plan::largest_piece() const noexcept {
  if (steps_ == 0) return 0;
  const std::uint64_t last = steps_ - 1;  // may have a leaf of its own
  return std::max(positions(0, 0).size(), positions(last, 0).size());
}

std::uint64_t Plan::largest_gathered() const noexcept { return largest_piece() * options_.ranks; }

std::uint64_t Plan::idle_ranks() const noexcept {
  if (steps_ == 0) return options_.ranks;
  const std::uint64_t leaves = ceil_divide(examples(0), leaf(0));
  return options_.ranks - ceil_divide(leaves, ceil_divide(leaves, options_.ranks));
}

std::uint64_t Plan::digest() const {
  Hash hash;
  hash.add("data");  // policy and rule, of which there is one today
  hash.add("ceil");
  for (const std::uint64_t number :
       {options_.records, options_.batch_size, options_.ranks, options_.leaf,
        std::uint64_t{options_.drop_remainder}, static_cast<std::uint64_t>(options_.shuffle),
        options_.shuffle == Shuffle::global ? options_.seed : 0}) {
    hash.add(number);
  }
  return hash.value();
}

}  // namespace lockstep::data
