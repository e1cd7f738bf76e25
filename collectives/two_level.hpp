// Communicator for several nodes: shared memory within a node, another transport between leaders.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/collectives/shared.hpp"

namespace lockstep::comm {
/// All ranks of `wire`. Data of another node is sent once to the leader of a node (its lowest
/// rank); the node's other ranks read it through shared memory.
///
/// Nodes may have different numbers of ranks, in any order.
/// Sums     within a node in rank order, then between leaders with all_reduce of `wire`.
class TwoLevelCommunicator final : public Communicator {
 public:
  /// `wire` must outlive this object; `place` must be consistent across its ranks.
  ///
  /// Errors   throws AgreedError (2) on all ranks if a node's ranks cannot share memory.
  /// Ranks    collective over `wire`.
  TwoLevelCommunicator(Communicator& wire, const Place& place);

  /// The same; this object owns `wire`.
  TwoLevelCommunicator(std::unique_ptr<Communicator> wire, const Place& place);

  const char* backend() const noexcept override {
    return wire_.reports_losses() ? "shared+tcp" : "shared+mpi";
  }
  bool reports_losses() const noexcept override { return wire_.reports_losses(); }
  std::unique_ptr<Communicator> living() override;

  const Place& place() const noexcept override { return local_.place(); }
  std::pmr::memory_resource& memory() noexcept override { return local_.memory(); }

 private:
  /// Consecutive ranks of one node.
  struct Run {
    int node;
    std::size_t first;
    std::size_t count;
  };

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  /// For living(): the ranks of `wire`, which are some of those of `old`.
  TwoLevelCommunicator(std::unique_ptr<Communicator> wire, TwoLevelCommunicator& old);

  void connect_leaders(std::span<const std::uint64_t> nodes);
  void gather_on_node(Elements blocks, const Run& run);

  std::unique_ptr<Communicator> own_wire_;  // null: the caller owns it
  Communicator& wire_;
  SharedCommunicator local_;
  std::unique_ptr<Communicator> leaders_;  // null on ranks that are not leaders
  std::vector<Run> runs_;                  // in rank order
  std::vector<int> node_of_;
  std::vector<int> local_rank_of_;
  bool equal_runs_ = false;  // one run on each node, of equal lengths
  std::pmr::vector<std::byte> packed_{&local_.memory()};
};

}  // namespace lockstep::comm
