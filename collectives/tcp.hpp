// TcpCommunicator: ranks are processes on any hosts, over TCP. It reports lost ranks. TcpMesh: the
// connections between them, and agreement on the processes that are left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/socket.hpp"

namespace lockstep::comm {

/// Every process has a listening socket for as long as it runs, and two connections with each other
/// member: it opens one and sends on it, and receives on one that the member opens.
///
/// Groups are numbered, and every connection belongs to one group. A process that leaves a group,
/// because a member is lost, closes its connections, and so all others leave it too.
/// connect_living() then makes the connections of the next group. Only connecting to a listening
/// socket decides whether a process lives: the system refuses if the process has ended, gives no
/// answer if the host is lost, and accepts while the process is busy or stopped.
///
/// Silence   the system probes a connection on which nothing is received (keepalive), and ends it
///           after 3 seconds without an answer. A process never sends on the connection on which it
///           receives, so a full window or a retransmission does not delay the probes.
/// Security  a connection begins with a random key that the ranks share over `wire`. Data is not
///           encrypted: as with MPI, the network between hosts must be trusted.
/// Threads   one, which created it.
class TcpMesh {
 public:
  /// Connects all ranks of `wire`, which is used only here.
  ///
  /// Errors   throws AgreedError (2) on all ranks if a rank cannot open a socket or cannot reach
  ///          another one.
  /// Ranks    collective over `wire`.
  explicit TcpMesh(Communicator& wire);

  /// Notifies the other members that this one has ended properly.
  ~TcpMesh();
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;

  /// The rank of this process in `wire`. Local.
  int rank() const noexcept { return rank_; }

  /// The members, this process among them: ranks of `wire`, in order. Local.
  const std::vector<int>& members() const noexcept { return members_; }

  /// The node of a rank of `wire`, as its Place::node. Local.
  int node(int rank) const { return peers_[static_cast<std::size_t>(rank)].contact.node; }

  /// Leaves the group, and makes a new one of the members that live and reach each other, all of
  /// which have then agreed on it. Members that end in the meantime are left out; those that end
  /// later are reported by transfer().
  ///
  /// Ranks    collective over the living members, each of which calls it after RankLost.
  void connect_living();

  /// Data to send to a member and to receive from it; either may be empty.
  struct Transfer {
    int member;  ///< rank of `wire`
    std::span<const std::byte> send;
    std::span<std::byte> receive;
  };

  enum class Kind : std::uint8_t { all_reduce, broadcast, all_gather, all_to_all, shift };

  /// A collective, as both sides of a transfer compare it.
  struct Call {
    std::uint64_t number;  ///< from 1, in the communicator
    Kind kind;
    std::uint16_t detail;  ///< of all_reduce the Op, of broadcast the root
  };

  /// Sends and receives all of `transfers`, at most one for each member, at the same time.
  ///
  /// Both sides of a transfer pass the same `call`.
  /// Errors   throws RankLost if any member is lost, also one that is not in `transfers`, before
  ///          all of them are done; CommError if `call` or the lengths differ.
  void transfer(const Call& call, std::span<const Transfer> transfers);

 private:
  struct Peer {
    Contact contact;  // after the first connection with the one address that worked
    Socket out = {};
    Socket in = {};
    std::uint64_t in_number = 0;  // of the group that `in` belongs to
  };
  struct Hello;
  struct Guest;
  class Attempt;
  class Stream;

  void connect(std::vector<int> candidates);
  void wait(std::span<const Stream> streams);
  Peer& peer(int member) { return peers_[static_cast<std::size_t>(member)]; }

  int rank_;
  std::array<std::uint64_t, 2> key_{};
  Socket listener_;
  std::vector<Socket> ignored_;  // opened by processes that are no longer members
  std::vector<Guest> guests_;    // kept between attempts: they may belong to the next one
  std::vector<Peer> peers_;      // by rank of `wire`
  std::vector<int> members_;
  std::uint64_t number_ = 0;     // of the group
  bool may_be_cut_off_ = false;  // from members that do not answer
};

/// The ranks of a TcpMesh, or some of them.
///
/// Open MPI 4 waits for ever for a rank that has ended; this communicator is for runs that go on
/// without it, between hosts. On a fast fabric it is slower than MPI.
///
/// Sums     in rank order, so their bits depend only on the number of ranks.
/// Errors   RankLost when any rank of the mesh has ended, whichever rank this one waits for; within
///          some 3 seconds where a host does not answer any more. CommError where counts or kinds
///          of calls differ between ranks that exchange data: after broadcasts with different roots
///          it is often the next call that is reported.
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
  TcpCommunicator(const std::shared_ptr<TcpMesh>& mesh, const Place& like);
  TcpCommunicator(std::shared_ptr<TcpMesh> mesh, std::vector<int> members, const Place& like);

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  using Kind = TcpMesh::Kind;
  template <class Send, class Receive>
  void transfer(Kind kind, int detail, Send send, Receive receive);

  std::shared_ptr<TcpMesh> mesh_;  // also of the communicators that split() makes
  std::vector<int> members_;       // of the mesh, by rank
  Place place_;
  std::uint64_t calls_ = 0;
  std::vector<TcpMesh::Transfer> transfers_;
  std::vector<std::byte> inputs_;  // of all_reduce
};

}  // namespace lockstep::comm
