// The steps of a replica on a device, for make_device_replica() alone.
#pragma once

#include <memory>

#include "collectives/cuda/device_communicator.hpp"
#include "lib/nn/cuda/device_network.hpp"
#include "lib/train/cuda/device_batches.hpp"
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

/// What both steps have in common: weights stand on the device, and batches are staged.
class DeviceStep : public Step {
 public:
  Matrix<float> inputs(data::Range piece) final;
  std::pmr::memory_resource* staging() noexcept final;
  void stage(const data::StagedBatch& staged, float divisor) final;
  void forget_staged() noexcept final;
  std::optional<std::uint64_t> hash_of_weights(Slice slice) final;
  void show_weights(Slice slice) final;

 protected:
  DeviceStep(const DeviceParts& parts, const CanonicalOptions& options);

  nn::DeviceNetwork& network_;
  comm::Communicator& comm_;
  comm::DeviceCommunicator* device_;
  const cuda::Stream& stream_;
  const cuda::Stream& exchange_;
  DeviceBatches batches_;
};

std::unique_ptr<Step> make_device_canonical_step(const DeviceParts& parts,
                                                 const CanonicalOptions& options);
std::unique_ptr<Step> make_device_allreduce_step(const DeviceParts& parts,
                                                 const CanonicalOptions& options);

}  // namespace lockstep::train
