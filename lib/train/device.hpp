// A replica's network on a device, without CUDA's types. A build without CUDA has no_device.cpp in
// place of cuda/.
#pragma once

#include <memory>
#include <memory_resource>
#include <string>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/step.hpp"

namespace lockstep::train {

/// How ranks' devices exchange data.
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

/// A network whose weights, gradients and optimizer state are in a device's memory.
///
/// Its results are the same bits as those of the processor where products are strict. One thread.
class DeviceReplica : public Inference {
 public:
  /// The step that trains it, which must not outlive it. Canonical ranks exchange partial sums, in
  /// the same messages as on the processor, so that ranks of both kinds may train together where
  /// the exchange is staged.
  /// Errors   throws ConfigError: memory used up, a loss without device code.
  /// Ranks    local; all ranks make one.
  virtual std::unique_ptr<Step> make_step(bool canonical, const StepOptions& options,
                                          Sentinel& sentinel) = 0;

  /// Memory of the host that batches are copied from. Local.
  virtual std::pmr::memory_resource& staging_memory() noexcept = 0;

  /// Begins to copy a batch whose features, if bytes, are to be divided by `divisor`: each before
  /// the step that it is for, in their order; the next one may be staged before this one's step.
  /// Errors   throws std::invalid_argument as nn::require_labels does.
  /// Ranks    local.
  virtual void stage(const data::StagedBatch& staged, float divisor) = 0;

  /// Waits for copies of staged batches that no step has used, and drops them. Local.
  virtual void drop_staged() noexcept = 0;

  /// A hash of this slice of the flat block, which only devices compute alike. Local.
  virtual std::uint64_t hash_of_weights(Range slice) = 0;

  /// Copies this slice of the weights to the network on the host. Local.
  virtual void copy_weights_to_host(Range slice) = 0;

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
