#include "tests/fakes/cuda/fake_nccl.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "tests/fakes/cuda/fake.hpp"

namespace {

enum class Kind { all_reduce, broadcast, all_gather, send, receive };

struct Operation {
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  int other = 0;  // reduction, root or peer
  std::atomic<bool> done = false;

  Operation(Kind what, const void* from, void* to, std::size_t elements, ncclDataType_t of,
            int peer)
      : kind(what), send(from), receive(to), count(elements), type(of), other(peer) {}
  Operation(const Operation& like)
      : Operation(like.kind, like.send, like.receive, like.count, like.type, like.other) {}

  bool alike(const Operation& peers) const {
    return kind == peers.kind && count == peers.count && type == peers.type && other == peers.other;
  }
};
using Posted = std::shared_ptr<Operation>;

std::size_t width(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclFloat32 ? 4 : 8;
}

template <class T>
void reduce(std::vector<Posted>& all, ncclRedOp_t op) {
  for (std::size_t i = 0; i < all[0]->count; ++i) {
    T value = static_cast<const T*>(all[0]->send)[i];
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const T next = static_cast<const T*>(all[rank]->send)[i];
      value = op == ncclSum   ? static_cast<T>(value + next)
              : op == ncclMin ? std::min(value, next)
                              : std::max(value, next);
    }
    for (const auto& one : all) static_cast<T*>(one->receive)[i] = value;
  }
}

void reduce(std::vector<Posted>& all) {
  const auto op = static_cast<ncclRedOp_t>(all[0]->other);
  switch (all[0]->type) {
    case ncclUint8: return reduce<std::uint8_t>(all, op);
    case ncclUint64: return reduce<std::uint64_t>(all, op);
    case ncclFloat32: return reduce<float>(all, op);
    case ncclFloat64: return reduce<double>(all, op);
  }
}

void move(std::vector<Posted>& all) {
  const std::size_t bytes = all[0]->count * width(all[0]->type);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& to : all) {
      auto* const receive = static_cast<std::byte*>(to->receive);
      if (all[0]->kind == Kind::all_gather) {
        std::memmove(receive + rank * bytes, all[rank]->send, bytes);
      } else if (static_cast<int>(rank) == all[0]->other) {
        std::memmove(receive, all[rank]->send, bytes);
      }
    }
  }
}

/// The ranks that share one id.
class World {
 public:
  explicit World(int ranks)
      : devices(static_cast<std::size_t>(ranks), -1),
        collectives_(devices.size()),
        results_(devices.size(), ncclSuccess) {}

  void post(int rank, const Posted& operation) {
    const std::lock_guard lock(mutex_);
    const auto me = static_cast<std::size_t>(rank);
    if (operation->kind == Kind::send) {
      sends_[{rank, operation->other}].push_back(operation);
    } else if (operation->kind == Kind::receive) {
      receives_[{operation->other, rank}].push_back(operation);
    } else {
      collectives_[me].push_back(operation);
    }
    match_collectives();
    match_pairs();
  }

  /// Nothing of the rank's is read or written any more.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    const auto forget = [](std::deque<Posted>& all) {
      for (const auto& one : all) one->done = true;
      all.clear();
    };
    forget(collectives_[static_cast<std::size_t>(rank)]);
    for (auto& [pair, all] : sends_) {
      if (pair.first == rank) forget(all);
    }
    for (auto& [pair, all] : receives_) {
      if (pair.second == rank) forget(all);
    }
  }

  ncclResult_t result(int rank) {
    const std::lock_guard lock(mutex_);
    return results_[static_cast<std::size_t>(rank)];
  }
  void set_result(int rank, ncclResult_t result) {
    const std::lock_guard lock(mutex_);
    results_[static_cast<std::size_t>(rank)] = result;
  }

  std::vector<int> devices;  // of the ranks that came; guarded by those that initialise
  int left = 0;              // ranks whose ncclCommInitRank has returned

 private:
  void match_collectives() {
    while (std::none_of(collectives_.begin(), collectives_.end(),
                        [](const auto& queue) { return queue.empty(); })) {
      std::vector<Posted> all;
      for (auto& queue : collectives_) {
        all.push_back(queue.front());
        queue.pop_front();
      }
      const bool same =
          std::all_of(all.begin(), all.end(), [&](const auto& one) { return one->alike(*all[0]); });
      if (!same) {
        std::fill(results_.begin(), results_.end(), ncclInvalidUsage);
      } else if (all[0]->kind == Kind::all_reduce) {
        reduce(all);
      } else {
        move(all);
      }
      for (const auto& one : all) one->done = true;
    }
  }

  void match_pairs() {
    for (auto& [pair, sent] : sends_) {
      auto& wanted = receives_[pair];
      while (!sent.empty() && !wanted.empty()) {
        const Posted from = sent.front();
        const Posted to = wanted.front();
        sent.pop_front();
        wanted.pop_front();
        if (from->count != to->count || from->type != to->type) {
          std::fill(results_.begin(), results_.end(), ncclInvalidUsage);
        } else {
          std::memcpy(to->receive, from->send, from->count * width(from->type));
        }
        from->done = to->done = true;
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::deque<Posted>> collectives_;
  std::map<std::pair<int, int>, std::deque<Posted>> sends_;     // by sender and receiver
  std::map<std::pair<int, int>, std::deque<Posted>> receives_;  // the same
  std::vector<ncclResult_t> results_;
};

/// One rank of a world.
struct Member {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  std::atomic<bool> aborted = false;
};

struct Failure {
  std::string function;
  ncclResult_t result;
  int rank;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<World>> worlds;  // that are not complete yet, by id
  std::vector<Failure> failures;
  std::map<int, std::vector<std::string>> calls;
  std::set<ncclComm*> live;
  std::size_t in_progress = 0;
  std::size_t destroyed = 0;
  std::size_t aborted = 0;
  int ids = 0;
  int releases = 0;
  int held = -1;
  bool hold_aborts = false;
};

State& state() {
  static State instance;
  return instance;
}

/// Counts a call that takes its time.
class InProgress {
 public:
  InProgress() { change(1); }
  ~InProgress() { change(-1); }
  InProgress(const InProgress&) = delete;
  InProgress& operator=(const InProgress&) = delete;

 private:
  static void change(int by) {
    const std::lock_guard lock(state().mutex);
    state().in_progress += static_cast<std::size_t>(by);
  }
};

ncclResult_t note(const char* function, int rank, const std::string& call) {
  fake_cuda::note(function);
  const std::lock_guard lock(state().mutex);
  state().calls[rank].push_back(call.empty() ? function : call);
  auto& failures = state().failures;
  const auto asked = std::find_if(failures.begin(), failures.end(), [&](const Failure& failure) {
    return failure.function == function && (failure.rank == rank || failure.rank < 0);
  });
  if (asked == failures.end()) return ncclSuccess;
  const auto result = asked->result;
  failures.erase(asked);
  return result;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
};

namespace {

/// What a thread collects between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  std::shared_ptr<Member> member;
  cudaStream_t stream = nullptr;
  std::vector<Operation> operations;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

void enqueue(const std::shared_ptr<Member>& member, cudaStream_t stream,
             std::vector<Operation> operations) {
  // A graph keeps copies of the work, in which nothing is posted.
  fake_cuda::enqueue_until(stream, [member, operations = std::move(operations),
                                    posted = std::vector<Posted>()]() mutable {
    if (member->aborted) return true;
    if (posted.empty()) {
      for (const auto& one : operations) posted.push_back(std::make_shared<Operation>(one));
      for (const auto& one : posted) member->world->post(member->rank, one);
    }
    return std::all_of(posted.begin(), posted.end(),
                       [](const Posted& one) { return one->done.load(); });
  });
}

std::string type_text(ncclDataType_t type) {
  return type == ncclUint8     ? "u8"
         : type == ncclUint64  ? "u64"
         : type == ncclFloat32 ? "f32"
                               : "f64";
}

ncclResult_t add(const char* function, ncclComm_t comm, cudaStream_t stream,
                 const Operation& operation, const std::string& ending = "") {
  const auto& member = comm->member;
  ncclResult_t result = note(function, member->rank,
                             std::string(function) + ' ' + std::to_string(operation.count) + ' ' +
                                 type_text(operation.type) + ending);
  if (result == ncclSuccess && member->device != fake_cuda::chosen_device()) {
    result = ncclInvalidUsage;
  }
  if (result != ncclSuccess) {
    if (group.depth > 0) group.error = result;
    return result;
  }
  if (group.depth == 0) {
    enqueue(member, stream, {operation});
    return ncclSuccess;
  }
  group.member = member;
  group.stream = stream;
  group.operations.push_back(operation);
  return ncclSuccess;
}

/// Waits for the other ranks of an id; false where they are not all to come.
bool join(const std::string& id, const std::shared_ptr<Member>& member, int ranks) {
  State& all = state();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] { return all.held != member->rank; });
  auto& world = all.worlds[id];
  if (!world) world = std::make_shared<World>(ranks);
  member->world = world;
  auto& devices = member->world->devices;
  devices[static_cast<std::size_t>(member->rank)] = member->device;
  all.changed.notify_all();
  const auto complete = [&] {
    return std::none_of(devices.begin(), devices.end(), [](int device) { return device < 0; });
  };
  const int releases = all.releases;
  all.changed.wait(lock, [&] { return complete() || all.releases != releases; });
  const bool joined = complete();
  if (++member->world->left == ranks || !joined) all.worlds.erase(id);
  return joined;
}

void end(ncclComm_t comm) {
  comm->member->aborted = true;
  comm->member->world->leave(comm->member->rank);
}

}  // namespace

namespace fake_nccl {

void fail(const std::string& function, ncclResult_t result, int rank) {
  const std::lock_guard lock(state().mutex);
  state().failures.push_back({function, result, rank});
}

void break_link(int rank, ncclResult_t result) {
  const std::lock_guard lock(state().mutex);
  for (ncclComm* comm : state().live) {
    if (comm->member->rank == rank) comm->member->world->set_result(rank, result);
  }
}

std::vector<std::string> take_calls(int rank) {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().calls[rank], {});
}

void hold_aborts(bool hold) {
  const std::lock_guard lock(state().mutex);
  state().hold_aborts = hold;
  state().changed.notify_all();
}

void hold_start(int rank, bool hold) {
  const std::lock_guard lock(state().mutex);
  state().held = hold ? rank : -1;
  state().changed.notify_all();
}

void release_initialising() {
  const std::lock_guard lock(state().mutex);
  ++state().releases;
  state().changed.notify_all();
}

std::size_t live_communicators() {
  const std::lock_guard lock(state().mutex);
  return state().live.size();
}

std::size_t calls_in_progress() {
  const std::lock_guard lock(state().mutex);
  return state().in_progress;
}

std::size_t destroyed() {
  const std::lock_guard lock(state().mutex);
  return state().destroyed;
}

std::size_t aborted() {
  const std::lock_guard lock(state().mutex);
  return state().aborted;
}

}  // namespace fake_nccl

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const auto failed = note("ncclGetUniqueId", -1, ""); failed != ncclSuccess) return failed;
  *id = {};
  const std::lock_guard lock(state().mutex);
  std::snprintf(id->internal, sizeof id->internal, "world %d", ++state().ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const InProgress in_progress;
  if (const auto failed = note("ncclCommInitRank", rank, ""); failed != ncclSuccess) return failed;
  auto member = std::make_shared<Member>();
  member->rank = rank;
  member->device = fake_cuda::chosen_device();
  if (!join(id.internal, member, ranks)) return ncclSystemError;
  const auto& devices = member->world->devices;
  if (std::set(devices.begin(), devices.end()).size() != devices.size()) return ncclInvalidUsage;
  *comm = new ncclComm{member};
  const std::lock_guard lock(state().mutex);
  state().live.insert(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  note("ncclCommDestroy", comm->member->rank, "");
  {
    const std::lock_guard lock(state().mutex);
    if (state().live.erase(comm) == 0) return ncclInvalidArgument;
    ++state().destroyed;
  }
  end(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const InProgress in_progress;
  note("ncclCommAbort", comm->member->rank, "");
  end(comm);
  {
    std::unique_lock lock(state().mutex);
    if (state().live.erase(comm) == 0) return ncclInvalidArgument;
    state().changed.wait(lock, [] { return !state().hold_aborts; });
    ++state().aborted;
  }
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t /*comm*/) { return "what NCCL said last"; }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->member->world->result(comm->member->rank);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add("ncclAllReduce", comm, stream, {Kind::all_reduce, send, receive, count, type, op});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return add("ncclBroadcast", comm, stream, {Kind::broadcast, send, receive, count, type, root},
             " from " + std::to_string(root));
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return add("ncclAllGather", comm, stream, {Kind::all_gather, send, receive, count, type, 0});
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add("ncclSend", comm, stream, {Kind::send, send, nullptr, count, type, peer},
             " to " + std::to_string(peer));
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add("ncclRecv", comm, stream, {Kind::receive, nullptr, receive, count, type, peer},
             " from " + std::to_string(peer));
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  Group ended = std::exchange(group, {});
  if (ended.error != ncclSuccess || !ended.member) return ended.error;
  const auto failed = note("ncclGroupEnd", ended.member->rank, "");
  if (failed != ncclSuccess) return failed;
  enqueue(ended.member, ended.stream, std::move(ended.operations));
  return ncclSuccess;
}
