// Batches on their way to a device, one ahead of the step, and what examples gave on its way back.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "data/prefetch.hpp"
#include "lib/base/cuda/runtime.hpp"
#include "lib/nn/cuda/device_network.hpp"

namespace lockstep::train {

/// Two slots on the device: one is computed on, the other is filled on a stream of its own.
///
/// Bytes become floats on the device, by the division that sources do on the processor.
class DeviceBatches {
 public:
  /// For pieces of at most `rows` rows. `network` must outlive this.
  DeviceBatches(nn::DeviceNetwork& network, std::size_t rows);

  /// Begins to copy a batch of pinned memory, unless that is under way. Its memory stays as it is
  /// until the batch's run is over, or forget().
  /// Errors   throws std::invalid_argument as nn::require_labels does.
  void stage(const data::StagedBatch& staged, float divisor);

  /// Waits for copies of batches that no step has run on, and drops them.
  void forget() noexcept;

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

}  // namespace lockstep::train
