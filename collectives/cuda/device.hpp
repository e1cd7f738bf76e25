// Collectives on device memory: with NCCL, or staged through the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/shared.hpp"

namespace lockstep::comm {
/// A Communicator for memory of the device that was current at its construction.
///
/// A call enqueues its work on the communicator's stream and returns: its results are available to
/// later work of that stream. Otherwise the contract is that of Communicator: the same calls in the
/// same order on all ranks, in place, no work for empty spans. Calls of the NCCL backend may be
/// captured in a graph.
///
/// Host memory   throws std::invalid_argument. Use the host communicator for flags, texts and
///               all_agree. split() throws: split the host communicator, and create one over the
///               result.
/// Threads       one thread, with the device current. Its calls must not run concurrently with
///               calls of the host communicator that use device memory.
/// Lifetime      host, stream and buffers must outlive it; graphs that captured its calls must be
///               destroyed before it.
class DeviceCommunicator : public Communicator {
 public:
  /// Waits for all work of the stream.
  ///
  /// `what` is the subject of error messages, e.g. "the gradients of step 12".
  /// Errors   CommError (86) if a peer or a link failed, or after the limit, with `what` and the
  ///          lagging ranks of this host. The communicator is aborted and unusable.
  ///          cuda::DeviceError for failed kernels.
  /// Ranks    all ranks call it equally often: the count identifies lagging ranks.
  virtual void wait(std::string_view what) = 0;

 protected:
  /// Has the ranks of `host`.
  explicit DeviceCommunicator(const Communicator& host) : Communicator(host.rank(), host.size()) {
    number_like(host);
  }
};

/// True if this build has NCCL.
bool nccl_built_in() noexcept;

/// An NCCL communicator, initialised over `host`; each rank must have its own device.
///
/// `limit` is the timeout of initialisation and of each wait(); destruction has at most 2 s.
/// Sums     the same bits on all ranks; they depend on the number of ranks.
/// Errors   AgreedError (86) on all ranks if NCCL cannot start on one. ConfigError (2) in a build
///          without NCCL. Later, CommError (86) with call, rank and NCCL's reason.
/// Ranks    collective over `host`, after choose_device().
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(Communicator& host,
                                                           const cuda::Stream& stream,
                                                           std::chrono::milliseconds limit);

/// Copies to host memory, runs the collective of `host`, and copies back: for builds without NCCL,
/// for ranks that share a device, and beside ranks on processors.
///
/// A call waits for the stream and for the peers, so it cannot be captured in a graph. Host memory,
/// host.memory() if peers read only that in place, else pinned, grows to the size of the longest
/// call, twice that for all_to_all and shift.
/// Sums     those of `host`.
/// Errors   those of `host`; ConfigError (2) if no more memory can be pinned, std::bad_alloc if
///          there is no more of host.memory(). wait() has no timeout: it waits only for this rank's
///          device.
/// Ranks    local.
std::unique_ptr<DeviceCommunicator> make_staged_communicator(Communicator& host,
                                                             const cuda::Stream& stream);

/// A rank's device; choose_device() makes it current for the calling thread.
struct DeviceOfRank {
  int device = 0;       ///< CUDA index among this process's visible devices
  std::string bus_id;   ///< "0000:1b:00.0", unique on a host
  std::string name;     ///< "NVIDIA H200"
  bool shared = false;  ///< some ranks of the job share a device; the same on every rank
};

/// The only visible device (Slurm's --gpus-per-task), or the device whose index is the local rank;
/// with `share`, the local rank modulo the number of devices.
///
/// NCCL cannot be used if the result is `shared`: use make_staged_communicator. MIG instances of
/// one device count as one device, as in NCCL.
/// Errors   AgreedError (2), the same on every rank, with ranks, host and device: no device; or,
///          unless `share`, fewer devices than ranks of the host, or two ranks on one device.
/// Ranks    collective over `host`.
DeviceOfRank choose_device(Communicator& host, bool share);

/// Throws std::invalid_argument, with the name `collective`, unless `memory` is device memory.
void require_device_memory(const char* collective, const void* memory);

/// Counts the wait() calls of each rank of one host in shared memory, to report lagging ranks. If
/// the ranks cannot share memory, lagging() reports that.
class Arrivals {
 public:
  /// Ranks    collective over `host`.
  explicit Arrivals(Communicator& host);
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// Marks this rank as ended.
  ~Arrivals();

  /// Records that this rank has reached its `count`-th wait(). Local.
  void arrive(std::uint64_t count) noexcept;

  /// The ranks below `count`, e.g. "rank 3 on h1 lags: it came to wait 11, this is 12". Local.
  std::string lagging(std::uint64_t count) const;

 private:
  struct Entry;
  Entry& entry(std::size_t local_rank) const noexcept;

  std::optional<SharedRegion> region_;  // empty if it cannot be shared
  std::string host_;
  std::vector<int> ranks_;  // world ranks of this host
  std::size_t mine_ = 0;    // this rank's index in ranks_
  bool alone_ = true;       // there is only one host
};

}  // namespace lockstep::comm
