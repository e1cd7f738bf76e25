// Training steps of a replica on a device, and their parts; used by device_replica.cpp only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/collectives/cuda/device.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/cuda/device_network.hpp"
#include "lockstep/optim/cuda/device_adam.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
/// Gradient sums of subtrees, in tree order, that an update adds.
class DeviceSums {
 public:
  /// One part, at the beginning of `parts`.
  DeviceSums(std::span<const float> parts, const cuda::Stream& stream)
      : DeviceSums(parts, {0}, {0}, stream) {}

  /// Part p begins at offsets[p], and merges[p] additions follow it (cuda::DeviceAdamSlice).
  DeviceSums(std::span<const float> parts, std::span<const std::size_t> offsets,
             std::span<const std::uint8_t> merges, const cuda::Stream& stream);

  void put(cuda::DeviceAdamSlice& slice) const noexcept;

 private:
  DeviceSums(std::span<const float> parts, std::initializer_list<std::size_t> offsets,
             std::initializer_list<std::uint8_t> merges, const cuda::Stream& stream)
      : DeviceSums(parts, std::span(offsets.begin(), offsets.size()),
                   std::span(merges.begin(), merges.size()), stream) {}

  std::span<const float> parts_;
  cuda::DeviceBuffer<std::size_t> offsets_;
  cuda::DeviceBuffer<std::uint8_t> merges_;
};

/// Adam's moments of a slice, and its kernel. One thread; local.
class DeviceUpdate final : public optim::OptimizerState {
 public:
  /// `values`: the slice of the weights. `stream` must outlive this.
  DeviceUpdate(std::span<float> values, const optim::OptimizerOptions& options,
               const cuda::Stream& stream);

  const optim::OptimizerScalars& scalars() const noexcept override { return state_; }
  void copy(optim::Moment moment, std::span<float> into) override;
  void set_scalars(const optim::OptimizerScalars& scalars) override { state_ = scalars; }
  void restore(optim::Moment moment, std::span<const float> from) override;

  /// Begins the update of step `step` (from 0) with sums over `examples` examples. The previous
  /// update must be complete.
  void begin(std::uint64_t examples, std::uint64_t step);

  /// Enqueues a check of the sums of a slice, over `examples` examples; then finite() tells.
  void enqueue_check(const DeviceSums& sums, std::uint64_t examples, const cuda::Stream& stream);

  /// Enqueues the update with sums of the slice; may be recorded in a graph.
  void enqueue(const DeviceSums& sums, const cuda::Stream& stream) const;

  /// True if the gradient was finite; valid when the update, or the check, is complete.
  bool finite() const noexcept { return *not_finite_.data() == 0; }

 private:
  cuda::DeviceAdamSlice slice_with(const DeviceSums& sums) const noexcept;

  std::span<float> values_;
  optim::OptimizerOptions options_;
  const cuda::Stream& stream_;
  optim::OptimizerScalars state_;
  cuda::DeviceBuffer<float> first_;
  cuda::DeviceBuffer<float> second_;
  cuda::PinnedBuffer<optim::AdamFactors> factors_;
  cuda::DeviceBuffer<optim::AdamFactors> device_factors_;
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

  /// Begins to copy a batch from pinned memory, unless it is staged already. Its memory must not
  /// change until the step on the batch is complete, or until drop().
  /// Errors   those of nn::require_labels().
  void stage(const data::StagedBatch& staged, float divisor);

  /// Waits for the copies of staged batches that no step has used, and drops them.
  void drop() noexcept;

  /// Returns the slot of a staged batch and makes `stream` wait for its copy. The batch is no
  /// longer staged. Errors   throws std::logic_error if it is not staged.
  std::size_t take(const data::Batch& batch, const cuda::Stream& stream);

  /// Enqueues forward and loss of the first `rows` rows in a slot, and the copy of the results to
  /// the host.
  void forward(std::size_t slot, std::size_t rows, const cuda::Stream& stream) const;

  /// The results of the last forward(); valid when it is complete.
  std::span<const nn::ExampleResult> results(std::size_t rows) const noexcept {
    return results_.span().first(rows);
  }

 private:
  struct Slot {
    const std::int32_t* staged = nullptr;  ///< labels on the host, which identify the batch
    cuda::DeviceBuffer<float> floats;      // or
    cuda::DeviceBuffer<std::uint8_t> bytes;
    cuda::DeviceBuffer<std::int32_t> labels;
    cuda::Event copied;
  };

  Slot* find(std::span<const std::int32_t> labels) noexcept;

  nn::DeviceNetwork& network_;
  std::size_t rows_;
  float divisor_ = 1;
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
