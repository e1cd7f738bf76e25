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
/// A Communicator whose spans lie in the memory of the device that was current when it was made.
///
/// A call enqueues on the communicator's stream, and returns: where Communicator says that a call
/// leaves values, or that they may be reused, read "for what comes later in that stream". All else
/// holds: the same calls in the same order on all ranks, in place, nothing for empty spans.
///
/// Host memory   is refused with std::invalid_argument. So flags, texts and all_agree go over the
///               host communicator; and split() refuses: split the host, and make one over the
///               part.
/// Threads       one thread, whose device is current. Never in flight together with calls of
///               the host communicator that touch device memory.
/// Lifetime      host, stream and the buffers that calls touch outlive it: it ends what still runs,
///               for which cudaFree would wait. Graphs that recorded its calls are destroyed before
///               it, for NCCL waits for them.
class DeviceCommunicator : public Communicator {
 public:
  /// Waits until the device has done all that was enqueued on the stream: how a step ends.
  ///
  /// `what` is named by errors, as in "the gradients of step 12".
  /// Errors   CommError (86) where a peer or a link failed, or after the limit; it names what was
  ///          waited for and the ranks of this host that lag. The communicator is aborted, and of
  ///          no use. cuda::DeviceError for kernels that failed.
  /// Ranks    collective, in that it is called equally often by all: this is how they see who lags.
  virtual void wait(std::string_view what) = 0;

  /// Whether calls may be recorded in a graph; wait() never is.
  virtual bool recordable() const noexcept = 0;

 protected:
  /// The ranks of `host`.
  explicit DeviceCommunicator(const Communicator& host) : Communicator(host.rank(), host.size()) {
    number_like(host);
  }
};

/// Whether this build has NCCL.
bool nccl_built_in() noexcept;

/// NCCL, started over `host`: any communicator whose ranks have a device each.
///
/// `limit` bounds the start, each wait() and the end.
/// Sums     the same bits on all ranks, not for other numbers of ranks.
/// Errors   AgreedError (86) on all ranks where NCCL cannot start on one. ConfigError (2) in a
/// build
///          without NCCL. Later, CommError (86) with call, rank and NCCL's reason.
/// Ranks    collective over `host`, after choose_device().
std::unique_ptr<DeviceCommunicator> make_nccl_communicator(Communicator& host,
                                                           const cuda::Stream& stream,
                                                           std::chrono::milliseconds limit);

/// Copies out to pinned host memory, the collective of `host`, copies in: for builds without NCCL,
/// and for ranks that share a device.
///
/// A call waits for the stream and for the peers, so that it cannot be recorded in a graph. Pinned
/// memory grows to the longest call, twice that for all_to_all and shift.
/// Sums     those of `host`.
/// Errors   those of `host`; ConfigError (2) where no more memory can be pinned. No limit of its
/// own:
///          wait() waits for the device alone.
/// Ranks    local.
std::unique_ptr<DeviceCommunicator> make_staged_communicator(Communicator& host,
                                                             const cuda::Stream& stream);

// Which device a rank takes, and what ranks must find out together before they take one.

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

// What communicators on device memory refuse.

/// Errors   std::invalid_argument, which names `collective`, where `memory` is not a device's.
void require_device_memory(const char* collective, const void* memory);

// How far each rank of a host has come, readable by the others without its help.

/// Counts, one a rank, on memory that the ranks of a host share: threads and processes alike.
///
/// Ranks of other hosts are not seen. Where the ranks of a host cannot share memory, nobody's count
/// is seen and lagging() says so.
class Arrivals {
 public:
  /// Ranks    collective over `host`.
  explicit Arrivals(Communicator& host);
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// Says that this rank has left.
  ~Arrivals();

  /// This rank has come to its `count`-th wait. Local.
  void come(std::uint64_t count) noexcept;

  /// What a rank that waits in vain knows: "rank 3 on h1 lags: it came to wait 11, this is 12".
  /// Local.
  std::string lagging(std::uint64_t count) const;

 private:
  struct Entry;
  Entry& entry(std::size_t local_rank) const noexcept;
  bool map(Communicator& host, const std::string& leaders_address);

  std::optional<SharedRegion> region_;  // none where it cannot be shared
  std::string host_;
  std::vector<int> ranks_;  // of this host, as messages call them
  std::size_t mine_ = 0;    // this rank's place among them
  bool alone_ = true;       // no other host
};

}  // namespace lockstep::comm
