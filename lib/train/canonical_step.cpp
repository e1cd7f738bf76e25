#include <algorithm>
#include <type_traits>

#include "lib/train/audit.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {
namespace {

/// The slice of the flat block that a rank updates: equal lengths, whole cache lines.
Slice slice_of(std::size_t block, const comm::Communicator& comm) {
  const std::size_t each = block / static_cast<std::size_t>(comm.size());
  const std::size_t first = each * static_cast<std::size_t>(comm.rank());
  return {first, first + each};
}

/// Rows that hold no example: zero in all that is gathered (data::Plan says why).
void clear(nn::Network<float>& network, nn::Rows rows) {
  network.for_each_exchanged(rows, [](std::span<float> v) { std::fill(v.begin(), v.end(), 0.0F); });
  const auto results = network.results(rows);
  std::fill(results.begin(), results.end(), nn::ExampleResult{});
}

class CanonicalStep final : public Step {
 public:
  CanonicalStep(nn::Network<float>& network, const optim::AdamOptions& options,
                comm::Communicator& comm, std::optional<std::uint64_t> audit_every)
      : network_(network),
        comm_(comm),
        slice_(slice_of(network.parameters().values().size(), comm)),
        adam_(slice_.size(), options),
        audit_(network, comm, audit_every) {}

  const char* name() const noexcept override { return "canonical"; }

  nn::Rows place(data::Range piece) const noexcept override { return {piece.begin, piece.size()}; }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    const nn::Rows mine = place(batch.piece);
    const nn::Rows all = {0, batch.summed_rows};
    Lap phase;
    clear(network_, {batch.gap().begin, batch.gap().size()});
    network_.forward(mine);
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    seconds.compute += phase.take();

    gather_results(network_, batch.block, comm_);
    const nn::Rows gathered = {0, batch.block * static_cast<std::size_t>(comm_.size())};
    network_.for_each_exchanged(gathered, [&](std::span<float> rows) { comm_.all_gather(rows); });
    seconds.reduce += phase.take();

    const std::uint64_t step = adam_.steps() + 1;
    if (audit_.due(step)) audit_.check_leaf(step, batch);
    network_.weight_gradients(all, batch.leaf, slice_);
    if (audit_.due(step)) audit_.check_gradients(step, batch, slice_);
    seconds.compute += phase.take();

    auto& parameters = network_.parameters();
    const bool finite = adam_.update(parameters.values().subspan(slice_.first, slice_.size()),
                                     parameters.gradients().subspan(slice_.first, slice_.size()),
                                     batch.global_examples);
    seconds.update += phase.take();

    comm_.all_gather(parameters.values());
    const bool all_finite = comm_.all_agree(finite);
    seconds.reduce += phase.take();
    return {nn::sum_over_leaves(network_.results(all), batch.leaf), all_finite};
  }

 private:
  nn::Network<float>& network_;
  comm::Communicator& comm_;
  Slice slice_;
  optim::Adam adam_;
  Audit audit_;
};

}  // namespace

std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network,
                                          const optim::AdamOptions& options,
                                          comm::Communicator& comm,
                                          std::optional<std::uint64_t> audit_every) {
  return std::make_unique<CanonicalStep>(network, options, comm, audit_every);
}

void gather_results(nn::Network<float>& network, std::size_t block, comm::Communicator& comm) {
  static_assert(std::is_standard_layout_v<nn::ExampleResult> &&
                sizeof(nn::ExampleResult) == 2 * sizeof(double));
  const auto results = network.results({0, block * static_cast<std::size_t>(comm.size())});
  comm.all_gather(std::span(reinterpret_cast<double*>(results.data()), 2 * results.size()));
}

}  // namespace lockstep::train
