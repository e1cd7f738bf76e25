#include "collectives/thread_group.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "collectives/abortable_barrier.hpp"
#include "collectives/direct_communicator.hpp"

namespace lockstep::comm {
namespace {

class Group {
 public:
  /// `threads`: of all groups, which share the cores.
  Group(int ranks, int threads)
      : size(ranks),
        barrier(ranks, threads),
        slots(static_cast<std::size_t>(ranks)),
        threads_(threads) {}

  ~Group();

  /// Releases the peers here and in all parts that the rank belongs to.
  void leave(int rank) noexcept;

  /// A group of some of this one's ranks, which lives as long.
  Group& add_part(const std::vector<int>& ranks);

  void fail(std::exception_ptr failure) noexcept {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }

  int first_to_leave() const noexcept { return first_to_leave_.load(); }
  const std::exception_ptr& failure() const noexcept { return failure_; }

  const int size;
  AbortableBarrier barrier;
  std::vector<std::array<DirectCommunicator::Slot, 2>> slots;

 private:
  struct Part;

  const int threads_;
  std::atomic<int> first_to_leave_{-1};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::exception_ptr failure_;
};

struct Group::Part {
  Part(const std::vector<int>& members, int threads)
      : ranks(members), group(static_cast<int>(members.size()), threads) {}

  const std::vector<int> ranks;
  Group group;
};

Group::~Group() = default;

void Group::leave(int rank) noexcept {
  int nobody = -1;
  first_to_leave_.compare_exchange_strong(nobody, rank);
  barrier.abort();
  const std::scoped_lock lock(mutex_);
  for (const auto& part : parts_) {
    const auto place = std::find(part->ranks.begin(), part->ranks.end(), rank);
    if (place == part->ranks.end()) continue;
    part->group.leave(static_cast<int>(place - part->ranks.begin()));
  }
}

Group& Group::add_part(const std::vector<int>& ranks) {
  const std::scoped_lock lock(mutex_);
  return parts_.emplace_back(std::make_unique<Part>(ranks, threads_))->group;
}

class ThreadCommunicator final : public DirectCommunicator {
 public:
  ThreadCommunicator(Group& group, int rank)
      : DirectCommunicator(rank, group.size),
        group_(group),
        place_{.host = host_name(), .local_rank = rank, .local_ranks = group.size} {}

  const char* backend() const noexcept override { return "threads"; }
  const Place& place() const noexcept override { return place_; }

 private:
  Slot& slot(int rank, unsigned turn) noexcept override {
    return group_.slots[static_cast<std::size_t>(rank)][turn];
  }
  void meet(const char* collective) override {
    if (group_.barrier.wait()) return;
    throw CommError(std::string(collective) + ": rank " +
                    std::to_string(world_rank(group_.first_to_leave())) + " has left the group");
  }
  std::uintptr_t locate(const std::byte* data) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(data);
  }
  const std::byte* find(int, std::uintptr_t where) const noexcept override {
    return std::bit_cast<const std::byte*>(where);
  }

  /// The lowest rank of a part makes its group.
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
  Group group(size, size);
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
