// The canonical step of ranks that show each other sums over their own leaves.
#include <algorithm>
#include <cassert>

#include "lib/base/aligned.hpp"
#include "lib/numerics/leaf_tree.hpp"
#include "lib/train/canonical_steps.hpp"
#include "lib/train/gathered_results.hpp"
#include "lib/train/slice_update.hpp"

namespace lockstep::train {
namespace {

/// A step's leaves as each rank's parts of the tree, and how they are summed.
struct Layout {
  std::uint64_t leaf = 0;
  std::uint64_t block = 0;
  std::uint64_t summed_rows = 0;

  std::vector<Subtree> mine;
  std::uint64_t first_leaf = 0;   // of this rank
  std::size_t most_parts = 0;     // of any rank
  std::vector<std::size_t> from;  // part -> the message, a round and a rank, that brings it
  std::vector<TreeSum> sums;      // of parts of all ranks, in order

  bool fits(const data::Batch& batch) const noexcept {
    return leaf == batch.leaf && block == batch.block && summed_rows == batch.summed_rows;
  }
};

std::uint64_t leaf_at(std::uint64_t row, std::uint64_t leaf) { return (row + leaf - 1) / leaf; }

Layout layout_of(const data::Batch& batch, const comm::Communicator& comm) {
  Layout layout{batch.leaf, batch.block, batch.summed_rows, {}, 0, 0, {}, {}};
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::uint64_t leaves = leaf_at(batch.summed_rows, batch.leaf);
  std::vector<Subtree> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t begin = leaf_at(rank * batch.block, batch.leaf);
    const std::uint64_t end = leaf_at((rank + 1) * batch.block, batch.leaf);
    const auto parts = aligned_subtrees(begin, end, leaves);
    for (std::size_t i = 0; i < parts.size(); ++i) layout.from.push_back(i * ranks + rank);
    all.insert(all.end(), parts.begin(), parts.end());
    layout.most_parts = std::max(layout.most_parts, parts.size());
    if (static_cast<int>(rank) != comm.rank()) continue;
    layout.mine = parts;
    layout.first_leaf = begin;
  }
  layout.sums = sums_of(all);
  return layout;
}

class PartialSumsStep final : public Step {
 public:
  PartialSumsStep(nn::Network<float>& network, const CanonicalOptions& options,
                  comm::Communicator& comm)
      : network_(network),
        comm_(comm),
        update_(network, options.adam, comm),
        results_(options.plan->largest_gathered(), comm) {
    reserve(sum_blocks(Exchange::partial_sums, *options.plan) / 2);
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

  nn::Rows place(data::Range piece) const noexcept override { return {0, piece.size()}; }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    const nn::Rows mine = place(batch.piece);
    const nn::Rows summed = {0, batch.piece.size() + batch.gap().size()};
    Lap phase;
    if (!layout_.fits(batch)) lay_out(batch);
    clear(network_, {mine.count, batch.gap().size()});
    network_.forward(mine, nn::TrainingRows{update_.steps() + 1, batch.piece.begin});
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
      network_.weight_gradients(rows_of(layout_.mine[i], summed), batch.leaf, whole(),
                                own_[i].span());
    }
    seconds.compute += phase.take();

    const auto results = results_.gather(network_.results(mine), batch.block);
    for (std::size_t round = 0; round < layout_.most_parts; ++round) {
      comm_.all_to_all(std::span<const float>(own_[round].span()), received_[round].span());
    }
    seconds.reduce += phase.take();
    sum_slice();
    seconds.update += phase.take();
    const bool finite = update_.run(part(0), batch.global_examples, seconds);
    return {nn::sum_over_leaves(results.first(batch.summed_rows), batch.leaf), finite};
  }

 private:
  Slice whole() { return {0, network_.parameters().gradients().size()}; }

  void lay_out(const data::Batch& batch) {
    layout_ = layout_of(batch, comm_);
    reserve(layout_.most_parts);
  }

  void reserve(std::size_t parts) {
    while (own_.size() < parts) {
      own_.emplace_back(whole().size(), comm_.memory());
      received_.emplace_back(whole().size(), comm_.memory());
    }
  }

  /// A subtree's rows among those of this rank; the last leaf may be short.
  nn::Rows rows_of(const Subtree& tree, nn::Rows summed) const {
    const std::size_t first = (tree.first - layout_.first_leaf) * layout_.leaf;
    return {first, std::min<std::size_t>(tree.size * layout_.leaf, summed.count - first)};
  }

  /// This rank's slice of a part, as its rank sent it.
  std::span<float> part(std::size_t index) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t length = update_.slice().size();
    const std::size_t message = layout_.from[index];
    return received_[message / ranks].span().subspan(message % ranks * length, length);
  }

  /// Sums the tree into part 0, a piece that stays in the cache at a time.
  void sum_slice() {
    constexpr std::size_t piece = 4096;
    const std::size_t length = update_.slice().size();
    for (std::size_t first = 0; first < length; first += piece) {
      const std::size_t count = std::min(piece, length - first);
      for (const TreeSum& sum : layout_.sums) {
        float* const left = part(sum.left).data() + first;
        const float* const right = part(sum.right).data() + first;
        for (std::size_t i = 0; i < count; ++i) left[i] += right[i];
      }
    }
  }

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  SliceUpdate update_;
  GatheredResults results_;
  Layout layout_;
  std::vector<AlignedBuffer<float>> own_;       // this rank's sums, a part each
  std::vector<AlignedBuffer<float>> received_;  // this rank's slice of every rank's, a round each
};

}  // namespace

std::unique_ptr<Step> make_partial_sums_step(nn::Network<float>& network,
                                             const CanonicalOptions& options,
                                             comm::Communicator& comm) {
  return std::make_unique<PartialSumsStep>(network, options, comm);
}

}  // namespace lockstep::train
