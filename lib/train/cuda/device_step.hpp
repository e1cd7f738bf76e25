// The steps of a replica on a device, and their parts; used by device_replica.cpp alone.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/cuda/device.hpp"
#include "data/batches.hpp"
#include "lib/base/cuda/runtime.hpp"
#include "lib/nn/cuda/device_network.hpp"
#include "lib/optim/adam.hpp"
#include "lib/optim/cuda/device_adam.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {
/// Sums of gradients in the order of the tree, each a part of it: what an update adds up.
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
class DeviceUpdate {
 public:
  /// `values`: the slice of the weights.
  DeviceUpdate(std::span<float> values, const optim::AdamOptions& options,
               const cuda::Stream& stream);

  /// Steps begun.
  std::uint64_t steps() const noexcept { return state_.steps; }

  /// The next update is of sums over `examples` examples. The one before is over.
  void begin(std::uint64_t examples);

  /// Enqueues the update by sums of the slice; may be recorded.
  void enqueue(const DeviceSums& sums, const cuda::Stream& stream) const;

  /// Whether the gradient was finite, once the update is over.
  bool finite() const noexcept { return *not_finite_.data() == 0; }

 private:
  std::span<float> values_;
  optim::AdamOptions options_;
  optim::AdamState state_;
  cuda::DeviceBuffer<float> first_;
  cuda::DeviceBuffer<float> second_;
  cuda::PinnedBuffer<optim::AdamFactors> factors_;
  cuda::DeviceBuffer<optim::AdamFactors> device_factors_;
  cuda::PinnedBuffer<int> not_finite_;
  cuda::DeviceBuffer<int> device_not_finite_;
};

/// Copies of batches on a device: two slots, of which one is computed on while the other is filled
/// on a stream of its own. And the results of examples on their way back.
///
/// Bytes become floats on the device, by the division that sources do on the processor.
class DeviceBatches {
 public:
  /// For pieces of at most `rows` rows. `network` must outlive this.
  DeviceBatches(nn::DeviceNetwork& network, std::size_t rows);

  /// Begins to copy a batch of pinned memory, unless that is under way. Its memory stays as it is
  /// until the batch's run is over, or drop().
  /// Errors   throws std::invalid_argument as nn::require_labels does.
  void stage(const data::StagedBatch& staged, float divisor);

  /// Waits for copies of batches that no step has run on, and drops them.
  void drop() noexcept;

  /// The slot of a staged batch; what `stream` does from now on begins after its copy. The batch is
  /// no longer staged.
  /// Errors   throws std::logic_error where it is not staged.
  std::size_t take(const data::Batch& batch, const cuda::Stream& stream);

  /// Enqueues forward and loss of the first `rows` rows in a slot, and the way back of the results.
  void forward(std::size_t slot, std::size_t rows, const cuda::Stream& stream) const;

  /// Those of the last forward(), once it is done.
  std::span<const nn::ExampleResult> results(std::size_t rows) const noexcept {
    return results_.span().first(rows);
  }

 private:
  struct Slot {
    const std::int32_t* staged = nullptr;  ///< the batch's labels on the host, which name it
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
  comm::DeviceCommunicator* device;  ///< the same, on device memory; null for a rank alone
  const cuda::Stream& compute;
  const cuda::Stream& exchange;  ///< that of `device`
};

std::unique_ptr<Step> make_device_canonical_step(const DeviceParts& parts,
                                                 const StepOptions& options, Sentinel& sentinel);
std::unique_ptr<Step> make_device_allreduce_step(const DeviceParts& parts,
                                                 const StepOptions& options, Sentinel& sentinel);

}  // namespace lockstep::train
