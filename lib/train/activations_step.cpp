// The canonical step of ranks that show each other activations and their gradients.
#include <algorithm>

#include "lib/train/audit.hpp"
#include "lib/train/canonical_steps.hpp"
#include "lib/train/gathered_results.hpp"
#include "lib/train/global_batch.hpp"
#include "lib/train/slice_update.hpp"

namespace lockstep::train {
namespace {

class ActivationsStep final : public Step {
 public:
  ActivationsStep(nn::Network<float>& network, const CanonicalOptions& options,
                  comm::Communicator& comm)
      : network_(network),
        comm_(comm),
        update_(network, options.adam, comm),
        global_(network, comm),
        results_(options.plan->largest_gathered(), comm),
        audit_(network, comm, options.audit_every) {}

  const char* name() const noexcept override { return "canonical, by activations"; }

  Matrix<float> inputs(data::Range piece) override { return network_.inputs(place(piece)); }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    const nn::Rows mine = place(batch.piece);
    Lap phase;
    clear(network_, {batch.gap().begin, batch.gap().size()});
    global_.begin(batch);
    network_.forward(mine, nn::TrainingRows{update_.steps() + 1, 0});
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    seconds.compute += phase.take();

    const auto results = results_.gather(network_.results(mine), batch.block);
    const nn::Rows gathered = {0, batch.block * static_cast<std::size_t>(comm_.size())};
    network_.for_each_exchanged(gathered, [&](std::span<float> rows) { comm_.all_gather(rows); });
    seconds.reduce += phase.take();

    const std::uint64_t step = update_.steps() + 1;
    const Slice slice = update_.slice();
    if (audit_.due(step)) audit_.check_leaf(step, batch);
    network_.weight_gradients({0, batch.summed_rows}, batch.leaf, slice);
    if (audit_.due(step)) audit_.check_gradients(step, batch, slice);
    seconds.compute += phase.take();

    const auto sums = network_.parameters().gradients().subspan(slice.first, slice.size());
    const bool finite = update_.run(sums, batch.global_examples, seconds);
    return {nn::sum_over_leaves(results.first(batch.summed_rows), batch.leaf), finite};
  }

 private:
  static nn::Rows place(data::Range piece) noexcept { return {piece.begin, piece.size()}; }

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  SliceUpdate update_;
  GlobalBatch global_;
  GatheredResults results_;
  Audit audit_;
};

}  // namespace

std::unique_ptr<Step> make_activations_step(nn::Network<float>& network,
                                            const CanonicalOptions& options,
                                            comm::Communicator& comm) {
  return std::make_unique<ActivationsStep>(network, options, comm);
}

}  // namespace lockstep::train
