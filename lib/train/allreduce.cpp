#include "lib/train/canonical.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {
namespace {

class AllReduceStep final : public Step {
 public:
  AllReduceStep(nn::Network<float>& network, const optim::AdamOptions& options,
                comm::Communicator& comm)
      : network_(network),
        adam_(network.parameters().values().size(), options),
        comm_(comm),
        global_(network, comm) {}

  const char* name() const noexcept override { return "allreduce"; }

  Matrix<float> inputs(Range piece) override { return network_.inputs(place(piece)); }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    auto& parameters = network_.parameters();
    const nn::Rows mine = place(batch.piece);
    Lap phase;
    global_.begin(batch);
    network_.forward(mine, nn::TrainingRows{adam_.steps() + 1, batch.piece.begin});
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    network_.weight_gradients(mine, batch.leaf, {0, parameters.values().size()});
    seconds.compute += phase.take();

    const nn::Tally tally =
        sum_over_ranks(nn::sum_over_leaves(network_.results(mine), batch.leaf), comm_);
    comm_.all_reduce(parameters.gradients());
    seconds.reduce += phase.take();

    const bool finite =
        adam_.update(parameters.values(), parameters.gradients(), batch.global_examples);
    seconds.update += phase.take();
    const bool all_finite = comm_.all_agree(finite);  // a faulty rank must not leave alone
    seconds.reduce += phase.take();
    return {tally, all_finite};
  }

 private:
  static nn::Rows place(Range piece) noexcept { return {0, piece.size()}; }

  nn::Network<float>& network_;
  optim::Adam adam_;
  comm::Communicator& comm_;
  GlobalBatch global_;
};

}  // namespace

std::unique_ptr<Step> make_allreduce_step(nn::Network<float>& network,
                                          const optim::AdamOptions& options,
                                          comm::Communicator& comm) {
  return std::make_unique<AllReduceStep>(network, options, comm);
}

}  // namespace lockstep::train
