// Which device a rank takes, and what ranks must find out together before they take one.
#pragma once

#include <cstddef>
#include <string>

#include "collectives/communicator.hpp"

namespace lockstep::comm {

/// A rank's device, which is current for the thread that asked.
struct DeviceOfRank {
  int device = 0;                ///< as CUDA numbers those that this process sees
  std::string bus_id;            ///< "0000:1b:00.0": what tells the devices of a host apart
  std::string name;              ///< "NVIDIA H200"
  std::size_t memory_bytes = 0;  ///< all of it
  bool shared = false;  ///< two ranks of the job, or more, share a device; the same on every rank
};

/// The only device that the rank sees (as Slurm's --gpus-per-task gives it), or the one of its
/// number among the host's ranks; with `share`, and fewer devices than ranks, dealt in turn.
///
/// Where `shared` is set NCCL cannot be used: stage (device_communicator.hpp). Instances of one
/// device (MIG) count as one device, as NCCL counts them.
/// Errors   AgreedError (2), the same on every rank: no device, fewer devices than ranks of the
///          host, or two ranks on one device, unless `share`; it names ranks, host and device.
/// Ranks    collective over `host`.
DeviceOfRank choose_device(Communicator& host, bool share);

}  // namespace lockstep::comm
