// The baseline step: gradients are summed by the all-reduce of the transport, so that results
// depend on the number of ranks, unlike those of canonical.cpp.
#include "lockstep/train/canonical.hpp"
#include "lockstep/train/micro_batches.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

class AllReduceStep final : public Step {
 public:
  AllReduceStep(nn::Network<float>& network, const StepOptions& options, comm::Communicator& comm,
                Sentinel& sentinel)
      : Step(options, comm, sentinel,
             make_micro_batches(network, options.micro_batch, *options.plan)),
        network_(network),
        all_{0, network.parameters().values().size()},
        sums_of_all_{network.parameters().gradients()},
        optimizer_(network.parameters().values().size(), options.optimizer,
                   tensors_in(network.parameters().layout(), std::span(&all_, 1))),
        sums_(rank_sums(nullptr, options.model)),
        global_(network, comm) {}

  const char* name() const noexcept override { return "allreduce"; }
  std::span<const Range> slice() const noexcept override { return {&all_, 1}; }
  std::span<const Range> segments() const noexcept override {
    return {&all_, comm_.size() == 1 ? 1U : 0U};
  }
  optim::OptimizerState& optimizer() noexcept override { return optimizer_; }
  std::optional<double> gradient_norm() const noexcept override {
    return optimizer_.gradient_norm();
  }

  std::span<const nn::ExampleResult> results(const data::Batch& batch) override {
    return micro_batches_ ? micro_batches_->results(batch.piece.size())
                          : network_.results(rows(batch.piece));
  }
  std::span<const optim::GradientSums> gradient_sums() override { return {&sums_of_all_, 1}; }

 private:
  void compute(const data::Batch& batch, PhaseSeconds& seconds) override {
    const Range mine = rows(batch.piece);
    if (micro_batches_) {
      micro_batches_->begin(batch, steps() + 1);
      return micro_batches_->sum(mine, network_.parameters().gradients(), seconds);
    }
    Lap phase;
    global_.begin(batch);
    network_.forward(mine, nn::TrainingRows{steps() + 1, batch.piece.begin});
    network_.loss(mine, targets_of(batch), true);
    seconds.forward += phase.take();
    network_.backward(mine);
    network_.weight_gradients(mine, batch.leaf, {0, network_.parameters().values().size()});
  }

  void reduce(const data::Batch& /*batch*/, PhaseSeconds& seconds) override {
    Lap phase;
    comm_.all_reduce(network_.parameters().gradients());
    seconds.reduce += phase.take();
  }

  void update(double weight) override {
    network_.end_training_pass();
    auto& parameters = network_.parameters();
    finite_ = optimizer_.update(parameters.values(), gradient_sums(), weight, steps(), sums_);
  }

  bool publish() override { return comm_.all_agree(finite_); }

  nn::Network<float>& network_;
  const Range all_;
  const optim::GradientSums sums_of_all_;
  optim::Optimizer optimizer_;
  optim::RankSums sums_;
  GlobalBatch global_;
  bool finite_ = true;
};

}  // namespace

std::unique_ptr<Step> make_allreduce_step(nn::Network<float>& network, const StepOptions& options,
                                          comm::Communicator& comm, Sentinel& sentinel) {
  return std::make_unique<AllReduceStep>(network, options, comm, sentinel);
}

}  // namespace lockstep::train
