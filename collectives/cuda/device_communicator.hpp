// Collectives on device memory: by NCCL, or staged through the host.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "collectives/communicator.hpp"
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

}  // namespace lockstep::comm
