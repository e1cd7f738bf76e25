// Communicator for processes of one machine, over shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/collectives/direct.hpp"

namespace lockstep::comm {
/// Memory shared by processes of one machine: created and zeroed by one, opened by the others.
///
/// A memfd: it has no name in the file system, is freed after a crash, is not subject to the limit
/// of /dev/shm, and allocates pages on first use. The destructor unmaps it.
/// Errors   ConfigError with the system's reason, and for a region longer than files may be
///          (`ulimit -f`).
class SharedRegion {
 public:
  static SharedRegion create(std::size_t bytes);

  /// Opens the region with this address(); its creator must not have closed it yet.
  static SharedRegion open(const std::string& address);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&&) = delete;
  ~SharedRegion();

  /// Text for open() in other processes. Valid until close().
  std::string address() const;

  /// Closes the file and keeps the mapping; other processes can no longer open it.
  void close() noexcept { file_.close(); }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  SharedRegion(Descriptor file, std::size_t bytes);

  Descriptor file_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A region of `bytes` on each host, created by the first of its ranks and mapped by all of them.
///
/// Errors   throws AgreedError (2) if the ranks of a host cannot share memory.
/// Ranks    collective.
SharedRegion share_on_host(Communicator& comm, std::size_t bytes);

/// Allocates from a region, from offset `first` on, behind the last block that is in use. The pages
/// of a block are released with it; its addresses are reused when no later block is in use. Nothing
/// is released once the region has been moved. Not thread-safe.
class RegionMemory final : public std::pmr::memory_resource {
 public:
  RegionMemory(const SharedRegion& region, std::size_t first) : region_(region), first_(first) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  const SharedRegion& region_;
  std::size_t first_;
  std::map<std::size_t, std::size_t> blocks_;  // in use: where each begins, and where it ends
};

/// The ranks of one node. Each rank owns a region that the others map. Peers read buffers from
/// memory(), which is in the region, without another copy. Other spans are copied in pieces through
/// a window of the region.
///
/// Waiting  a spin-wait (see SpinWait), then sleep on a futex; immediate sleep if there are more
///          ranks than cores that they may use.
/// Errors   those of DirectCommunicator; RankLost within milliseconds of the end of any rank's
///          process, and RankLeft of that of its communicator, whichever rank this one waits for.
///          A communicator made by split() reports the ends of its own ranks only.
class SharedCommunicator final : public DirectCommunicator {
 public:
  /// The ranks are those of `wire` with this rank's `place.node`, in order; `place` must be
  /// consistent across ranks. `wire` is used only in the constructor.
  ///
  /// Errors   throws AgreedError (2) on all ranks of `wire` if any cannot map its peers.
  /// Ranks    collective over `wire`.
  SharedCommunicator(Communicator& wire, const Place& place);
  ~SharedCommunicator() override;

  /// The ranks of `old` that are in `group`, which is smaller than all groups of these ranks
  /// before. For use after leave(), once all ranks of `group` have agreed on it; `old` is unusable
  /// afterwards.
  SharedCommunicator(SharedCommunicator& old, const Communicator& group);

  /// Makes the collectives of the other ranks throw RankLost. This rank must call none any more.
  /// Local.
  void leave();

  /// Spins or sleeps as `other` does, of which these ranks are a part. Local.
  void wait_like(const SharedCommunicator& other) noexcept { spins_ = other.spins_; }

  const char* backend() const noexcept override { return "shared"; }
  const Place& place() const noexcept override { return place_; }
  std::pmr::memory_resource& memory() noexcept override { return *memory_; }
  bool reports_losses() const noexcept override { return true; }
  std::unique_ptr<Communicator> living() override;

 private:
  struct Header;
  struct Barrier;

  SharedCommunicator(SharedCommunicator& old, const std::vector<int>& ranks, int group_size);
  void start();

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  Slot& slot(int rank, unsigned turn) noexcept override;
  void barrier(const char* collective) override;
  void wait_for_slots(std::uint64_t round, const char* collective) override;
  void wait_for(int peer, std::uint64_t round, const char* collective) override;
  std::uintptr_t to_address(const std::byte* data) const noexcept override;
  const std::byte* from_address(int peer, std::uintptr_t address) const noexcept override;

  Header& header(int rank) const noexcept;
  Barrier& barrier_of(int rank) const noexcept;
  void arrive();
  std::vector<int> running();
  template <class Predicate>
  std::optional<int> first_rank(Predicate holds) const;
  std::vector<int> ranks_in(const Communicator& group) const;
  bool has_published(int peer, std::uint64_t round) const noexcept;
  bool readable(const std::byte* data) const noexcept;

  Place place_;
  std::vector<SharedRegion> regions_;
  ProcessWatch processes_;  // of all ranks, in their order
  int group_size_;        // on all nodes; each group is smaller than those before, so it names one
  int first_group_size_;  // of the first group over these regions
  std::unique_ptr<RegionMemory> memory_;
  std::byte* window_ = nullptr;
  std::optional<std::pmr::vector<std::byte>> packed_;  // in memory_
  std::uint32_t barriers_ = 0;
  bool spins_ = false;  // false if there are more ranks than cores
  int exceptions_ = 0;  // that were uncaught when this was made
};

}  // namespace lockstep::comm
