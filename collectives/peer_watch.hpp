// PeerWatch: detects that a collective waits for a rank that has finished, for transports that do
// not report it (MPI). Ranks that died: tcp.hpp, shared.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/socket.hpp"

namespace lockstep::comm {

/// The collectives that this rank has called on one communicator. One thread counts, others read.
class CollectiveCount {
 public:
  explicit CollectiveCount(std::uint64_t id) : id_(id) {}

  /// A number of the communicator, the same on all its ranks.
  std::uint64_t id() const noexcept { return id_; }

  /// Calls so far, including the current one.
  std::uint64_t calls() const noexcept { return calls_.load(); }

  /// The last one's name; null: none.
  const char* name() const noexcept { return name_.load(); }

 private:
  friend class CollectiveCounts;

  std::uint64_t id_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<const char*> name_{nullptr};
};

/// The counts of all communicators of a process. Local.
class CollectiveCounts {
 public:
  struct Entry {
    std::uint64_t id;
    std::uint64_t calls;
  };

  /// A further communicator. The reference is valid as long as this object.
  CollectiveCount& add(std::uint64_t id);

  /// Before and after a collective on the communicator of `count`.
  void begin(CollectiveCount& count, const char* name) noexcept {
    count.name_.store(name, std::memory_order_relaxed);
    count.calls_.store(count.calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    current_.store(&count, std::memory_order_release);
  }
  void end() noexcept { current_.store(nullptr, std::memory_order_release); }

  /// The count of the communicator whose collective this rank is in; null: none.
  const CollectiveCount* current() const noexcept {
    return current_.load(std::memory_order_acquire);
  }

  std::vector<Entry> all() const;

 private:
  mutable std::mutex mutex_;
  std::list<CollectiveCount> all_;
  std::atomic<const CollectiveCount*> current_{nullptr};
};

/// A rank that has finished sends the others the number of its collectives on each communicator. A
/// rank inside a later collective then waits for ever. A thread of its own receives the messages,
/// datagrams (UDP) with a random key, because the thread that calls collectives is blocked.
class PeerWatch {
 public:
  /// Calls `on_left`, once and from the thread, when a collective of this rank waits for a rank
  /// that has called tell().
  ///
  /// Errors   throws AgreedError (2) on all ranks if one cannot open a socket or start the thread.
  /// Ranks    collective over `wire`, which is used only here, and has all ranks of the counts.
  PeerWatch(Communicator& wire, std::shared_ptr<const CollectiveCounts> counts,
            std::function<void(const RankLeft&)> on_left);
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Sends the others a message that this rank calls no more collectives. It may be lost: call it
  /// again from time to time. Local.
  void tell() const;

 private:
  using Calls = std::map<std::uint64_t, std::uint64_t>;  // by CollectiveCount::id()

  void run(const std::stop_token& stop);
  void receive();
  std::optional<RankLeft> find_left() const;

  int rank_;
  std::shared_ptr<const CollectiveCounts> counts_;
  std::function<void(const RankLeft&)> on_left_;
  std::array<std::uint64_t, 2> key_{};
  Socket socket_;
  std::vector<Contact> contacts_;  // by rank
  std::map<int, Calls> finished_;  // by rank
  std::jthread thread_;            // last member: joined before the others are destroyed
};

}  // namespace lockstep::comm
