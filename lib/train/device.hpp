// A replica on a device, as all else sees it: nothing here needs CUDA. A build without it has
// no_device.cpp in place of cuda/.
#pragma once

#include <memory>
#include <string>

#include "collectives/communicator.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {

/// How ranks' devices show each other what they computed.
enum class DeviceExchange {
  automatic,  ///< nccl where this build has it and no two ranks share a device, else staged
  nccl,
  staged,  ///< through memory of the hosts, by the ranks' communicator
};

/// What a replica on a device is made for.
struct DeviceOptions {
  bool strict = true;  ///< the products: strict, or the library's
  Precision precision = Precision::float32;
  bool share = false;  ///< ranks of a host may share its devices
  DeviceExchange exchange = DeviceExchange::automatic;
  std::size_t rows = 0;  ///< that a pass may have on this rank
  /// The ranks that take a device, where others train on their processors; null: all of them.
  comm::Communicator* devices = nullptr;
};

/// A network whose weights, gradients and moments stand in a device's memory.
///
/// One rank's; one thread. Its results are the same bits as those of the processor where products
/// are strict.
class DeviceReplica {
 public:
  DeviceReplica() = default;
  DeviceReplica(const DeviceReplica&) = delete;
  DeviceReplica& operator=(const DeviceReplica&) = delete;
  virtual ~DeviceReplica() = default;

  virtual Inference& inference() = 0;

  /// The step that trains it, which must not outlive it. Canonical ranks show each other partial
  /// sums, in the same messages as on the processor, so that ranks of both kinds may train together
  /// where the exchange is staged.
  /// Errors   throws ConfigError: memory used up, a loss without device code.
  /// Ranks    local; all ranks make one.
  virtual std::unique_ptr<Step> make_step(bool canonical, const CanonicalOptions& options) = 0;

  /// "NVIDIA H200 (0000:1b:00.0)".
  virtual const std::string& device() const noexcept = 0;

  /// How its ranks exchange: "nccl", "staged over mpi"; "" for a rank alone.
  virtual const std::string& exchange() const noexcept = 0;

  /// "strict" or "library".
  virtual const char* products() const noexcept = 0;

  /// Whether ranks of this host share its device.
  virtual bool shares_device() const noexcept = 0;
};

/// Takes a device for this rank, and copies the weights of `network` there, whose products store
/// them as the device's do. `network` needs no rows; it and `comm` must outlive the replica.
///
/// Errors   throws comm::AgreedError (2) on every rank: no device, two ranks on one that is not to
///          be shared, a layer that has no device code, an exchange that cannot be had, a
///          build without CUDA.
/// Ranks    collective; over options.devices alone where that is set, and the exchange staged.
std::unique_ptr<DeviceReplica> make_device_replica(nn::Network<float>& network,
                                                   const DeviceOptions& options,
                                                   comm::Communicator& comm);

}  // namespace lockstep::train
