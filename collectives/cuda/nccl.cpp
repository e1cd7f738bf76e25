// DeviceCommunicator with NCCL (device.hpp).
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/base/spin.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/cuda/device.hpp"

namespace lockstep::comm {
namespace {

/// Owns an ncclComm_t of the current device. The destructor destroys it, or aborts it after a
/// failed call or during stack unwinding.
///
/// ncclCommInitRank waits for failed peers; ncclCommDestroy and ncclCommAbort wait for graphs that
/// captured its calls. They run in a thread that is detached after the limit.
class NcclHandle {
 public:
  /// Errors   AgreedError (86) on all ranks.
  /// Ranks    collective over `host`.
  NcclHandle(Communicator& host, std::chrono::milliseconds limit);
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;
  ~NcclHandle();

  ncclComm_t get() const noexcept { return comm_; }

  /// "rank 2 of 4", for messages.
  const std::string& who() const noexcept { return who_; }

  /// Aborts and throws CommError with NCCL's reason, unless `result` is ncclSuccess.
  void check(ncclResult_t result, const std::string& what);

  /// The asynchronous error of this rank or a peer; empty if there is none.
  std::string failure();

  /// Aborts the collectives that are running on the device.
  void abort() noexcept;

 private:
  std::chrono::milliseconds limit_;
  std::string who_;
  int exceptions_;
  int device_ = 0;
  ncclComm_t comm_ = nullptr;
};

using std::chrono::milliseconds;

constexpr milliseconds max_to_end{2000};  // usually a few milliseconds

/// True if `work` ended within `limit`; otherwise its thread is detached.
bool ends_within(milliseconds limit, std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  const auto end = task.get_future();
  std::thread thread(std::move(task));
  const bool ended = end.wait_for(limit) == std::future_status::ready;
  ended ? thread.join() : thread.detach();
  return ended;
}

/// The thread has the communicator's device: with another one NCCL would leave a context on it.
void end_within(milliseconds limit, int device, ncclResult_t (*end)(ncclComm_t),
                ncclComm_t comm) noexcept {
  try {
    ends_within(std::min(limit, max_to_end), [device, end, comm] {
      cudaSetDevice(device);
      end(comm);
    });
  } catch (const std::exception&) {  // no thread could be started
    end(comm);
  }
}

std::string reason(ncclResult_t result, ncclComm_t comm) {
  const char* const last = ncclGetLastError(comm);
  std::string text = ncclGetErrorString(result);
  if (last != nullptr && *last != '\0') text += ": " + std::string(last);
  return text;
}

/// State shared by the thread that starts NCCL and the thread that waits for it.
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

/// Null if NCCL did not start within `limit`.
ncclComm_t start_within(milliseconds limit, int device, const Communicator& host,
                        const ncclUniqueId& id) {
  const auto state = std::make_shared<Start>();
  ends_within(limit, [=, ranks = host.size(), rank = host.rank()] {
    start(*state, device, ranks, id, rank);
  });
  const std::scoped_lock lock(state->mutex);
  state->abandoned = !state->ended;
  if (!state->failure.empty()) throw CommError("ncclCommInitRank: " + state->failure);
  return state->comm;
}

NcclHandle::NcclHandle(Communicator& host, milliseconds limit)
    : limit_(limit),
      who_("rank " + std::to_string(host.world_rank(host.rank())) +
           (host.world_rank(host.rank()) == host.rank() ? " of " + std::to_string(host.size())
                                                        : "")),
      exceptions_(std::uncaught_exceptions()) {
  ncclUniqueId id = {};
  together(host, [&] {
    if (host.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  });
  host.broadcast(std::span(reinterpret_cast<std::uint8_t*>(&id), sizeof id));
  try {
    together(host, [&] {
      cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
      comm_ = start_within(limit, device_, host, id);
    });
    together(host, [&] {  // reports the failed rank, not the ranks that waited for it
      if (comm_ != nullptr) return;
      throw CommError(
          "ncclCommInitRank between " + counted(static_cast<std::uint64_t>(host.size()), "rank") +
          ": not done after " + with_decimals(std::chrono::duration<double>(limit).count(), 1) +
          " s (NCCL_DEBUG=INFO tells more)");
    });
  } catch (...) {
    abort();
    throw;
  }
}

NcclHandle::~NcclHandle() {
  if (std::uncaught_exceptions() > exceptions_) abort();
  if (comm_ != nullptr) end_within(limit_, device_, ncclCommDestroy, comm_);
}

void NcclHandle::abort() noexcept {
  if (comm_ != nullptr) end_within(limit_, device_, ncclCommAbort, std::exchange(comm_, nullptr));
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

using Clock = std::chrono::steady_clock;

constexpr int spins = 2000;  // polls of the device, about a microsecond each; then sleeps
constexpr std::chrono::microseconds nap{20};

ncclDataType_t datatype(Type type) {
  switch (type) {
    case Type::u8: return ncclUint8;
    case Type::u64: return ncclUint64;
    case Type::f32: return ncclFloat32;
    case Type::f64: return ncclFloat64;
  }
  return ncclUint8;
}

ncclRedOp_t operation(Op op) {
  switch (op) {
    case Op::sum: return ncclSum;
    case Op::min: return ncclMin;
    case Op::max: return ncclMax;
  }
  return ncclSum;
}

/// ncclGroupStart and ncclGroupEnd.
class Group {
 public:
  explicit Group(NcclHandle& nccl) : nccl_(nccl) {
    nccl_.check(ncclGroupStart(), "ncclGroupStart");
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (open_) ncclGroupEnd();
  }

  /// NcclHandle::check() of a call in the group, which is ended before the communicator is aborted.
  void check(ncclResult_t result, const std::string& what) {
    if (result != ncclSuccess && std::exchange(open_, false)) ncclGroupEnd();
    nccl_.check(result, what);
  }

  void end() {
    open_ = false;
    nccl_.check(ncclGroupEnd(), "ncclGroupEnd");
  }

 private:
  NcclHandle& nccl_;
  bool open_ = true;
};

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(Communicator& host, const cuda::Stream& stream, std::chrono::milliseconds limit)
      : DeviceCommunicator(host),
        stream_(stream),
        limit_(limit),
        place_(host.place()),
        arrivals_(host),
        nccl_(host, limit) {}

  const char* backend() const noexcept override { return "nccl"; }
  const Place& place() const noexcept override { return place_; }
  void wait(std::string_view what) override;

 private:
  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;

  ncclComm_t usable();
  ncclResult_t enqueue_all_gather(Elements values);
  void exchange(Group& group, const std::byte* send, int to, std::byte* receive, int from,
                std::size_t count, Type type);
  [[noreturn]] void give_up(std::string_view what, const std::string& reason);

  const cuda::Stream& stream_;
  std::chrono::milliseconds limit_;
  Place place_;
  Arrivals arrivals_;
  NcclHandle nccl_;
  cuda::Event reached_;
  std::uint64_t waits_ = 0;
};

ncclComm_t NcclCommunicator::usable() {
  if (nccl_.get() != nullptr) return nccl_.get();
  throw CommError("nccl on " + nccl_.who() + ": the communicator was aborted after an error");
}

void NcclCommunicator::do_all_reduce(Elements values, Op op) {
  require_device_memory("all_reduce", values.data);
  nccl_.check(ncclAllReduce(values.data, values.data, values.count, datatype(values.type),
                            operation(op), usable(), stream_.get()),
              "ncclAllReduce");
}

void NcclCommunicator::do_broadcast(Elements values, int root) {
  require_device_memory("broadcast", values.data);
  nccl_.check(ncclBroadcast(values.data, values.data, values.count, datatype(values.type), root,
                            usable(), stream_.get()),
              "ncclBroadcast");
}

ncclResult_t NcclCommunicator::enqueue_all_gather(Elements values) {
  require_device_memory("all_gather", values.data);
  const std::size_t block = values.count / static_cast<std::size_t>(size());
  const std::size_t mine = static_cast<std::size_t>(rank()) * block * width(values.type);
  return ncclAllGather(values.data + mine, values.data, block, datatype(values.type), usable(),
                       stream_.get());
}

void NcclCommunicator::do_all_gather(Elements values) {
  nccl_.check(enqueue_all_gather(values), "ncclAllGather");
}

void NcclCommunicator::do_grouped_all_gather(Buffers buffers) {
  usable();
  Group group(nccl_);
  for (const auto& buffer : buffers) {
    group.check(enqueue_all_gather({buffer.data(), buffer.size(), Type::u8}), "ncclAllGather");
  }
  group.end();
}

void NcclCommunicator::exchange(Group& group, const std::byte* send, int to, std::byte* receive,
                                int from, std::size_t count, Type type) {
  group.check(ncclSend(send, count, datatype(type), to, usable(), stream_.get()), "ncclSend");
  group.check(ncclRecv(receive, count, datatype(type), from, usable(), stream_.get()), "ncclRecv");
}

void NcclCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  require_device_memory("all_to_all", send);
  require_device_memory("all_to_all", receive.data);
  usable();
  const std::size_t block = receive.count / static_cast<std::size_t>(size());
  const std::size_t bytes = block * width(receive.type);
  const std::size_t mine = static_cast<std::size_t>(rank()) * bytes;
  cuda::copy_bytes(send + mine, receive.data + mine, bytes, stream_);
  if (size() == 1) return;
  Group group(nccl_);
  for (int peer = 0; peer < size(); ++peer) {
    const std::size_t at = static_cast<std::size_t>(peer) * bytes;
    if (peer != rank()) {
      exchange(group, send + at, peer, receive.data + at, peer, block, receive.type);
    }
  }
  group.end();
}

void NcclCommunicator::do_shift(const std::byte* send, Elements receive) {
  require_device_memory("shift", send);
  require_device_memory("shift", receive.data);
  usable();
  if (size() == 1) {
    return cuda::copy_bytes(send, receive.data, receive.count * width(receive.type), stream_);
  }
  Group group(nccl_);
  exchange(group, send, (rank() + 1) % size(), receive.data, (rank() + size() - 1) % size(),
           receive.count, receive.type);
  group.end();
}

void NcclCommunicator::wait(std::string_view what) {
  usable();
  arrivals_.arrive(++waits_);
  reached_.record(stream_);
  const auto deadline = Clock::now() + limit_;
  for (int polls = 0; !reached_.reached(); ++polls) {
    if (const std::string failure = nccl_.failure(); !failure.empty()) give_up(what, failure);
    if (Clock::now() > deadline) {
      give_up(what, "not done after " +
                        with_decimals(std::chrono::duration<double>(limit_).count(), 1) + " s");
    }
    polls < spins ? spin_hint() : std::this_thread::sleep_for(nap);
  }
  if (const std::string failure = nccl_.failure(); !failure.empty()) give_up(what, failure);
}

void NcclCommunicator::give_up(std::string_view what, const std::string& reason) {
  const std::string text = std::string(what) + ", by NCCL on " + nccl_.who() + ": " + reason +
                           "; " + arrivals_.lagging(waits_);
  nccl_.abort();
  throw CommError(text);
}

}  // namespace

bool nccl_built_in() noexcept { return true; }

std::unique_ptr<DeviceCommunicator> make_nccl_communicator(Communicator& host,
                                                           const cuda::Stream& stream,
                                                           std::chrono::milliseconds limit) {
  return std::make_unique<NcclCommunicator>(host, stream, limit);
}

}  // namespace lockstep::comm
