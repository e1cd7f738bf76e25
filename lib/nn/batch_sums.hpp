// Sums over a step's whole global batch, for layers whose statistics run over it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "lib/numerics/leaf_tree.hpp"

namespace lockstep::nn {

/// Adds up terms of all examples of the global batch: within a leaf in order, then the balanced
/// binary tree over leaves, as gradients are summed, but in double. One fixed expression, so the
/// bits depend neither on the ranks nor on who holds which example.
class BatchSums {
 public:
  BatchSums() = default;
  BatchSums(const BatchSums&) = delete;
  BatchSums& operator=(const BatchSums&) = delete;
  virtual ~BatchSums() = default;

  /// Of the step over all ranks; at least 1.
  virtual std::size_t examples() const noexcept = 0;

  /// Sets `sums` to those of all examples. `add(first, count, into)` adds to `into`, in order, the
  /// terms of `count` examples of this rank, of which `first` is counted from its first.
  /// Ranks    collective: a rank without examples calls it too, with as many sums.
  template <class Add>
  void sum(std::span<double> sums, const Add& add) {
    do_sum(sums, {&add, [](const void* object, std::size_t first, std::size_t count,
                           std::span<double> into) {
                    (*static_cast<const Add*>(object))(first, count, into);
                  }});
  }

 protected:
  struct Terms {
    const void* object;
    void (*call)(const void* object, std::size_t first, std::size_t count, std::span<double> into);

    void add(std::size_t first, std::size_t count, std::span<double> into) const {
      call(object, first, count, into);
    }
  };

 private:
  virtual void do_sum(std::span<double> sums, Terms terms) = 0;
};

/// Sums one subtree of the leaves [0, leaves) into `out`: leaf(q, into) sets `into` to the sums of
/// leaf `q`. `scratch` is grown to what the tree needs.
template <class Leaf>
void sum_subtree(const Subtree& tree, std::uint64_t leaves, std::span<double> out,
                 std::vector<double>& scratch, const Leaf& leaf) {
  const std::uint64_t count = std::min(tree.size, leaves - tree.first);
  const std::size_t needed = tree_slots(count) * out.size();
  if (scratch.size() < needed) scratch.resize(needed);
  sum_tree(count, std::span(scratch), out,
           [&](std::uint64_t n, std::span<double> into) { leaf(tree.first + n, into); });
}

/// The sums of one replica that holds the whole batch.
class WholeBatch final : public BatchSums {
 public:
  WholeBatch(std::size_t examples, std::size_t leaf) : examples_(examples), leaf_(leaf) {}

  std::size_t examples() const noexcept override { return examples_; }

 private:
  void do_sum(std::span<double> sums, Terms terms) override {
    const std::uint64_t leaves = (examples_ + leaf_ - 1) / leaf_;
    sum_subtree({0, std::bit_ceil(leaves)}, leaves, sums, scratch_,
                [&](std::uint64_t q, std::span<double> into) {
                  std::fill(into.begin(), into.end(), 0.0);
                  terms.add(q * leaf_, std::min(leaf_, examples_ - q * leaf_), into);
                });
  }

  std::size_t examples_;
  std::size_t leaf_;
  std::vector<double> scratch_;
};

}  // namespace lockstep::nn
