// The steps of a replica on a device, for make_device_replica() alone.
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

}  // namespace lockstep::train
