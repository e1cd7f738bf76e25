// One rank's part of an NCCL communicator, from its start to its end. Only nccl_*.cpp include this.
#pragma once

#include <nccl.h>

#include <chrono>
#include <string>

#include "collectives/communicator.hpp"

namespace lockstep::comm {

/// Owns an ncclComm_t of the current device; destroys it, or aborts it where a call failed or an
/// exception unwinds.
///
/// Nothing here outlasts the limit, though NCCL may: its start waits for lost peers, and its end
/// for graphs that recorded its calls, even its abort. Such a call is left to a thread of its own.
class NcclHandle {
 public:
  /// Errors   AgreedError (86) on all ranks.
  /// Ranks    collective over `host`.
  NcclHandle(Communicator& host, std::chrono::milliseconds limit);
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;
  ~NcclHandle();

  ncclComm_t get() const noexcept { return comm_; }

  /// "rank 2 of 4", as messages call it.
  const std::string& who() const noexcept { return who_; }

  /// Aborts and throws CommError, with NCCL's reason, unless all is well.
  void check(ncclResult_t result, const std::string& what);

  /// What went wrong since, here or at a peer; empty where all is well.
  std::string failure();

  /// Ends what is running on the device.
  void abort() noexcept;

 private:
  std::chrono::milliseconds limit_;
  std::string who_;
  int exceptions_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace lockstep::comm
