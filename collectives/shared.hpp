// Ranks as processes of one machine that read each other's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "collectives/direct.hpp"

namespace lockstep::comm {
// Memory of one process that others of its machine read: a file without a name, and its mapping.

/// A mapping of zeroed bytes that this process made, or that a peer made and this one opened.
///
/// The bytes are those of a memfd: no name in the file system, nothing left behind by a crash, no
/// limit of /dev/shm, and no memory taken before a page is touched. Unmaps in its destructor.
/// Errors   ConfigError with the system's reason.
class SharedRegion {
 public:
  /// What a peer needs to open a region, as a line of text.
  static SharedRegion create(std::size_t bytes);

  /// Opens what `address` of another process of this machine names, which must still be open there.
  static SharedRegion open(const std::string& address);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&&) = delete;
  ~SharedRegion();

  /// What open() wants. Valid until close().
  std::string address() const;

  /// Forgets the file, keeps the mapping: nobody can open it any more.
  void close() noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  SharedRegion(int descriptor, std::size_t bytes);

  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Hands out the bytes of a region from `first` on, in order; takes back the last of them at once,
/// and the pages of all others. One thread.
class RegionMemory final : public std::pmr::memory_resource {
 public:
  RegionMemory(const SharedRegion& region, std::size_t first) : region_(region), used_(first) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  const SharedRegion& region_;
  std::size_t used_;
};

/// The ranks of one node. Each owns a region of memory that all others map; memory() hands it out,
/// and what lies there is read by the peers without another copy. Other spans travel through a
/// window of the region, a piece at a time.
///
/// Waiting  some 10 us of pauses, then the scheduler is asked, then sleep (a futex between
///          processes): ranks may outnumber the cores.
/// Errors   CommError where a peer's process has ended, besides those of DirectCommunicator.
class SharedCommunicator final : public DirectCommunicator {
 public:
  /// Ranks are those of `wire` that have this rank's `place.node`, in order; `place` must be
  /// consistent over all of them. `wire` is used in the constructor alone.
  ///
  /// Errors   throws AgreedError (2) on all ranks of `wire` where any cannot map its peers.
  /// Ranks    collective over `wire`.
  SharedCommunicator(Communicator& wire, const Place& place);
  ~SharedCommunicator() override;

  const char* backend() const noexcept override { return "shared"; }
  const Place& place() const noexcept override { return place_; }
  std::pmr::memory_resource& memory() noexcept override { return *memory_; }

 private:
  struct Header;

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  Slot& slot(int rank, unsigned turn) noexcept override;
  void meet(const char* collective) override;
  std::uintptr_t locate(const std::byte* data) const noexcept override;
  const std::byte* find(int peer, std::uintptr_t where) const noexcept override;

  Header& header(int rank) const noexcept;
  void wait_for(int peer, const char* collective);
  bool readable(const std::byte* data) const noexcept;

  Place place_;
  std::vector<int> ranks_;  // of `wire`, for messages
  std::vector<SharedRegion> regions_;
  std::unique_ptr<RegionMemory> memory_;
  std::byte* window_ = nullptr;
  std::optional<std::pmr::vector<std::byte>> packed_;  // in memory_
  std::uint32_t meetings_ = 0;
  int spins_ = 0;
};

}  // namespace lockstep::comm
