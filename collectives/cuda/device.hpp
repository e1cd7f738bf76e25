// Collectives on device memory: by NCCL, or staged through the host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/shared.hpp"
#include "lib/base/cuda/runtime.hpp"

namespace lockstep::comm {
/// A Communicator for memory of the device that was current when it was made.
///
/// A call enqueues its work on the communicator's stream and returns: its results are available to
/// later work of that stream. Otherwise the contract is that of Communicator: the same calls in the
/// same order on all ranks, in place, no work for empty spans. Calls of the NCCL backend may be
/// recorded in a graph.
///
/// Host memory   throws std::invalid_argument. Use the host communicator for flags, texts and
///               all_agree. split() throws: split the host communicator, and make one over the
///               result.
/// Threads       one thread, whose device is current. Its calls must not run at the same time as
///               calls of the host communicator that touch device memory.
/// Lifetime      host, stream and buffers outlive it; graphs that recorded its calls are destroyed
///               before it.
class DeviceCommunicator : public Communicator {
 public:
  /// Waits for all work of the stream.
  ///
  /// `what` is the subject of error messages, as in "the gradients of step 12".
  /// Errors   CommError (86) where a peer or a link failed, or after the limit; it names `what` and
  ///          the ranks of this host that lag. The communicator is aborted and unusable.
  ///          cuda::DeviceError for kernels that failed.
  /// Ranks    all ranks call it equally often: the count tells which ranks lag.
  virtual void wait(std::string_view what) = 0;

 protected:
  /// The ranks of `host`.
  explicit DeviceCommunicator(const Communicator& host) : Communicator(host.rank(), host.size()) {
    number_like(host);
  }
};

/// True if this build has NCCL.
bool nccl_built_in() noexcept;

/// NCCL, started over `host`: any communicator whose ranks have a device each.
///
/// `limit` bounds the start, each wait() and the end.
/// Sums     the same bits on all ranks, not for other numbers of ranks.
/// Errors   AgreedError (86) on all ranks where NCCL cannot start on one. ConfigError (2) in a
///          build without NCCL. Later, CommError (86) with call, rank and NCCL's reason.
/// Ranks    collective over `host`, after choose_device().
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(Communicator& host,
                                                           const cuda::Stream& stream,
                                                           std::chrono::milliseconds limit);

/// Copies to pinned host memory, runs the collective of `host`, and copies back: for builds without
/// NCCL, and for ranks that share a device.
///
/// A call waits for the stream and for the peers, so it cannot be recorded in a graph. Pinned
/// memory grows to the longest call, twice that for all_to_all and shift.
/// Sums     those of `host`.
/// Errors   those of `host`; ConfigError (2) where no more memory can be pinned. wait() has no
///          limit: it waits only for this rank's device.
/// Ranks    local.
std::unique_ptr<DeviceCommunicator> make_staged_communicator(Communicator& host,
                                                             const cuda::Stream& stream);

/// A rank's device, which is current for the thread that asked.
struct DeviceOfRank {
  int device = 0;                ///< as CUDA numbers those that this process sees
  std::string bus_id;            ///< "0000:1b:00.0", unique on a host
  std::string name;              ///< "NVIDIA H200"
  std::size_t memory_bytes = 0;  ///< all of it
  bool shared = false;  ///< two ranks of the job, or more, share a device; the same on every rank
};

/// The only visible device (Slurm's --gpus-per-task), or the device with the number of the local
/// rank; with `share` the local rank modulo the number of devices.
///
/// NCCL cannot be used if the result is `shared`: use make_staged_communicator. MIG instances of
/// one device count as one device, as in NCCL.
/// Errors   AgreedError (2), the same on every rank: no device, fewer devices than ranks of the
///          host, or two ranks on one device, unless `share`; it names ranks, host and device.
/// Ranks    collective over `host`.
DeviceOfRank choose_device(Communicator& host, bool share);

/// Throws std::invalid_argument, which names `collective`, unless `memory` is device memory.
void require_device_memory(const char* collective, const void* memory);

/// One counter of wait() calls for each rank of a host, in shared memory, so that a rank can name
/// the peers that lag. Covers the ranks of one host; where these cannot share memory, lagging()
/// reports that.
class Arrivals {
 public:
  /// Ranks    collective over `host`.
  explicit Arrivals(Communicator& host);
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// Marks this rank as gone.
  ~Arrivals();

  /// Records that this rank has reached its `count`-th wait(). Local.
  void come(std::uint64_t count) noexcept;

  /// The ranks behind `count`, as in "rank 3 on h1 lags: it came to wait 11, this is 12". Local.
  std::string lagging(std::uint64_t count) const;

 private:
  struct Entry;
  Entry& entry(std::size_t local_rank) const noexcept;
  bool map(Communicator& host, const std::string& leaders_address);

  std::optional<SharedRegion> region_;  // none where it cannot be shared
  std::string host_;
  std::vector<int> ranks_;  // world ranks of this host
  std::size_t mine_ = 0;    // this rank's place among them
  bool alone_ = true;       // no other host
};

}  // namespace lockstep::comm
