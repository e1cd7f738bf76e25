// Ranks as processes of one machine that read each other's memory.
#pragma once

#include <memory>
#include <vector>

#include "collectives/direct_communicator.hpp"
#include "collectives/shared_region.hpp"

namespace lockstep::comm {

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
  std::uint32_t meetings_ = 0;
  int spins_ = 0;
};

}  // namespace lockstep::comm
