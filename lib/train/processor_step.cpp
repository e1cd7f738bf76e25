// Training steps on the processor: canonical, bitwise identical for any number of ranks, with one
// of two exchanges; and the baseline all-reduce.
#include <algorithm>

#include "lockstep/base/aligned.hpp"
#include "lockstep/train/canonical.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

/// The whole block, as one range.
std::vector<Range> whole_block(const nn::Network<float>& network) {
  return {{0, network.parameters().values().size()}};
}

/// Base of all: computes this rank's rows and updates its slice of the weights.
class ProcessorStep : public Step {
 public:
  std::span<const Range> slice() const noexcept final { return slice_; }
  optim::OptimizerState& optimizer() noexcept final { return optimizer_; }
  std::span<const Range> segments() const noexcept final { return segments_; }

  std::span<const nn::ExampleResult> results(const data::Batch& batch) final {
    return micro_batches_ ? micro_batches_->results(batch.piece.size())
                          : network_.results(rows(batch.piece));
  }

 protected:
  /// `segments`: see Step; each is cut into slices of equal lengths, of whole cache lines. Empty:
  /// this rank updates the whole block.
  ProcessorStep(nn::Network<float>& network, std::vector<Range> segments,
                const StepOptions& options, comm::Communicator& comm, Sentinel& sentinel)
      : Step(options, comm, sentinel,
             make_micro_batches(network, options.micro_batch, *options.plan)),
        network_(network),
        segments_(std::move(segments)),
        slice_(segments_.empty() ? whole_block(network)
                                 : ranges_in(segments_, static_cast<std::size_t>(comm.rank()),
                                             static_cast<std::size_t>(comm.size()))),
        optimizer_(elements_of(slice_), options.optimizer,
                   tensors_in(network.parameters().layout(), slice_)),
        rank_sums_(rank_sums(segments_.empty() ? nullptr : &comm, options.model)),
        global_(network, comm) {}

  /// `first_row`: row of the global batch that is row 0 of the network's buffers.
  void forward_and_backward(const data::Batch& batch, std::size_t first_row,
                            PhaseSeconds& seconds) {
    Lap phase;
    const Range mine = rows(batch.piece);
    global_.begin(batch);
    network_.forward(mine, nn::TrainingRows{steps() + 1, first_row});
    network_.loss(mine, targets_of(batch), true);
    seconds.forward += phase.take();
    network_.backward(mine);
  }

  /// Sets the rows of the batch without an example, behind this rank's, to zero.
  void clear_padding(const data::Batch& batch) {
    const Range mine = rows(batch.piece);
    network_.clear_exchanged({mine.end, mine.end + batch.padding().size()});
  }

  nn::Network<float>& network_;
  bool finite_ = true;  // this rank's last update

 private:
  void update(double weight) final {
    network_.end_training_pass();
    finite_ = optimizer_.update(network_.parameters().values(), gradient_sums(), weight, steps(),
                                rank_sums_);
  }

  const std::vector<Range> segments_;
  const std::vector<Range> slice_;
  optim::Optimizer optimizer_;
  optim::RankSums rank_sums_;
  GlobalBatch global_;
};

class ActivationsStep final : public ProcessorStep {
 public:
  ActivationsStep(nn::Network<float>& network, const StepOptions& options, comm::Communicator& comm,
                  Sentinel& sentinel)
      : ProcessorStep(
            network,
            segments_of(network.parameters().layout(), static_cast<std::size_t>(comm.size())),
            options, comm, sentinel),
        audit_(network, *options.plan, comm, options.audit_every),
        finite_on_(static_cast<std::size_t>(comm.size()), comm.memory()) {
    const auto gradients = network.parameters().gradients();
    for (const Range range : slice()) {
      slice_sums_.push_back({gradients.subspan(range.begin, range.size()), range.begin});
    }
    for (const Range segment : segments()) {
      published_.push_back(std::as_writable_bytes(
          network.parameters().values().subspan(segment.begin, segment.size())));
    }
    published_.push_back(std::as_writable_bytes(finite_on_.span()));
  }

  const char* name() const noexcept override { return "canonical, by activations"; }

  Range rows(Range piece) const noexcept override { return piece; }

  std::span<const optim::GradientSums> gradient_sums() override { return slice_sums_; }

 private:
  void compute(const data::Batch& batch, PhaseSeconds& seconds) override {
    clear_padding(batch);
    forward_and_backward(batch, 0, seconds);
  }

  void add_blocks(const data::Batch& batch, Blocks& blocks) override {
    const Range all = {0, batch.block * static_cast<std::size_t>(comm_.size())};
    network_.for_each_exchanged(
        all, [&](std::span<float> values) { blocks.push_back(std::as_writable_bytes(values)); });
    if (!audit_.due(steps() + 1)) return;
    for (const auto block : audit_.put_targets(batch)) blocks.push_back(block);
  }

  void reduce(const data::Batch& batch, PhaseSeconds& seconds) override {
    Lap phase;
    const std::uint64_t step = steps() + 1;
    if (audit_.due(step)) audit_.check_leaf(step, batch);
    for (const Range range : slice()) {
      network_.weight_gradients({0, batch.summed_rows}, batch.leaf, range);
    }
    if (audit_.due(step)) audit_.check_gradients(step, batch, segments());
    seconds.compute += phase.take();
  }

  /// Sends the slice and the flag of each rank in one collective.
  bool publish() override {
    finite_on_.data()[comm_.rank()] = finite_ ? 1 : 0;
    comm_.all_gather(published_);
    return std::all_of(finite_on_.span().begin(), finite_on_.span().end(),
                       [](std::uint64_t finite) { return finite != 0; });
  }

  Audit audit_;
  AlignedBuffer<std::uint64_t> finite_on_;       // each rank's last update
  std::vector<optim::GradientSums> slice_sums_;  // a range each
  Blocks published_;                             // the segments, and finite_on_
};

class PartialSumsStep final : public ProcessorStep {
 public:
  PartialSumsStep(nn::Network<float>& network, const StepOptions& options, comm::Communicator& comm,
                  Sentinel& sentinel)
      : ProcessorStep(network, whole_block(network), options, comm, sentinel) {
    reserve(sum_parts(Exchange::partial_sums, *options.plan));
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

  std::span<const optim::GradientSums> gradient_sums() override {
    slice_sum_ = {part(0), slice()[0].begin};
    return {&slice_sum_, 1};
  }

 private:
  void compute(const data::Batch& batch, PhaseSeconds& seconds) override {
    if (!layout_.fits(batch)) {
      layout_ = leaf_layout(batch, comm_);
      reserve(layout_.max_parts);
    }
    const std::size_t summed = batch.piece.size() + batch.padding().size();
    if (micro_batches_) {
      micro_batches_->begin(batch, steps() + 1);
    } else {
      clear_padding(batch);
      forward_and_backward(batch, batch.piece.begin, seconds);
    }
    for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
      const Range rows = layout_.rows_of(layout_.mine[i], summed);
      if (micro_batches_) {
        micro_batches_->sum(rows, own_[i].span(), seconds);
      } else {
        network_.weight_gradients(rows, batch.leaf, {0, block_size()}, own_[i].span());
      }
    }
  }

  void reduce(const data::Batch& /*batch*/, PhaseSeconds& seconds) override {
    Lap phase;
    for (std::size_t round = 0; comm_.size() > 1 && round < layout_.max_parts; ++round) {
      comm_.all_to_all(std::span<const float>(own_[round].span()), received_[round].span());
    }
    seconds.reduce += phase.take();
    sum_slice();
    seconds.update += phase.take();
  }

  /// Sends two messages, like a device: ranks with and without a device may train together.
  bool publish() override {
    comm_.all_gather(network_.parameters().values());
    return comm_.all_agree(finite_);
  }

  std::size_t block_size() { return network_.parameters().gradients().size(); }

  /// Room for this many parts on a rank. One rank exchanges nothing.
  void reserve(std::size_t parts) {
    while (own_.size() < parts) {
      own_.emplace_back(block_size(), comm_.memory());
      if (comm_.size() > 1) received_.emplace_back(block_size(), comm_.memory());
    }
  }

  /// This rank's slice of a part, as received from the rank that holds it.
  std::span<float> part(std::size_t index) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t message = layout_.from[index];
    const std::size_t length = slice()[0].size();
    auto& blocks = ranks == 1 ? own_ : received_;
    return blocks[message / ranks].span().subspan(message % ranks * length, length);
  }

  /// Sums the tree into part 0, in pieces that fit in the cache.
  void sum_slice() {
    constexpr std::size_t piece = 4096;
    const std::size_t length = slice()[0].size();
    for (std::size_t first = 0; first < length; first += piece) {
      const std::size_t count = std::min(piece, length - first);
      for (const TreeSum& sum : layout_.sums) {
        float* const left = part(sum.left).data() + first;
        const float* const right = part(sum.right).data() + first;
        for (std::size_t i = 0; i < count; ++i) left[i] += right[i];
      }
    }
  }

  LeafLayout layout_;
  optim::GradientSums slice_sum_;
  std::vector<AlignedBuffer<float>> own_;       // this rank's sums, a part each
  std::vector<AlignedBuffer<float>> received_;  // this rank's slice of every rank's, a round each;
                                                // empty on one rank
};

/// The baseline: every rank updates all weights.
class AllReduceStep final : public ProcessorStep {
 public:
  AllReduceStep(nn::Network<float>& network, const StepOptions& options, comm::Communicator& comm,
                Sentinel& sentinel)
      : ProcessorStep(network, comm.size() == 1 ? whole_block(network) : std::vector<Range>{},
                      options, comm, sentinel),
        all_sums_{network.parameters().gradients()} {}

  const char* name() const noexcept override { return "allreduce"; }
  std::span<const optim::GradientSums> gradient_sums() override { return {&all_sums_, 1}; }

 private:
  void compute(const data::Batch& batch, PhaseSeconds& seconds) override {
    const Range mine = rows(batch.piece);
    if (micro_batches_) {
      micro_batches_->begin(batch, steps() + 1);
      return micro_batches_->sum(mine, network_.parameters().gradients(), seconds);
    }
    forward_and_backward(batch, batch.piece.begin, seconds);
    network_.weight_gradients(mine, batch.leaf, slice()[0]);
  }

  void reduce(const data::Batch& /*batch*/, PhaseSeconds& seconds) override {
    Lap phase;
    comm_.all_reduce(network_.parameters().gradients());
    seconds.reduce += phase.take();
  }

  bool publish() override { return comm_.all_agree(finite_); }

  const optim::GradientSums all_sums_;
};

}  // namespace

std::unique_ptr<Step> make_allreduce_step(nn::Network<float>& network, const StepOptions& options,
                                          comm::Communicator& comm, Sentinel& sentinel) {
  return std::make_unique<AllReduceStep>(network, options, comm, sentinel);
}

std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network, Exchange exchange,
                                          const StepOptions& options, comm::Communicator& comm,
                                          Sentinel& sentinel) {
  if (exchange == Exchange::partial_sums) {
    return std::make_unique<PartialSumsStep>(network, options, comm, sentinel);
  }
  return std::make_unique<ActivationsStep>(network, options, comm, sentinel);
}

}  // namespace lockstep::train
