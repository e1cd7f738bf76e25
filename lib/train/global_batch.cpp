#include "lib/train/global_batch.hpp"

#include <algorithm>

namespace lockstep::train {

GlobalBatch::GlobalBatch(nn::Network<float>& network, comm::Communicator& comm)
    : network_(network), comm_(comm), needed_(network.sums_over_batch()) {
  network_.set_batch_sums(this);
}

GlobalBatch::~GlobalBatch() { network_.set_batch_sums(nullptr); }

void GlobalBatch::begin(const data::Batch& batch) {
  if (!needed_) return;
  if (!layout_.fits(batch)) layout_ = leaf_layout(batch, comm_);
  examples_ = batch.global_examples;
  first_row_ = batch.piece.begin;
  rows_ = batch.piece.size();
}

void GlobalBatch::do_sum(std::span<double> sums, Terms terms) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  const std::size_t each = layout_.most_parts * sums.size();
  parts_.resize(ranks * each);
  const auto part = [&](std::size_t rank, std::size_t number) {
    return std::span(parts_).subspan(rank * each + number * sums.size(), sums.size());
  };
  const auto leaf = [&](std::uint64_t q, std::span<double> into) {
    std::fill(into.begin(), into.end(), 0.0);
    const std::uint64_t end = first_row_ + rows_;
    const std::uint64_t first = std::min<std::uint64_t>(q * layout_.leaf, end);
    const std::uint64_t last = std::min<std::uint64_t>((q + 1) * layout_.leaf, end);
    if (first < last) terms.add(first - first_row_, last - first, into);
  };
  const auto me = static_cast<std::size_t>(comm_.rank());
  for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
    nn::sum_subtree(layout_.mine[i], layout_.leaves, part(me, i), scratch_, leaf);
  }
  comm_.all_gather(std::span<double>(parts_));
  const auto gathered = [&](std::size_t index) {
    return part(layout_.from[index] % ranks, layout_.from[index] / ranks);
  };
  for (const TreeSum& sum : layout_.sums) {
    const auto left = gathered(sum.left);
    const auto right = gathered(sum.right);
    for (std::size_t i = 0; i < sums.size(); ++i) left[i] = left[i] + right[i];
  }
  std::copy_n(gathered(0).begin(), sums.size(), sums.begin());
}

}  // namespace lockstep::train
