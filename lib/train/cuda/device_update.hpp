// Adam on a slice of a replica's weights, where they stand.
#pragma once

#include <span>

#include "lib/base/cuda/runtime.hpp"
#include "lib/optim/adam.hpp"
#include "lib/optim/cuda/device_adam.hpp"

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
  std::uint64_t steps() const noexcept { return steps_; }

  /// The next update is of sums over `examples` examples. The one before is over.
  void begin(std::uint64_t examples);

  /// Enqueues the update by sums of the slice; may be recorded.
  void enqueue(const DeviceSums& sums, const cuda::Stream& stream) const;

  /// Whether the gradient was finite, once the update is over.
  bool finite() const noexcept { return *not_finite_.data() == 0; }

 private:
  std::span<float> values_;
  optim::AdamOptions options_;
  std::uint64_t steps_ = 0;
  cuda::DeviceBuffer<float> first_;
  cuda::DeviceBuffer<float> second_;
  cuda::PinnedBuffer<optim::AdamFactors> factors_;
  cuda::DeviceBuffer<optim::AdamFactors> device_factors_;
  cuda::PinnedBuffer<int> not_finite_;
  cuda::DeviceBuffer<int> device_not_finite_;
};

}  // namespace lockstep::train
