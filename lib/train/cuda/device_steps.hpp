// The steps of a replica on a device, for make_device_replica() alone, and what they share.
#pragma once

#include <memory>

#include "collectives/cuda/device_communicator.hpp"
#include "lib/nn/cuda/device_network.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {

/// What a replica lends to its step.
struct DeviceParts {
  nn::DeviceNetwork& network;
  comm::Communicator& host;          ///< the ranks
  comm::DeviceCommunicator* device;  ///< the same, on device memory; null for a rank alone
  const cuda::Stream& compute;
  const cuda::Stream& exchange;  ///< that of `device`
};

std::unique_ptr<Step> make_device_canonical_step(const DeviceParts& parts,
                                                 const CanonicalOptions& options);
std::unique_ptr<Step> make_device_allreduce_step(const DeviceParts& parts,
                                                 const CanonicalOptions& options);

/// A batch on its way to the device, and what its examples gave on their way back.
class DeviceBatch {
 public:
  /// For pieces of at most `rows` rows.
  DeviceBatch(nn::DeviceNetwork& network, std::size_t rows)
      : network_(network),
        inputs_(rows * network.shape().features),
        labels_(rows),
        results_(rows) {}

  Matrix<float> inputs(std::size_t rows) const noexcept {
    return {inputs_.data(), rows, network_.shape().features};
  }
  std::span<const nn::ExampleResult> results(std::size_t rows) const noexcept {
    return results_.span().first(rows);
  }

  /// Takes the labels. Throws std::invalid_argument as nn::require_labels does.
  void set_labels(std::span<const std::int32_t> labels, std::size_t rows) const;

  /// Enqueues the way there, forward and loss; and the way back.
  void forward(std::size_t rows, const cuda::Stream& stream) const;

 private:
  nn::DeviceNetwork& network_;
  cuda::PinnedBuffer<float> inputs_;
  cuda::PinnedBuffer<std::int32_t> labels_;
  cuda::PinnedBuffer<nn::ExampleResult> results_;
};

}  // namespace lockstep::train
