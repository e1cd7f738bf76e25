// The canonical step on devices: partial_sums_step.cpp with the same messages, on device memory.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "lib/base/cuda/range.hpp"
#include "lib/numerics/leaf_tree.hpp"
#include "lib/train/cuda/device_steps.hpp"
#include "lib/train/cuda/device_update.hpp"
#include "lib/train/gathered_results.hpp"
#include "lib/train/leaf_layout.hpp"

namespace lockstep::train {
namespace {

class DeviceCanonicalStep final : public DeviceStep {
 public:
  DeviceCanonicalStep(const DeviceParts& parts, const CanonicalOptions& options)
      : DeviceStep(parts, options),
        block_(network_.values().size()),
        slice_(block_ / static_cast<std::size_t>(comm_.size())),
        update_(network_.values().subspan(slice_ * static_cast<std::size_t>(comm_.rank()), slice_),
                options.adam, stream_),
        results_(options.plan->largest_gathered(), comm_) {
    reserve(std::max<std::size_t>(1, sum_blocks(Exchange::partial_sums, *options.plan) / 2));
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    Lap phase;
    const std::size_t slot = batches_.take(batch, stream_);
    const Recorded& recorded = recorded_for(batch, slot);
    update_.begin(batch.global_examples);
    const cuda::Range range("step");
    recorded.compute[slot].enqueue(stream_);
    if (device_ == nullptr) return finish_alone(recorded, batch, seconds);
    computed_.record(stream_);
    computed_.synchronise();
    seconds.compute += phase.take();
    const auto results = gather(batch);
    exchange_sums(recorded.layout.most_parts);
    seconds.reduce += phase.take();
    recorded.update.enqueue(stream_);
    publish();
    seconds.update += phase.take();
    const bool finite = comm_.all_agree(update_.finite());
    seconds.reduce += phase.take();
    return {nn::sum_over_leaves(results, batch.leaf), finite};
  }

 private:
  /// A step's work for batches of one shape.
  struct Recorded {
    LeafLayout layout;
    std::size_t piece = 0;
    std::size_t gap = 0;
    std::unique_ptr<DeviceSums> sums;
    std::array<cuda::Graph, 2> compute;  // by the batch's slot
    cuda::Graph update;
  };

  static bool fits(const Recorded& recorded, const data::Batch& batch) {
    return recorded.layout.fits(batch) && recorded.piece == batch.piece.size() &&
           recorded.gap == batch.gap().size();
  }

  /// What the examples of all ranks added to the loss, once the own are there.
  std::span<const nn::ExampleResult> gather(const data::Batch& batch) {
    return results_.gather(batches_.results(batch.piece.size()), batch.block)
        .first(batch.summed_rows);
  }

  /// A rank without peers waits once.
  StepResult finish_alone(const Recorded& recorded, const data::Batch& batch,
                          PhaseSeconds& seconds) {
    Lap phase;
    recorded.update.enqueue(stream_);
    stream_.synchronise();
    seconds.compute += phase.take();
    return {nn::sum_over_leaves(gather(batch), batch.leaf), update_.finite()};
  }

  const Recorded& recorded_for(const data::Batch& batch, std::size_t slot) {
    auto known = std::find_if(recorded_.begin(), recorded_.end(),
                              [&](const auto& r) { return fits(*r, batch); });
    if (known == recorded_.end()) {
      constexpr std::size_t most_kept = 16;  // under FILE nearly every step has a shape of its own
      if (recorded_.size() == most_kept) recorded_.erase(recorded_.begin());
      recorded_.push_back(record(batch));
      known = recorded_.end() - 1;
    }
    Recorded& recorded = **known;
    if (!recorded.compute[slot]) {
      recorded.compute[slot] = cuda::Graph::record(stream_, [&] { compute(recorded, slot); });
    }
    return recorded;
  }

  std::unique_ptr<Recorded> record(const data::Batch& batch) {
    auto recorded = std::make_unique<Recorded>();
    recorded->layout = leaf_layout(batch, comm_);
    recorded->piece = batch.piece.size();
    recorded->gap = batch.gap().size();
    const LeafLayout& layout = recorded->layout;
    reserve(layout.most_parts);
    recorded->sums = std::make_unique<DeviceSums>(
        received(), offsets(layout), merges_of(layout.from.size(), layout.sums), stream_);
    recorded->update =
        cuda::Graph::record(stream_, [&] { update_.enqueue(*recorded->sums, stream_); });
    return recorded;
  }

  void compute(const Recorded& recorded, std::size_t slot) {
    const std::size_t summed = recorded.piece + recorded.gap;
    network_.clear({recorded.piece, recorded.gap}, stream_);
    batches_.forward(slot, recorded.piece, stream_);
    for (std::size_t i = network_.layers() - 1; i > 0; --i) {
      network_.backward_input(i, recorded.piece, stream_);
    }
    for (std::size_t part = 0; part < recorded.layout.mine.size(); ++part) {
      const nn::Rows rows = recorded.layout.rows_of(recorded.layout.mine[part], summed);
      const auto sums = own_.span().subspan(part * block_, block_);
      for (std::size_t i = 0; i < network_.layers(); ++i) {
        network_.weight_gradients(i, rows, recorded.layout.leaf, sums, stream_);
      }
    }
  }

  /// Each rank's slice of every rank's sums, in rounds; its own sums for a rank alone.
  std::span<float> received() const noexcept {
    return device_ == nullptr ? own_.span() : received_.span();
  }

  std::vector<std::size_t> offsets(const LeafLayout& layout) const {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    std::vector<std::size_t> offsets;
    offsets.reserve(layout.from.size());
    for (const std::size_t message : layout.from) {
      offsets.push_back(message / ranks * block_ + message % ranks * slice_);
    }
    return offsets;
  }

  /// Memory for `parts` sums of this rank. What was recorded before has lost its own.
  void reserve(std::size_t parts) {
    if (own_.size() >= parts * block_) return;
    recorded_.clear();
    own_ = cuda::DeviceBuffer<float>(parts * block_);
    cuda::clear(own_.span(), stream_);  // padding between tensors stays zero
    if (device_ != nullptr) received_ = cuda::DeviceBuffer<float>(parts * block_);
  }

  void exchange_sums(std::size_t rounds) {
    const cuda::Range range("exchange of sums");
    for (std::size_t round = 0; round < rounds; ++round) {
      device_->all_to_all(std::span<const float>(own_.span().subspan(round * block_, block_)),
                          received_.span().subspan(round * block_, block_));
    }
    received_all_.record(exchange_);
    received_all_.block(stream_);
  }

  void publish() {
    const cuda::Range range("update, gather of weights");
    updated_.record(stream_);
    updated_.block(exchange_);
    device_->all_gather(network_.values());
    device_->wait("the weights after step " + std::to_string(update_.steps()));
  }

  std::size_t block_;  // elements of all weights, and of a rank's slice of them
  std::size_t slice_;
  DeviceUpdate update_;
  GatheredResults results_;
  cuda::Event computed_;
  cuda::Event received_all_;
  cuda::Event updated_;
  cuda::DeviceBuffer<float> own_;       // this rank's sums, a block each
  cuda::DeviceBuffer<float> received_;  // this rank's slice of every rank's, a block a round
  std::vector<std::unique_ptr<Recorded>> recorded_;
};

}  // namespace

std::unique_ptr<Step> make_device_canonical_step(const DeviceParts& parts,
                                                 const CanonicalOptions& options) {
  return std::make_unique<DeviceCanonicalStep>(parts, options);
}

}  // namespace lockstep::train
