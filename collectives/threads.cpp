#include "lockstep/collectives/threads.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/process.hpp"
#include "lockstep/base/spin.hpp"
#include "lockstep/collectives/direct.hpp"

namespace lockstep::comm {
namespace {

/// A barrier for a fixed number of threads; any thread may break it permanently.
///
/// Threads  wait() and abort() may be called from any thread; at most `threads` wait at once.
///          Writes before wait() are visible to all threads after it.
/// Cost     waiters spin (see SpinWait), then sleep on a futex. They sleep immediately if there are
///          more running threads than cores available to this process.
class AbortableBarrier {
 public:
  /// `running`: all threads that compete for the cores, including these.
  AbortableBarrier(int threads, int running);

  /// Returns true once all threads have called it, false once the barrier is broken.
  ///
  /// Returns true for a round completed before abort(), even in a thread that wakes later, so a
  /// thread may call abort() directly after its last round.
  bool wait() noexcept;

  /// Breaks this round and all later ones. The caller must not call wait() again.
  void abort() noexcept;

 private:
  static constexpr std::uint32_t flip = 1;
  static constexpr std::uint32_t broken = 2;

  bool wait_for_flip(std::uint32_t before) noexcept;

  const std::uint32_t threads_;
  const bool spins_;
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> state_{0};  // the bit `flip` toggles each round
};

AbortableBarrier::AbortableBarrier(int threads, int running)
    : threads_(static_cast<std::uint32_t>(threads)), spins_(running <= bound_cores()) {}

bool AbortableBarrier::wait() noexcept {
  const std::uint32_t before = state_.load(std::memory_order_acquire);
  if ((before & broken) != 0) return false;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) return wait_for_flip(before);
  arrived_.store(0, std::memory_order_relaxed);
  state_.fetch_xor(flip, std::memory_order_acq_rel);
  state_.notify_all();
  return true;
}

bool AbortableBarrier::wait_for_flip(std::uint32_t before) noexcept {
  for (SpinWait wait;;) {
    const std::uint32_t now = state_.load(std::memory_order_acquire);
    // The order matters: a round may be complete and the next one already broken.
    if (((now ^ before) & flip) != 0) return true;
    if ((now & broken) != 0) return false;
    if (!spins_ || !wait.spin()) state_.wait(now, std::memory_order_acquire);
  }
}

void AbortableBarrier::abort() noexcept {
  state_.fetch_or(broken, std::memory_order_acq_rel);
  state_.notify_all();
}

class Group {
 public:
  /// `ranks`: the members, by their rank in the group above. `threads`: the threads of all groups,
  /// which share the cores.
  Group(std::vector<int> ranks, int threads)
      : members(std::move(ranks)),
        size(static_cast<int>(members.size())),
        barrier(size, threads),
        slots(members.size()),
        threads_(threads) {}

  /// Releases the waiting peers in this group and in all parts of the rank.
  void leave(int rank) noexcept;

  /// Creates a group of some of this group's ranks, with the same lifetime.
  Group& add_part(const std::vector<int>& ranks) {
    const std::scoped_lock lock(mutex_);
    return *parts_.emplace_back(std::make_unique<Group>(ranks, threads_));
  }

  void fail(std::exception_ptr failure) noexcept {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  int first_to_leave() const noexcept { return first_to_leave_.load(); }
  const std::exception_ptr& failure() const noexcept { return failure_; }

  const std::vector<int> members;
  const int size;
  AbortableBarrier barrier;
  std::vector<std::array<DirectCommunicator::Slot, 2>> slots;

 private:
  const int threads_;
  std::atomic<int> first_to_leave_{-1};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> parts_;
  std::exception_ptr failure_;
};

void Group::leave(int rank) noexcept {
  int nobody = -1;
  first_to_leave_.compare_exchange_strong(nobody, rank);
  barrier.abort();
  const std::scoped_lock lock(mutex_);
  for (const auto& part : parts_) {
    const auto place = std::find(part->members.begin(), part->members.end(), rank);
    if (place == part->members.end()) continue;
    part->leave(static_cast<int>(place - part->members.begin()));
  }
}

class ThreadCommunicator final : public DirectCommunicator {
 public:
  ThreadCommunicator(Group& group, int rank)
      : DirectCommunicator(rank, group.size),
        group_(group),
        place_{.host = host_name(),
               .local_rank = rank,
               .local_ranks = group.size,
               .cores = bound_cores()} {}

  const char* backend() const noexcept override { return "threads"; }
  const Place& place() const noexcept override { return place_; }

 private:
  Slot& slot(int rank, unsigned turn) noexcept override {
    return group_.slots[static_cast<std::size_t>(rank)][turn];
  }
  void barrier(const char* collective) override {
    if (group_.barrier.wait()) return;
    throw RankLeft(collective, world_rank(group_.first_to_leave()));
  }
  std::uintptr_t to_address(const std::byte* data) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(data);
  }
  const std::byte* from_address(int, std::uintptr_t address) const noexcept override {
    return std::bit_cast<const std::byte*>(address);
  }

  /// The lowest rank of a part creates its group.
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override {
    std::vector<std::uint64_t> groups(static_cast<std::size_t>(size()));
    if (part.rank == 0) {
      Group* const mine = &group_.add_part(part.ranks);
      groups[static_cast<std::size_t>(rank())] = std::bit_cast<std::uintptr_t>(mine);
    }
    all_gather(std::span(groups));
    const auto where = groups[static_cast<std::size_t>(part.ranks.front())];
    return std::make_unique<ThreadCommunicator>(*std::bit_cast<Group*>(where), part.rank);
  }

  Group& group_;
  Place place_;
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
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  Group group(std::move(ranks), size);
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      try {
        threads.push_back(
            start_thread("for rank " + std::to_string(rank) + " of " + std::to_string(size),
                         [&group, rank, &body] { run_rank(group, rank, body); }));
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
