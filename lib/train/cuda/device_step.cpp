#include "lockstep/train/cuda/device_step.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/numerics/cuda/elementwise.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/train/canonical.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {
namespace {

/// The position of `part` in `whole`.
Range range_of(std::span<const float> part, std::span<const float> whole) {
  const auto begin = static_cast<std::size_t>(part.data() - whole.data());
  return {begin, begin + part.size()};
}

/// Base of both device steps: the update on the device, and its finite flag.
class DeviceStep : public Step {
 public:
  std::span<const Range> slice() const noexcept final { return {&slice_, 1}; }
  std::span<const Range> segments() const noexcept final {
    if (slice_ == all_ && comm_.size() > 1) return {};
    return {&all_, 1};
  }
  optim::OptimizerState& optimizer() noexcept final { return update_; }

  std::span<const nn::ExampleResult> results(const data::Batch& batch) final {
    return batches_.results(batch.piece.size());
  }

 protected:
  /// `values`: the weights that this rank updates.
  DeviceStep(const DeviceParts& parts, const StepOptions& options, Sentinel& sentinel,
             std::span<float> values)
      : Step(options, parts.host, sentinel),
        network_(parts.network),
        batches_(parts.batches),
        device_(parts.device),
        stream_(parts.compute),
        exchange_(parts.exchange),
        all_{0, network_.values().size()},
        slice_(range_of(values, network_.values())),
        update_(values, options.optimizer,
                tensors_in(network_.host().parameters().layout(), std::span(&slice_, 1)), stream_) {
  }

  /// True if the sums are finite. Blocks.
  bool check(const DeviceSums& sums, double weight) {
    update_.enqueue_check(sums, weight);
    stream_.synchronise();
    return update_.finite();
  }

  /// True if the update cannot be enqueued before the results of all ranks are known. A rank
  /// without examples does not know whether those of others have weights.
  bool must_wait(const data::Batch& batch) const {
    return skips() || update_.needs_norms() || batch.piece.empty() ||
           network_.host().is_weighted(targets_of(batch));
  }

  /// Enqueues the update with `graph`, which recorded it, or without where it needs norms.
  /// Collective over the ranks of `ranks` if it does.
  void run_update(const DeviceSums& sums, const cuda::Graph& graph, double weight,
                  const optim::RankSums& ranks) {
    if (update_.needs_norms()) return update_.run(sums, weight, steps(), ranks);
    update_.begin(weight, steps());
    graph.enqueue(stream_);
  }

  nn::DeviceNetwork& network_;
  DeviceBatches& batches_;
  comm::DeviceCommunicator* device_;
  const cuda::Stream& stream_;
  const cuda::Stream& exchange_;
  const Range all_;
  const Range slice_;
  DeviceUpdate update_;
};

/// This rank's slice of the weights.
std::span<float> slice_of(const DeviceParts& parts) {
  const auto values = parts.network.values();
  const std::size_t length = values.size() / static_cast<std::size_t>(parts.host.size());
  return values.subspan(length * static_cast<std::size_t>(parts.host.rank()), length);
}

class DeviceCanonicalStep final : public DeviceStep {
 public:
  DeviceCanonicalStep(const DeviceParts& parts, const StepOptions& options, Sentinel& sentinel)
      : DeviceStep(parts, options, sentinel, slice_of(parts)),
        ranks_(rank_sums(&comm_, options.model)),
        block_(network_.values().size()) {
    reserve(std::max<std::size_t>(1, sum_parts(Exchange::partial_sums, *options.plan)));
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

 private:
  /// With one rank it also enqueues the update, unless that must wait, and synchronises once.
  void compute(const data::Batch& batch, PhaseSeconds& /*seconds*/) override {
    const cuda::TraceRange range("forward, backward");
    const std::size_t slot = batches_.take(batch, stream_);
    current_ = &recorded_for(batch);
    is_updated_ = device_ == nullptr && !must_wait(batch);
    if (is_updated_) update_.begin(static_cast<double>(batch.global_examples), steps());
    cuda::Graph& graph = (is_updated_ ? current_->with_update : current_->compute)[slot];
    if (!graph) {
      graph = cuda::Graph::record(stream_, [&] {
        compute(*current_, slot);
        if (is_updated_) update_.enqueue(*current_->sums);
      });
    }
    graph.enqueue(stream_);
    stream_.synchronise();
  }

  void reduce(const data::Batch& /*batch*/, PhaseSeconds& seconds) override {
    if (device_ == nullptr) return;
    Lap phase;
    exchange_sums(current_->layout.max_parts);
    // Else publish() waits, with the limit that a wait for the compute stream does not have.
    if (skips() || update_.needs_norms()) {
      device_->wait("the sums of step " + std::to_string(steps() + 1));
    }
    seconds.reduce += phase.take();
  }

  bool has_finite_gradients(double weight) override { return check(*current_->sums, weight); }

  void update(double weight) override {
    if (!is_updated_) run_update(*current_->sums, current_->update, weight, ranks_);
  }

  bool publish() override {
    if (device_ == nullptr) {
      if (!is_updated_) stream_.synchronise();
      return update_.finite();
    }
    const cuda::TraceRange range("update, gather of weights");
    updated_.record(stream_);
    updated_.block(exchange_);
    device_->all_gather(network_.values());
    device_->wait("the weights after step " + std::to_string(steps() + 1));
    return comm_.all_agree(update_.finite());
  }

  /// The recorded graphs of a step for batches of one shape.
  struct Recorded {
    LeafLayout layout;
    std::size_t piece = 0;
    std::size_t padding = 0;
    std::unique_ptr<DeviceSums> sums;
    std::array<cuda::Graph, 2> compute;      // by the batch's slot
    std::array<cuda::Graph, 2> with_update;  // likewise
    cuda::Graph update;
  };

  static bool fits(const Recorded& recorded, const data::Batch& batch) {
    return recorded.layout.fits(batch) && recorded.piece == batch.piece.size() &&
           recorded.padding == batch.padding().size();
  }

  Recorded& recorded_for(const data::Batch& batch) {
    auto known = std::find_if(recorded_.begin(), recorded_.end(),
                              [&](const auto& r) { return fits(*r, batch); });
    if (known == recorded_.end()) {
      constexpr std::size_t max_kept = 16;  // with FILE nearly every step has a different shape
      if (recorded_.size() == max_kept) recorded_.erase(recorded_.begin());
      recorded_.push_back(record(batch));
      known = recorded_.end() - 1;
    }
    return **known;
  }

  std::unique_ptr<Recorded> record(const data::Batch& batch) {
    auto recorded = std::make_unique<Recorded>();
    recorded->layout = leaf_layout(batch, comm_);
    recorded->piece = batch.piece.size();
    recorded->padding = batch.padding().size();
    const LeafLayout& layout = recorded->layout;
    reserve(layout.max_parts);
    recorded->sums = std::make_unique<DeviceSums>(
        received(), offsets(layout), merges_of(layout.from.size(), layout.sums), stream_);
    if (update_.needs_norms()) return recorded;
    recorded->update = cuda::Graph::record(stream_, [&] { update_.enqueue(*recorded->sums); });
    return recorded;
  }

  void compute(const Recorded& recorded, std::size_t slot) {
    const std::size_t summed = recorded.piece + recorded.padding;
    network_.clear({recorded.piece, recorded.piece + recorded.padding}, stream_);
    batches_.forward(slot, recorded.piece, stream_);
    for (std::size_t i = network_.layers(); i-- > 0;) {
      for (std::size_t part = 0; part < recorded.layout.mine.size(); ++part) {
        const Range rows = recorded.layout.rows_of(recorded.layout.mine[part], summed);
        const auto sums = own_.span().subspan(part * block_, block_);
        network_.weight_gradients(i, rows, recorded.layout.leaf, sums, stream_);
      }
      if (i > network_.first_trained()) network_.backward_input(i, recorded.piece, stream_);
    }
    batches_.copy_results(recorded.piece, stream_);
    network_.await_gradients(stream_);
  }

  /// This rank's slice of every rank's sums, in rounds; its own sums with one rank.
  std::span<float> received() const noexcept {
    return device_ == nullptr ? own_.span() : received_.span();
  }

  std::vector<std::size_t> offsets(const LeafLayout& layout) const {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    std::vector<std::size_t> offsets;
    offsets.reserve(layout.from.size());
    for (const std::size_t message : layout.from) {
      offsets.push_back(message / ranks * block_ + message % ranks * slice_.size());
    }
    return offsets;
  }

  /// Allocates memory for `parts` sums of this rank. Invalidates graphs recorded before.
  void reserve(std::size_t parts) {
    if (own_.size() >= parts * block_) return;
    recorded_.clear();
    own_ = {};  // before the larger ones are allocated
    received_ = {};
    own_ = cuda::DeviceBuffer<float>(parts * block_);
    cuda::clear(own_.span(), stream_);  // padding between tensors stays zero
    if (device_ != nullptr) received_ = cuda::DeviceBuffer<float>(parts * block_);
  }

  void exchange_sums(std::size_t rounds) {
    const cuda::TraceRange range("exchange of sums");
    for (std::size_t round = 0; round < rounds; ++round) {
      device_->all_to_all(std::span<const float>(own_.span().subspan(round * block_, block_)),
                          received_.span().subspan(round * block_, block_));
    }
    received_all_.record(exchange_);
    received_all_.block(stream_);
  }

  optim::RankSums ranks_;
  bool is_updated_ = false;  // by compute()
  std::size_t block_;        // elements of all weights
  cuda::Event received_all_;
  cuda::Event updated_;
  cuda::DeviceBuffer<float> own_;       // this rank's sums, a block each
  cuda::DeviceBuffer<float> received_;  // this rank's slice of every rank's, a block a round
  std::vector<std::unique_ptr<Recorded>> recorded_;
  Recorded* current_ = nullptr;  // of this step
};

}  // namespace

std::unique_ptr<Step> make_device_canonical_step(const DeviceParts& parts,
                                                 const StepOptions& options, Sentinel& sentinel) {
  return std::make_unique<DeviceCanonicalStep>(parts, options, sentinel);
}

namespace {

/// Minimum number of floats in a bucket, except the last.
constexpr std::size_t min_bucket = std::size_t{1} << 20;

/// Layers [first, last) and the position of their gradients.
struct Bucket {
  std::size_t first = 0;
  std::size_t last = 0;
  Range slice;
};

/// Buckets from the last layer to the first, in the order of backward.
std::vector<Bucket> buckets_of(const nn::DeviceNetwork& network) {
  std::vector<Bucket> buckets;
  for (std::size_t i = network.layers(); i-- > 0;) {
    const Range slice = network.slice(i);
    if (buckets.empty() || buckets.back().slice.size() >= min_bucket) {
      buckets.push_back({i, i + 1, slice});
    } else {
      buckets.back().first = i;
      buckets.back().slice.begin = slice.begin;
    }
  }
  return buckets;
}

class DeviceAllReduceStep final : public DeviceStep {
 public:
  DeviceAllReduceStep(const DeviceParts& parts, const StepOptions& options, Sentinel& sentinel)
      : DeviceStep(parts, options, sentinel, parts.network.values()),
        buckets_(buckets_of(network_)),
        gradients_(network_.values().size()),
        sums_(gradients_.span(), stream_) {
    cuda::clear(gradients_.span(), stream_);  // padding between tensors stays zero
    if (update_.needs_norms()) return;
    update_graph_ = cuda::Graph::record(stream_, [&] { update_.enqueue(sums_); });
  }

  const char* name() const noexcept override { return "allreduce"; }

 private:
  /// Gradient buckets are reduced concurrently with backward, and the update follows on the device,
  /// so the whole step is enqueued here, unless the update must wait.
  void compute(const data::Batch& batch, PhaseSeconds& /*seconds*/) override {
    const cuda::TraceRange range("forward, backward, reduce, update");
    const std::size_t rows = batch.piece.size();
    const std::size_t slot = batches_.take(batch, stream_);
    const auto& graphs = graphs_for({slot, rows, batch.leaf});
    is_updated_ = !must_wait(batch);
    // After this, no rank still reads data or records graphs while others wait in NCCL, whose limit
    // is for exchanges alone.
    if (device_ != nullptr) is_updated_ = comm_.all_agree(is_updated_);
    if (is_updated_) update_.begin(static_cast<double>(batch.global_examples), steps());
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      graphs[b].enqueue(stream_);
      enqueue_reduce(buckets_[b].slice);
    }
    if (device_ != nullptr) {
      reduced_.record(exchange_);
      reduced_.block(stream_);
    }
    if (is_updated_) update_graph_.enqueue(stream_);
    wait();
  }

  void reduce(const data::Batch& /*batch*/, PhaseSeconds& /*seconds*/) override {}
  bool has_finite_gradients(double weight) override { return check(sums_, weight); }

  void update(double weight) override {
    if (is_updated_) return;
    run_update(sums_, update_graph_, weight, {});  // every rank updates all weights
    stream_.synchronise();
  }

  bool publish() override { return comm_.all_agree(update_.finite()); }

  using Shape = std::array<std::size_t, 3>;  // slot, rows, leaf

  /// Returns one graph for each bucket.
  const std::vector<cuda::Graph>& graphs_for(const Shape& shape) {
    constexpr std::size_t max_kept = 16;
    const auto known = graphs_.find(shape);
    if (known != graphs_.end()) return known->second;
    if (graphs_.size() == max_kept) graphs_.clear();
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
      if (i + 1 < network_.layers() && i >= network_.first_trained()) {
        network_.backward_input(i + 1, rows, stream_);
      }
      network_.weight_gradients(i, {0, rows}, leaf, gradients_.span(), stream_);
    }
    if (bucket.first == 0) batches_.copy_results(rows, stream_);
    network_.await_gradients(stream_);
  }

  /// Enqueues the sum over all ranks, concurrent with later computation.
  void enqueue_reduce(Range slice) {
    if (device_ == nullptr) return;
    computed_.record(stream_);
    computed_.block(exchange_);
    device_->all_reduce(gradients_.span().subspan(slice.begin, slice.size()));
  }

  void wait() {
    if (device_ != nullptr) {
      device_->wait("the gradients of step " + std::to_string(steps() + 1));
    }
    stream_.synchronise();
  }

  bool is_updated_ = false;  // by compute()
  std::vector<Bucket> buckets_;
  cuda::DeviceBuffer<float> gradients_;
  DeviceSums sums_;
  cuda::Graph update_graph_;
  cuda::Event computed_;
  cuda::Event reduced_;
  std::map<Shape, std::vector<cuda::Graph>> graphs_;
};

}  // namespace

std::unique_ptr<Step> make_device_allreduce_step(const DeviceParts& parts,
                                                 const StepOptions& options, Sentinel& sentinel) {
  return std::make_unique<DeviceAllReduceStep>(parts, options, sentinel);
}

namespace {

/// Enqueues a copy to the front of a buffer of `size` elements, which is allocated once.
template <class T>
void copy_to(cuda::DeviceBuffer<T>& buffer, std::size_t size, std::span<const T> from,
             const cuda::Stream& stream) {
  if (buffer.size() == 0) buffer = cuda::DeviceBuffer<T>(size);
  cuda::copy(from, buffer.span(), stream);
}

}  // namespace

DeviceBatches::DeviceBatches(nn::DeviceNetwork& network, std::size_t rows)
    : network_(network), rows_(rows), results_(rows) {
  for (Slot& slot : slots_) {
    slot.labels = cuda::DeviceBuffer<std::int32_t>(rows);
    slot.host_weights = cuda::PinnedBuffer<float>(rows);
    slot.weights = cuda::DeviceBuffer<float>(rows);
    std::fill_n(slot.host_weights.data(), rows, 1.0F);
    cuda::copy(std::span<const float>(slot.host_weights.span()), slot.weights.span(), copies_);
  }
  copies_.synchronise();
}

DeviceBatches::Slot* DeviceBatches::find(std::span<const std::int32_t> labels) noexcept {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.staged == labels.data(); });
  return slot == slots_.end() ? nullptr : &*slot;
}

void DeviceBatches::stage(const data::StagedBatch& staged, float divisor) {
  const auto& batch = staged.batch;
  if (find(batch.labels) != nullptr) return;
  Slot* const slot = find({});
  if (slot == nullptr) throw std::logic_error("DeviceBatches: two batches are staged already");
  const auto& host = network_.host();
  nn::require_targets(targets_of(batch), host.loss_function(), batch.piece.size(),
                      host.shape().classes);
  if (!batch.piece.empty()) {
    const float kind = staged.bytes.empty() ? 0 : divisor;
    if (divisor_.value_or(kind) != kind) {
      throw ConfigError(
          "a replica on a device: features of another kind (bytes or numbers) or of another "
          "divisor than before",
          "give all batches from one data set by load(), or all by train(step, features, labels)");
    }
    divisor_ = kind;
  }
  const std::size_t values = rows_ * network_.shape().features;
  if (!staged.bytes.empty()) copy_to(slot->bytes, values, staged.bytes, copies_);
  if (!staged.floats.empty()) copy_to(slot->floats, values, staged.floats, copies_);
  const std::size_t width = values_per_example();
  if (width == 0) {
    cuda::copy(batch.labels, slot->labels.span(), copies_);
  } else {
    copy_to(slot->values, rows_ * width, batch.values, copies_);
  }
  stage_weights(batch, *slot);
  slot->copied.record(copies_);
  slot->staged = batch.labels.data();
}

std::size_t DeviceBatches::values_per_example() const noexcept {
  const auto& loss = network_.host().loss_function();
  return loss.target() == nn::TargetKind::label ? 0 : loss.target_width(network_.shape().classes);
}

void DeviceBatches::stage_weights(const data::Batch& batch, Slot& slot) {
  const nn::Targets targets = targets_of(batch);
  const bool is_weighted = network_.host().is_weighted(targets);
  if (!is_weighted && !slot.is_weighted) return;
  slot.is_weighted = is_weighted;
  const auto weights = slot.host_weights.span();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = i < batch.piece.size() ? network_.host().training_weight(targets, i) : 1;
  }
  cuda::copy(std::span<const float>(weights), slot.weights.span(), copies_);
}

void DeviceBatches::drop() noexcept {
  try {
    copies_.synchronise();
  } catch (const Error&) {  // the next wait reports it
  }
  for (Slot& slot : slots_) slot.staged = nullptr;
}

std::size_t DeviceBatches::take(const data::Batch& batch, const cuda::Stream& stream) {
  Slot* const slot = find(batch.labels);
  if (slot == nullptr) throw std::logic_error("DeviceBatches: a batch that was not staged");
  slot->copied.block(stream);
  slot->staged = nullptr;
  return static_cast<std::size_t>(slot - slots_.data());
}

void DeviceBatches::forward(std::size_t slot, std::size_t rows, const cuda::Stream& stream) const {
  const Slot& from = slots_[slot];
  const auto inputs = network_.inputs(rows).flat();
  if (from.bytes.size() > 0) {
    cuda::divide_bytes(from.bytes.span().first(inputs.size()), *divisor_, inputs, stream);
  } else if (!inputs.empty()) {
    cuda::copy(std::span<const float>(from.floats.span().first(inputs.size())), inputs, stream);
  }
  const std::size_t width = values_per_example();
  nn::Targets targets = {from.labels.span().first(rows), from.values.span().first(rows * width)};
  targets.weights = from.weights.span().first(rows);
  network_.forward(rows, stream);
  network_.loss(rows, targets, stream);
}

void DeviceBatches::copy_results(std::size_t rows, const cuda::Stream& stream) const {
  cuda::copy(std::span<const nn::ExampleResult>(network_.results(rows)),
             results_.span().first(rows), stream);
}

}  // namespace lockstep::train
