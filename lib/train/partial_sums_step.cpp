// The canonical step of ranks that show each other sums over their own leaves.
#include <algorithm>
#include <cassert>

#include "lib/base/aligned.hpp"
#include "lib/train/canonical_steps.hpp"
#include "lib/train/gathered_results.hpp"
#include "lib/train/global_batch.hpp"
#include "lib/train/slice_update.hpp"

namespace lockstep::train {
namespace {

class PartialSumsStep final : public Step {
 public:
  PartialSumsStep(nn::Network<float>& network, const CanonicalOptions& options,
                  comm::Communicator& comm)
      : network_(network),
        comm_(comm),
        update_(network, options.adam, comm),
        global_(network, comm),
        results_(options.plan->largest_gathered(), comm) {
    reserve(sum_blocks(Exchange::partial_sums, *options.plan) / 2);
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

  Matrix<float> inputs(data::Range piece) override { return network_.inputs(place(piece)); }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    const nn::Rows mine = place(batch.piece);
    const std::size_t summed = batch.piece.size() + batch.gap().size();
    Lap phase;
    if (!layout_.fits(batch)) lay_out(batch);
    global_.begin(batch);
    clear(network_, {mine.count, batch.gap().size()});
    network_.forward(mine, nn::TrainingRows{update_.steps() + 1, batch.piece.begin});
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
      network_.weight_gradients(layout_.rows_of(layout_.mine[i], summed), batch.leaf, whole(),
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
  static nn::Rows place(data::Range piece) noexcept { return {0, piece.size()}; }

  Slice whole() { return {0, network_.parameters().gradients().size()}; }

  void lay_out(const data::Batch& batch) {
    layout_ = leaf_layout(batch, comm_);
    reserve(layout_.most_parts);
  }

  void reserve(std::size_t parts) {
    while (own_.size() < parts) {
      own_.emplace_back(whole().size(), comm_.memory());
      received_.emplace_back(whole().size(), comm_.memory());
    }
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
  GlobalBatch global_;
  GatheredResults results_;
  LeafLayout layout_;
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
