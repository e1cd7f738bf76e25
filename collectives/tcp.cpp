#include "lockstep/collectives/tcp.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/collectives/direct.hpp"

namespace lockstep::comm {
namespace {

// Longer data is sent in parts by all ranks, not as a whole by one.
constexpr std::size_t short_bytes = 16384;

using Bytes = std::span<std::byte>;

int index_in(const std::vector<int>& members, int member) {
  return static_cast<int>(std::find(members.begin(), members.end(), member) - members.begin());
}

}  // namespace

TcpCommunicator::TcpCommunicator(Communicator& wire)
    : TcpCommunicator(std::make_shared<TcpMesh>(wire), wire.place()) {
  number_like(wire);
}

TcpCommunicator::TcpCommunicator(const std::shared_ptr<TcpMesh>& mesh, const Place& like)
    : TcpCommunicator(mesh, mesh->members(), like) {}

TcpCommunicator::TcpCommunicator(std::shared_ptr<TcpMesh> mesh, std::vector<int> members,
                                 const Place& like)
    : Communicator(index_in(members, mesh->rank()), static_cast<int>(members.size())),
      mesh_(std::move(mesh)),
      members_(std::move(members)) {
  std::vector<int> nodes;
  nodes.reserve(members_.size());
  for (const int member : members_) nodes.push_back(mesh_->node(member));
  place_ = place_among(nodes, rank(), like.host);
  place_.cores = like.cores;
}

std::unique_ptr<Communicator> TcpCommunicator::living() {
  mesh_->connect_living();
  std::vector<int> ranks;
  for (const int member : mesh_->members()) ranks.push_back(index_in(members_, member));
  std::unique_ptr<TcpCommunicator> made(new TcpCommunicator(mesh_, place_));
  made->number_like(*this, ranks);
  return made;
}

std::unique_ptr<Communicator> TcpCommunicator::do_split(const Subgroup& part) {
  std::vector<int> members;
  members.reserve(part.ranks.size());
  for (const int rank : part.ranks) members.push_back(members_[static_cast<std::size_t>(rank)]);
  return std::unique_ptr<Communicator>(new TcpCommunicator(mesh_, std::move(members), place_));
}

/// Sends send(rank) to each other rank, and receives receive(rank) from it. All ranks pass the same
/// `kind` and `detail`, whose lowest 16 bits are compared.
template <class Send, class Receive>
void TcpCommunicator::transfer(Kind kind, int detail, Send send, Receive receive) {
  transfers_.clear();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // each rank starts at another peer
    transfers_.push_back({members_[static_cast<std::size_t>(peer)], send(peer), receive(peer)});
  }
  mesh_->transfer({++calls_, kind, static_cast<std::uint16_t>(detail)}, transfers_);
}

void TcpCommunicator::do_all_gather(Elements values) {
  const std::size_t block = values.count * width(values.type) / static_cast<std::size_t>(size());
  const auto block_of = [&](int rank) {
    return Bytes(values.data + static_cast<std::size_t>(rank) * block, block);
  };
  transfer(
      Kind::all_gather, 0, [&](int) { return block_of(rank()); }, block_of);
}

// The root sends one part of long data to each rank; then all ranks exchange their parts.
void TcpCommunicator::do_broadcast(Elements values, int root) {
  const Bytes all(values.data, values.count * width(values.type));
  if (all.size() <= short_bytes) {
    return transfer(
        Kind::broadcast, root, [&](int) { return rank() == root ? all : Bytes(); },
        [&](int peer) { return peer == root ? all : Bytes(); });
  }
  const auto part_for = [&](int rank) {
    const Range part = part_of(all.size(), rank, size());
    return all.subspan(part.begin, part.size());
  };
  transfer(
      Kind::broadcast, root, [&](int peer) { return rank() == root ? part_for(peer) : Bytes(); },
      [&](int peer) { return peer == root ? part_for(rank()) : Bytes(); });
  transfer(
      Kind::broadcast, root, [&](int peer) { return peer == root ? Bytes() : part_for(rank()); },
      [&](int peer) { return rank() == root ? Bytes() : part_for(peer); });
}

// Each rank reduces one part of long data.
void TcpCommunicator::do_all_reduce(Elements values, Op op) {
  const std::size_t bytes = width(values.type);
  const Bytes all(values.data, values.count * bytes);
  const bool is_short = all.size() <= short_bytes;
  const auto part_for = [&](int rank) {
    if (is_short) return all;
    const Range part = part_of(values.count, rank, size());
    return all.subspan(part.begin * bytes, part.size() * bytes);
  };
  const Bytes mine = part_for(rank());
  inputs_.resize(mine.size() * static_cast<std::size_t>(size()));
  const auto input = [&](int rank) {
    return Bytes(inputs_).subspan(mine.size() * static_cast<std::size_t>(rank), mine.size());
  };
  transfer(Kind::all_reduce, static_cast<int>(op), part_for, input);
  std::vector<const std::byte*> inputs;
  inputs.reserve(static_cast<std::size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    inputs.push_back(peer == rank() ? mine.data() : input(peer).data());
  }
  reduce_in_rank_order(inputs, values.type, op, {0, mine.size() / bytes}, mine.data());
  if (is_short) return;
  transfer(
      Kind::all_reduce, static_cast<int>(op), [&](int) { return mine; }, part_for);
}

void TcpCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  const std::size_t block = receive.count * width(receive.type) / static_cast<std::size_t>(size());
  const auto at = [&](int rank) { return static_cast<std::size_t>(rank) * block; };
  std::memcpy(receive.data + at(rank()), send + at(rank()), block);
  transfer(
      Kind::all_to_all, 0, [&](int peer) { return std::span(send + at(peer), block); },
      [&](int peer) { return Bytes(receive.data + at(peer), block); });
}

void TcpCommunicator::do_shift(const std::byte* send, Elements receive) {
  const std::size_t bytes = receive.count * width(receive.type);
  if (size() == 1) {
    std::memcpy(receive.data, send, bytes);
    return;
  }
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  transfer(
      Kind::shift, 0, [&](int peer) { return std::span(send, peer == next ? bytes : 0); },
      [&](int peer) { return Bytes(receive.data, peer == previous ? bytes : 0); });
}

}  // namespace lockstep::comm
