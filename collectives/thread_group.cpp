#include "collectives/thread_group.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "collectives/abortable_barrier.hpp"
#include "collectives/rank_order.hpp"

namespace lockstep::comm {
namespace {

constexpr std::size_t small_bytes = 256;

enum class Kind { all_reduce, broadcast, all_gather };

/// What a rank says it is doing; all ranks must say the same.
struct Call {
  Kind kind;
  Type type;
  std::size_t count;
  int detail;  // the op of all_reduce, the root of broadcast
  bool operator==(const Call&) const = default;
};

const char* name(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "all_reduce";
    case Kind::broadcast: return "broadcast";
    case Kind::all_gather: return "all_gather";
  }
  return "";
}

std::string describe(const Call& call) {
  static constexpr std::array ops = {" (sum)", " (min)", " (max)"};
  static constexpr std::array types = {"u8", "u64", "f32", "f64"};
  std::string text = name(call.kind);
  if (call.kind == Kind::all_reduce) text += ops[static_cast<std::size_t>(call.detail)];
  if (call.kind == Kind::broadcast) text += " from rank " + std::to_string(call.detail);
  return text + " of " + std::to_string(call.count) + " " +
         types[static_cast<std::size_t>(call.type)];
}

/// What a rank shows to its peers in one collective. Small contributions are copied into it, so
/// that one barrier is enough: nobody reads the caller's own memory.
struct alignas(64) Slot {
  Call call;
  const std::byte* data;
  std::array<std::byte, small_bytes> small;
};

class Group {
 public:
  explicit Group(int ranks)
      : size(ranks), barrier(ranks), slots_(static_cast<std::size_t>(ranks)) {}

  // Two slots a rank, used in turn: a fast rank may fill the next while a slow one still reads.
  Slot& slot(int rank, unsigned round) { return slots_[static_cast<std::size_t>(rank)][round % 2]; }

  void leave(int rank) noexcept {
    int nobody = -1;
    first_to_leave_.compare_exchange_strong(nobody, rank);
    barrier.abort();
  }

  void fail(std::exception_ptr failure) noexcept {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  int first_to_leave() const noexcept { return first_to_leave_.load(); }
  const std::exception_ptr& failure() const noexcept { return failure_; }

  const int size;
  AbortableBarrier barrier;

 private:
  std::vector<std::array<Slot, 2>> slots_;
  std::atomic<int> first_to_leave_{-1};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// The part of `count` elements that `rank` reduces: whole cache lines, trailing ranks fewer.
struct Part {
  std::size_t first;
  std::size_t count;
};

Part part_of(std::size_t count, int rank, int size) {
  constexpr std::size_t line = 64;  // elements: at least a cache line of any type
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t each = ((count + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t first = std::min(count, static_cast<std::size_t>(rank) * each);
  return {first, std::min(each, count - first)};
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Group& group, int rank)
      : Communicator(rank, group.size),
        group_(group),
        place_{.host = host_name(), .local_rank = rank, .local_ranks = group.size},
        inputs_(static_cast<std::size_t>(group.size)) {}

  const char* backend() const noexcept override { return "threads"; }
  const Place& place() const noexcept override { return place_; }

 private:
  void do_all_reduce(Elements values, Op op) override {
    const std::size_t bytes = values.count * width(values.type);
    const bool small = show({Kind::all_reduce, values.type, values.count, static_cast<int>(op)},
                            values.data, bytes);
    const Part mine = small ? Part{0, values.count} : part_of(values.count, rank(), size());
    reduce_in_rank_order(inputs_, values.type, op, mine.first, mine.count, values.data);
    if (small) return;
    meet(Kind::all_reduce);
    for (int peer = 0; peer < size(); ++peer) {
      const Part part = part_of(values.count, peer, size());
      const std::size_t offset = part.first * width(values.type);
      if (peer != rank()) {
        std::memcpy(values.data + offset, input(peer) + offset, part.count * width(values.type));
      }
    }
    meet(Kind::all_reduce);
  }

  void do_broadcast(Elements values, int root) override {
    if (root < 0 || root >= size()) {
      throw CommError("broadcast: no rank " + std::to_string(root) + " among " +
                      std::to_string(size()));
    }
    const std::size_t bytes = values.count * width(values.type);
    const bool small = show({Kind::broadcast, values.type, values.count, root}, values.data, bytes);
    if (rank() != root) std::memcpy(values.data, input(root), bytes);
    if (!small) meet(Kind::broadcast);
  }

  void do_all_gather(Elements values) override {
    const std::size_t block = values.count / static_cast<std::size_t>(size()) * width(values.type);
    const auto at = [&](int peer) { return values.data + static_cast<std::size_t>(peer) * block; };
    const bool small = show({Kind::all_gather, values.type, values.count, 0}, at(rank()), block);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) std::memcpy(at(peer), input(peer), block);
    }
    if (!small) meet(Kind::all_gather);
  }

  /// Shows `data` to the peers and waits for theirs in inputs_. Returns whether it was copied;
  /// otherwise the peers read it where it is, until the next meet().
  bool show(const Call& call, const std::byte* data, std::size_t bytes) {
    const unsigned round = round_++;
    Slot& mine = group_.slot(rank(), round);
    const bool small = bytes <= small_bytes;
    if (small) std::memcpy(mine.small.data(), data, bytes);
    mine.call = call;
    mine.data = small ? mine.small.data() : data;
    meet(call.kind);
    for (int peer = 0; peer < size(); ++peer) {
      const Slot& slot = group_.slot(peer, round);
      require_same(peer, group_.slot(0, round).call, slot.call);
      inputs_[static_cast<std::size_t>(peer)] = slot.data;
    }
    return small;
  }

  // All ranks compare with rank 0, so all of them throw, and the same.
  static void require_same(int peer, const Call& first, const Call& other) {
    if (other == first) return;
    throw CommError("ranks 0 and " + std::to_string(peer) + " are not in step: " + describe(first) +
                    " against " + describe(other));
  }

  void meet(Kind kind) {
    if (group_.barrier.wait()) return;
    throw CommError(std::string(name(kind)) + ": rank " + std::to_string(group_.first_to_leave()) +
                    " has left the group");
  }

  const std::byte* input(int peer) const { return inputs_[static_cast<std::size_t>(peer)]; }

  Group& group_;
  Place place_;
  std::vector<const std::byte*> inputs_;
  unsigned round_ = 0;
};

void run_rank(Group& group, int rank, const std::function<void(Communicator&)>& body) noexcept {
  try {
    ThreadCommunicator comm(group, rank);
    body(comm);
  } catch (...) {
    group.fail(std::current_exception());
  }
  group.leave(rank);
}

}  // namespace

void run_ranks(int size, const std::function<void(Communicator&)>& body) {
  if (size < 1) throw std::invalid_argument("run_ranks: " + std::to_string(size) + " ranks");
  Group group(size);
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      try {
        threads.emplace_back(run_rank, std::ref(group), rank, std::cref(body));
      } catch (...) {
        group.fail(std::current_exception());
        group.leave(rank);
        break;
      }
    }
  }
  if (group.failure()) std::rethrow_exception(group.failure());
}

}  // namespace lockstep::comm
