// Training steps of a replica on a device, and their parts; used by device_replica.cpp only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/collectives/cuda/device.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/cuda/device_network.hpp"
#include "lockstep/optim/cuda/device_optimizer.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
/// Gradient sums of subtrees, in tree order, that an update adds.
class DeviceSums {
 public:
  /// One part, at the beginning of `parts`.
  DeviceSums(std::span<const float> parts, const cuda::Stream& stream)
      : DeviceSums(parts, {0}, {0}, stream) {}

  /// Part p begins at offsets[p], and merges[p] additions follow it (cuda::DeviceUpdateSlice).
  DeviceSums(std::span<const float> parts, std::span<const std::size_t> offsets,
             std::span<const std::uint8_t> merges, const cuda::Stream& stream);

  void put(cuda::DeviceUpdateSlice& slice) const noexcept;

 private:
  DeviceSums(std::span<const float> parts, std::initializer_list<std::size_t> offsets,
             std::initializer_list<std::uint8_t> merges, const cuda::Stream& stream)
      : DeviceSums(parts, std::span(offsets.begin(), offsets.size()),
                   std::span(merges.begin(), merges.size()), stream) {}

  std::span<const float> parts_;
  cuda::DeviceBuffer<std::size_t> offsets_;
  cuda::DeviceBuffer<std::uint8_t> merges_;
};

/// The optimizer's moments of a slice, and its kernels. One thread; local, but for run().
class DeviceUpdate final : public optim::OptimizerState {
 public:
  /// `values`: the slice of the weights; `tensors`: see optim::Optimizer. `stream` must outlive
  /// this.
  DeviceUpdate(std::span<float> values, const optim::OptimizerOptions& options,
               const std::vector<optim::UpdatedTensor>& tensors, const cuda::Stream& stream);

  void copy(optim::Moment moment, std::span<float> into) override;
  void restore(optim::Moment moment, std::span<const float> from) override;

  /// Enqueues a check of the sums of a slice, over examples of weight `weight` in all; then
  /// finite() tells.
  void enqueue_check(const DeviceSums& sums, double weight);

  /// True if the update needs norms: then run() does it, else begin() and enqueue().
  bool needs_norms() const noexcept { return optim::needs_norms(update_passes_->options()); }

  /// Begins the update of step `step` (from 0) with sums over examples of weight `weight` in all.
  /// The previous update must be complete.
  void begin(double weight, std::uint64_t step);

  /// Enqueues the update with sums of the slice; may be recorded in a graph.
  void enqueue(const DeviceSums& sums) const;

  /// Does the update; the last passes are enqueued. Collective over the ranks of `ranks`.
  void run(const DeviceSums& sums, double weight, std::uint64_t step, const optim::RankSums& ranks);

  /// True if gradients and their squares were finite, and of an update also second moments, new
  /// weights and norms; valid when the update, or the check, is complete.
  bool finite() const noexcept { return is_finite_ && *not_finite_.data() == 0; }

 private:
  class Kernels;

  cuda::DeviceUpdateSlice slice_with(const DeviceSums& sums) const noexcept;
  void clear_flag() const;
  void fetch_flag() const;
  /// Enqueues a copy of the factors to the device, at `index`; returns where.
  const optim::PassFactors* put(const optim::PassFactors& factors, std::size_t index);

  std::span<float> values_;
  const cuda::Stream& stream_;
  std::vector<optim::RangePass> passes_;  // without factors
  cuda::DeviceBuffer<float> first_;       // empty if the optimizer does not have it
  cuda::DeviceBuffer<float> second_;
  cuda::PinnedBuffer<optim::PassFactors> factors_;  // of each pass, and of sums of squares
  cuda::DeviceBuffer<optim::PassFactors> device_factors_;
  cuda::DeviceBuffer<unsigned long long> squares_;
  cuda::PinnedBuffer<unsigned long long> host_squares_;
  bool is_finite_ = true;  // no norm of the last update was not finite
  cuda::PinnedBuffer<int> not_finite_;
  cuda::DeviceBuffer<int> device_not_finite_;
};

/// Batches on a device, in two slots: one is used for computation while the other is filled on a
/// separate copy stream. Also holds the example results copied back to the host.
///
/// Bytes are converted to floats on the device, with the same division as on the CPU.
class DeviceBatches {
 public:
  /// `rows`: maximum number of rows of a piece. `network` must outlive this.
  DeviceBatches(nn::DeviceNetwork& network, std::size_t rows);

  /// Begins to copy a batch from pinned memory, unless it is staged already. Its memory, but for
  /// that of the weights, must not change until the step on the batch is complete, or until drop().
  /// Errors   those of nn::require_targets(); ConfigError for features of another kind, bytes or
  ///          numbers, or of another divisor than before.
  void stage(const data::StagedBatch& staged, float divisor);

  /// Waits for the copies of staged batches that no step has used, and drops them.
  void drop() noexcept;

  /// Returns the slot of a staged batch and makes `stream` wait for its copy. The batch is no
  /// longer staged.
  /// Errors   throws std::logic_error if it is not staged.
  std::size_t take(const data::Batch& batch, const cuda::Stream& stream);

  /// Enqueues forward and loss of the first `rows` rows in a slot.
  void forward(std::size_t slot, std::size_t rows, const cuda::Stream& stream) const;

  /// Enqueues the copy of the loss's results to the host.
  void copy_results(std::size_t rows, const cuda::Stream& stream) const;

  /// The results of the last copy_results(); valid when it is complete.
  std::span<const nn::ExampleResult> results(std::size_t rows) const noexcept {
    return results_.span().first(rows);
  }

 private:
  struct Slot {
    const std::int32_t* staged = nullptr;  ///< labels on the host, which identify the batch
    cuda::DeviceBuffer<float> floats;      // or
    cuda::DeviceBuffer<std::uint8_t> bytes;
    cuda::DeviceBuffer<std::int32_t> labels;
    cuda::DeviceBuffer<float> values;  // of a loss that takes values or flags
    bool is_weighted = false;          ///< some weights on the device are not 1
    cuda::PinnedBuffer<float> host_weights;
    cuda::DeviceBuffer<float> weights;
    cuda::Event copied;
  };

  Slot* find(std::span<const std::int32_t> labels) noexcept;

  /// Values to predict of each example; 0 for a loss of labels.
  std::size_t values_per_example() const noexcept;

  /// Begins to copy the training weights of a batch, if they are not those on the device already.
  void stage_weights(const data::Batch& batch, Slot& slot);

  nn::DeviceNetwork& network_;
  std::size_t rows_;
  /// The divisor of features that are bytes, 0 of numbers; nullopt: none was staged. Recorded
  /// graphs depend on it.
  std::optional<float> divisor_;
  cuda::Stream copies_;
  std::array<Slot, 2> slots_;
  cuda::PinnedBuffer<nn::ExampleResult> results_;
};

/// Parts of a replica that its step uses.
struct DeviceParts {
  nn::DeviceNetwork& network;
  DeviceBatches& batches;
  comm::Communicator& host;          ///< the ranks
  comm::DeviceCommunicator* device;  ///< the same, for device memory; null with one rank
  const cuda::Stream& compute;
  const cuda::Stream& exchange;  ///< stream of `device`
};

std::unique_ptr<Step> make_device_canonical_step(const DeviceParts& parts,
                                                 const StepOptions& options, Sentinel& sentinel);
std::unique_ptr<Step> make_device_allreduce_step(const DeviceParts& parts,
                                                 const StepOptions& options, Sentinel& sentinel);

}  // namespace lockstep::train
