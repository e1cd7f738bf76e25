// TcpCommunicator: ranks are processes on any hosts, over TCP. It reports lost ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/tcp_mesh.hpp"

namespace lockstep::comm {
/// The ranks of a TcpMesh, or some of them.
///
/// Open MPI 4 waits for ever for a rank that has ended; this communicator is for runs that go on
/// without it, between hosts. On a fast fabric it is slower than MPI.
///
/// Sums     in rank order, so their bits depend only on the number of ranks.
/// Errors   RankLost when any rank of the mesh has ended, whichever rank this one waits for; within
///          some 3 seconds where a host does not answer any more. CommError where counts or kinds
///          of calls differ between ranks.
class TcpCommunicator final : public Communicator {
 public:
  /// The ranks of `wire`, which is used only in the constructor.
  ///
  /// Errors   throws AgreedError (2) on all ranks if they cannot connect.
  /// Ranks    collective over `wire`.
  explicit TcpCommunicator(Communicator& wire);

  const char* backend() const noexcept override { return "tcp"; }
  const Place& place() const noexcept override { return place_; }
  bool reports_losses() const noexcept override { return true; }
  std::unique_ptr<Communicator> living() override;

 private:
  TcpCommunicator(const std::shared_ptr<TcpMesh>& mesh, const std::string& host);
  TcpCommunicator(std::shared_ptr<TcpMesh> mesh, std::vector<int> members, const std::string& host);

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  enum class Kind : std::uint8_t { all_reduce, broadcast, all_gather, all_to_all, shift };
  template <class Send, class Receive>
  void transfer(Kind kind, int detail, Send send, Receive receive);

  std::shared_ptr<TcpMesh> mesh_;  // also of the communicators that split() makes
  std::vector<int> members_;       // of the mesh, by rank
  Place place_;
  std::uint64_t calls_ = 0;
  std::vector<TcpMesh::Transfer> transfers_;
  std::vector<std::byte> inputs_;  // of all_reduce
  std::pmr::vector<std::byte> packed_;
};

}  // namespace lockstep::comm
