#include "collectives/cuda/nccl_handle.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "collectives/agreement.hpp"
#include "lib/base/cuda/runtime.hpp"
#include "lib/base/text.hpp"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds patience{2000};  // with an end that should take some milliseconds

/// Whether `work` ended within `limit`; if not, it goes on without us.
bool ends_within(milliseconds limit, std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  const auto end = task.get_future();
  std::thread thread(std::move(task));
  const bool ended = end.wait_for(limit) == std::future_status::ready;
  ended ? thread.join() : thread.detach();
  return ended;
}

void end_within(milliseconds limit, ncclResult_t (*end)(ncclComm_t), ncclComm_t comm) noexcept {
  try {
    ends_within(std::min(limit, patience), [end, comm] { end(comm); });
  } catch (const std::exception&) {  // no more threads
    end(comm);
  }
}

std::string reason(ncclResult_t result, ncclComm_t comm) {
  const char* const last = ncclGetLastError(comm);
  std::string text = ncclGetErrorString(result);
  if (last != nullptr && *last != '\0') text += ": " + std::string(last);
  return text;
}

/// What a thread that starts NCCL hands over, unless nobody waits any more.
struct Start {
  std::mutex mutex;
  ncclComm_t comm = nullptr;
  std::string failure;
  bool ended = false;
  bool abandoned = false;
};

void start(Start& start, int device, int ranks, const ncclUniqueId& id, int rank) {
  ncclComm_t comm = nullptr;
  std::string failure;
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    failure = std::string("cudaSetDevice: ") + cudaGetErrorString(error);
  } else if (const auto result = ncclCommInitRank(&comm, ranks, id, rank); result != ncclSuccess) {
    failure = reason(result, nullptr);
  }
  const std::scoped_lock lock(start.mutex);
  start.comm = comm;
  start.failure = failure;
  start.ended = true;
  if (start.abandoned && failure.empty()) ncclCommAbort(comm);
}

/// Null where there was no end within `limit`.
ncclComm_t start_within(milliseconds limit, const Communicator& host, const ncclUniqueId& id) {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  const auto state = std::make_shared<Start>();
  ends_within(limit, [=, ranks = host.size(), rank = host.rank()] {
    start(*state, device, ranks, id, rank);
  });
  const std::scoped_lock lock(state->mutex);
  state->abandoned = !state->ended;
  if (!state->failure.empty()) throw CommError("ncclCommInitRank: " + state->failure);
  return state->comm;
}

}  // namespace

NcclHandle::NcclHandle(Communicator& host, milliseconds limit)
    : limit_(limit),
      who_("rank " + std::to_string(host.world_rank(host.rank())) + " of " +
           std::to_string(host.size())),
      exceptions_(std::uncaught_exceptions()) {
  ncclUniqueId id = {};
  together(host, [&] {
    if (host.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  });
  host.broadcast(std::span(reinterpret_cast<std::uint8_t*>(&id), sizeof id));
  try {
    together(host, [&] { comm_ = start_within(limit, host, id); });
    together(host, [&] {  // where a rank failed, it is named, and not those that waited for it
      if (comm_ != nullptr) return;
      throw CommError("ncclCommInitRank between " +
                      counted(static_cast<std::uint64_t>(host.size()), "rank") +
                      ": not done after " + fixed(std::chrono::duration<double>(limit).count(), 1) +
                      " s (NCCL_DEBUG=INFO tells more)");
    });
  } catch (...) {
    abort();
    throw;
  }
}

NcclHandle::~NcclHandle() {
  if (std::uncaught_exceptions() > exceptions_) abort();
  if (comm_ != nullptr) end_within(limit_, ncclCommDestroy, comm_);
}

void NcclHandle::abort() noexcept {
  if (comm_ != nullptr) end_within(limit_, ncclCommAbort, std::exchange(comm_, nullptr));
}

void NcclHandle::check(ncclResult_t result, const std::string& what) {
  if (result == ncclSuccess) return;
  const std::string text = what + " on " + who_ + ": " + reason(result, comm_);
  abort();
  throw CommError(text);
}

std::string NcclHandle::failure() {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  return state == ncclSuccess || state == ncclInProgress ? "" : reason(state, comm_);
}

}  // namespace lockstep::comm
