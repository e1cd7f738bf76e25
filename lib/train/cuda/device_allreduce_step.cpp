// The textbook's step on devices: buckets of gradients are reduced while those below are computed.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "lib/base/cuda/range.hpp"
#include "lib/train/cuda/device_steps.hpp"
#include "lib/train/cuda/device_update.hpp"
#include "lib/train/gathered_results.hpp"

namespace lockstep::train {
namespace {

/// Floats that are worth a message of their own.
constexpr std::size_t least_bucket = std::size_t{1} << 20;

/// Layers [first, last), and where their gradients stand.
struct Bucket {
  std::size_t first = 0;
  std::size_t last = 0;
  Slice slice;
};

/// From the last layer down, as backward goes.
std::vector<Bucket> buckets_of(const nn::DeviceNetwork& network) {
  std::vector<Bucket> buckets;
  for (std::size_t i = network.layers(); i-- > 0;) {
    const Slice slice = network.slice(i);
    if (buckets.empty() || buckets.back().slice.size() >= least_bucket) {
      buckets.push_back({i, i + 1, slice});
    } else {
      buckets.back().first = i;
      buckets.back().slice.first = slice.first;
    }
  }
  return buckets;
}

class DeviceAllReduceStep final : public DeviceStep {
 public:
  DeviceAllReduceStep(const DeviceParts& parts, const CanonicalOptions& options)
      : DeviceStep(parts, options),
        buckets_(buckets_of(network_)),
        gradients_(network_.values().size()),
        sums_(gradients_.span(), stream_),
        update_(network_.values(), options.adam, stream_) {
    cuda::clear(gradients_.span(), stream_);  // padding between tensors stays zero
    update_graph_ = cuda::Graph::record(stream_, [&] { update_.enqueue(sums_, stream_); });
  }

  const char* name() const noexcept override { return "allreduce"; }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    Lap phase;
    const std::size_t rows = batch.piece.size();
    const std::size_t slot = batches_.take(batch, stream_);
    update_.begin(batch.global_examples);
    const auto& graphs = graphs_for({slot, rows, batch.leaf});
    {
      const cuda::Range range("forward, backward, reduce");
      for (std::size_t b = 0; b < buckets_.size(); ++b) {
        graphs[b].enqueue(stream_);
        reduce(buckets_[b].slice);
      }
      if (device_ != nullptr) {
        reduced_.record(exchange_);
        reduced_.block(stream_);
      }
      update_graph_.enqueue(stream_);
    }
    wait();
    seconds.compute += phase.take();
    const nn::Tally tally =
        sum_over_ranks(nn::sum_over_leaves(batches_.results(rows), batch.leaf), comm_);
    const bool finite = comm_.all_agree(update_.finite());  // a faulty rank must not leave alone
    seconds.reduce += phase.take();
    return {tally, finite};
  }

 private:
  using Shape = std::array<std::size_t, 3>;  // slot, rows, leaf

  /// One for each bucket.
  const std::vector<cuda::Graph>& graphs_for(const Shape& shape) {
    constexpr std::size_t most_kept = 16;
    const auto known = graphs_.find(shape);
    if (known != graphs_.end()) return known->second;
    if (graphs_.size() == most_kept) graphs_.clear();
    std::vector<cuda::Graph> graphs;
    graphs.reserve(buckets_.size());
    for (const Bucket& bucket : buckets_) {
      graphs.push_back(cuda::Graph::record(stream_, [&] { compute(bucket, shape); }));
    }
    return graphs_.emplace(shape, std::move(graphs)).first->second;
  }

  void compute(const Bucket& bucket, const Shape& shape) {
    const auto [slot, rows, leaf] = shape;
    if (bucket.last == network_.layers()) batches_.forward(slot, rows, stream_);
    for (std::size_t i = bucket.last; i-- > bucket.first;) {
      if (i + 1 < network_.layers()) network_.backward_input(i + 1, rows, stream_);
      network_.weight_gradients(i, {0, rows}, leaf, gradients_.span(), stream_);
    }
  }

  /// Enqueues the sum over all ranks, beside what is computed next.
  void reduce(Slice slice) {
    if (device_ == nullptr) return;
    computed_.record(stream_);
    computed_.block(exchange_);
    device_->all_reduce(gradients_.span().subspan(slice.first, slice.size()));
  }

  void wait() {
    if (device_ != nullptr) {
      device_->wait("the gradients of step " + std::to_string(update_.steps()));
    }
    stream_.synchronise();
  }

  std::vector<Bucket> buckets_;
  cuda::DeviceBuffer<float> gradients_;
  DeviceSums sums_;
  DeviceUpdate update_;
  cuda::Graph update_graph_;
  cuda::Event computed_;
  cuda::Event reduced_;
  std::map<Shape, std::vector<cuda::Graph>> graphs_;
};

}  // namespace

std::unique_ptr<Step> make_device_allreduce_step(const DeviceParts& parts,
                                                 const CanonicalOptions& options) {
  return std::make_unique<DeviceAllReduceStep>(parts, options);
}

}  // namespace lockstep::train
