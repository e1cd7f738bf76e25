// A replica's network on a device: interface without CUDA types. A build without CUDA compiles
// no_device.cpp instead of cuda/.
#pragma once

#include <memory>
#include <memory_resource>
#include <string>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/evaluation.hpp"
#include "lockstep/train/replica_options.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {

/// A network with weights, gradients and optimizer state in device memory.
///
/// With strict products its results are bitwise equal to those of the CPU. One thread.
class DeviceReplica : public Inference {
 public:
  /// Creates the step that trains this replica; the replica must outlive it. Canonical ranks
  /// exchange partial sums in the same messages as on the CPU, so ranks with and without a device
  /// may train together if the exchange is staged.
  /// Errors   throws ConfigError: not enough memory, a loss without device code.
  /// Ranks    local; every rank must call it.
  virtual std::unique_ptr<Step> make_step(bool canonical, const StepOptions& options,
                                          Sentinel& sentinel) = 0;

  /// Host memory from which batches are copied. Local.
  virtual std::pmr::memory_resource& staging_memory() noexcept = 0;

  /// Begins to copy a batch to the device; features that are bytes are divided by `divisor`. Call
  /// it before the step of the batch, in the order of the steps; the next batch may be staged
  /// before the step of this one.
  /// Errors   those of nn::require_targets(); ConfigError for features of another kind, bytes or
  ///          numbers, or of another divisor than before.
  /// Ranks    local.
  virtual void stage(const data::StagedBatch& staged, float divisor) = 0;

  /// Waits for the copies of staged batches that no step has used, and drops them. Local.
  virtual void drop_staged() noexcept = 0;

  /// A hash of this slice of the flat block; comparable only with hashes from devices. Local.
  virtual std::uint64_t hash_of_weights(Range slice) = 0;

  /// Copies this slice of the weights to the network on the host, and all weights back. Local.
  virtual void copy_weights_to_host(Range slice) = 0;
  virtual void copy_weights_from_host() = 0;

  /// The first `rows` rows of the last step's features (0) or outputs of layer i - 1, and of the
  /// gradients by the outputs of layer i; valid until the next call. Local.
  virtual Matrix<const float> copy_activation(std::size_t i, std::size_t rows) = 0;
  virtual Matrix<const float> copy_gradient(std::size_t i, std::size_t rows) = 0;

  /// Name and bus id of the device: "NVIDIA H200 (0000:1b:00.0)".
  virtual const std::string& device() const noexcept = 0;

  /// How the ranks exchange data: "nccl", "staged over mpi"; "" with one rank.
  virtual const std::string& exchange() const noexcept = 0;

  /// The matrix products: "strict" or "library".
  virtual const char* products() const noexcept = 0;

  /// True if ranks of this host share the device.
  virtual bool shares_device() const noexcept = 0;
};

/// Selects a device for this rank and copies the weights of `network` to it. The products of
/// `network` must store weights in the device's layout. `network` needs no rows; it and `comm` must
/// outlive the replica. `rows`: the maximum number of rows in a pass on this rank.
///
/// Errors   throws comm::AgreedError (2) on every rank that takes part: no device, two ranks on one
///          device without `share_device`, a layer without device code, an exchange that is not
///          available, a build without CUDA. The options of all ranks were compared before.
/// Ranks    collective; over options.devices only if that is set, and the exchange is staged.
std::unique_ptr<DeviceReplica> make_device_replica(nn::Network<float>& network,
                                                   const ReplicaOptions& options, std::size_t rows,
                                                   comm::Communicator& comm);

}  // namespace lockstep::train
