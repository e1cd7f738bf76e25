#include "lockstep/collectives/two_level.hpp"

#include <algorithm>
#include <map>

#include "lockstep/collectives/agreement.hpp"

namespace lockstep::comm {
namespace {

Elements part(Elements values, std::size_t first, std::size_t count) {
  return {values.data + first * width(values.type), count, values.type};
}

void broadcast_over(Communicator& comm, Elements values, int root) {
  with_span(values, [&](auto span) { comm.broadcast(span, root); });
}

void gather_over(Communicator& comm, Elements values) {
  with_span(values, [&](auto span) { comm.all_gather(span); });
}

}  // namespace

TwoLevelCommunicator::TwoLevelCommunicator(Communicator& wire, const Place& place)
    : Communicator(wire.rank(), wire.size()), wire_(wire), local_(wire, place) {
  const auto nodes = gather_number(wire_, static_cast<std::uint64_t>(place.node));
  number_like(wire_);
  connect_leaders(nodes);
}

TwoLevelCommunicator::TwoLevelCommunicator(std::unique_ptr<Communicator> wire, const Place& place)
    : TwoLevelCommunicator(*wire, place) {
  own_wire_ = std::move(wire);
}

TwoLevelCommunicator::TwoLevelCommunicator(std::unique_ptr<Communicator> wire,
                                           TwoLevelCommunicator& old)
    : Communicator(wire->rank(), wire->size()),
      own_wire_(std::move(wire)),
      wire_(*own_wire_),
      local_(old.local_, wire_) {
  number_like(wire_);
  std::map<int, std::uint64_t> node_of_world_rank;
  for (int r = 0; r < old.size(); ++r) {
    node_of_world_rank[old.wire_.world_rank(r)] =
        static_cast<std::uint64_t>(old.node_of_[static_cast<std::size_t>(r)]);
  }
  std::vector<std::uint64_t> nodes;
  nodes.reserve(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) nodes.push_back(node_of_world_rank.at(wire_.world_rank(r)));
  connect_leaders(nodes);
}

/// The rest of every constructor, after the ranks of a node share memory. `nodes`: a number for
/// each rank, the same for those of a node. Over a wire that reports losses it sends nothing, so
/// that no rank which is lost now can end living(). Collective.
void TwoLevelCommunicator::connect_leaders(std::span<const std::uint64_t> nodes) {
  std::map<std::uint64_t, int> node_numbers;  // in the order of their first ranks, as Place::node
  std::vector<int> ranks_on;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    const auto [found, is_new] =
        node_numbers.try_emplace(nodes[r], static_cast<int>(node_numbers.size()));
    if (is_new) ranks_on.push_back(0);
    node_of_.push_back(found->second);
    local_rank_of_.push_back(ranks_on[static_cast<std::size_t>(found->second)]++);
    const bool continues = r > 0 && node_of_[r] == node_of_[r - 1];
    if (!continues) runs_.push_back({node_of_[r], r, 0});
    ++runs_.back().count;
  }
  std::vector<std::uint64_t> colors;
  colors.reserve(local_rank_of_.size());
  for (const int local_rank : local_rank_of_) colors.push_back(local_rank == 0 ? 0 : 1);
  leaders_ = wire_.split(std::span<const std::uint64_t>(colors));
  if (place().local_rank != 0) leaders_.reset();
  equal_runs_ = static_cast<int>(runs_.size()) == place().nodes &&
                std::all_of(runs_.begin(), runs_.end(),
                            [&](const Run& run) { return run.count == runs_[0].count; });
}

void TwoLevelCommunicator::do_all_reduce(Elements values, Op op) {
  with_span(values, [&](auto span) {
    local_.all_reduce(span, op);
    if (leaders_) leaders_->all_reduce(span, op);
    local_.broadcast(span);
  });
}

void TwoLevelCommunicator::do_broadcast(Elements values, int root) {
  const int node = node_of_[static_cast<std::size_t>(root)];
  const bool home = place().node == node;
  if (home) broadcast_over(local_, values, local_rank_of_[static_cast<std::size_t>(root)]);
  if (leaders_) broadcast_over(*leaders_, values, node);
  if (!home) broadcast_over(local_, values, 0);
}

/// Gathers the blocks of `run` on the ranks of its node; `blocks` holds the blocks of all ranks.
void TwoLevelCommunicator::gather_on_node(Elements blocks, const Run& run) {
  const std::size_t block = blocks.count / static_cast<std::size_t>(size());
  const bool whole = run.count == static_cast<std::size_t>(local_.size());
  if (whole) return gather_over(local_, part(blocks, run.first * block, run.count * block));
  for (std::size_t r = run.first; r < run.first + run.count; ++r) {
    broadcast_over(local_, part(blocks, r * block, block), local_rank_of_[r]);
  }
}

void TwoLevelCommunicator::do_all_gather(Elements values) {
  const std::size_t block = values.count / static_cast<std::size_t>(size());
  for (const Run& run : runs_) {
    if (run.node == place().node) gather_on_node(values, run);
  }
  if (leaders_ && equal_runs_) {
    gather_over(*leaders_, values);
  } else if (leaders_) {
    for (const Run& run : runs_) {
      broadcast_over(*leaders_, part(values, run.first * block, run.count * block), run.node);
    }
  }
  for (const Run& run : runs_) {
    if (run.node == place().node) continue;
    broadcast_over(local_, part(values, run.first * block, run.count * block), 0);
  }
}

void TwoLevelCommunicator::do_grouped_all_gather(Buffers buffers) {
  gather_packed(buffers, packed_);
}

// Every block has one receiver, so sending through leaders has no advantage.
void TwoLevelCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  with_span(receive, [&]<class T>(std::span<T> span) {
    wire_.all_to_all(std::span<const T>(reinterpret_cast<const T*>(send), span.size()), span);
  });
}

void TwoLevelCommunicator::do_shift(const std::byte* send, Elements receive) {
  with_span(receive, [&]<class T>(std::span<T> span) {
    wire_.shift(std::span<const T>(reinterpret_cast<const T*>(send), span.size()), span);
  });
}

std::unique_ptr<Communicator> TwoLevelCommunicator::do_split(const Subgroup& part) {
  auto wire = wire_.split(part.ranks.front());
  if (part.size() == 1) return wire;
  std::vector<int> nodes;
  nodes.reserve(part.ranks.size());
  for (const int rank : part.ranks) nodes.push_back(node_of_[static_cast<std::size_t>(rank)]);
  const Place where = place_among(nodes, part.rank, place().host);
  if (where.nodes == part.size()) return wire;
  if (where.nodes == 1) {
    auto made = std::make_unique<SharedCommunicator>(*wire, where);
    made->wait_like(local_);
    return made;
  }
  auto made = std::make_unique<TwoLevelCommunicator>(std::move(wire), where);
  made->local_.wait_like(local_);
  return made;
}

std::unique_ptr<Communicator> TwoLevelCommunicator::living() {
  local_.leave();  // this node's others may wait for this rank alone
  leaders_.reset();
  std::pmr::vector<std::byte>(packed_.get_allocator()).swap(packed_);  // it is in a region
  auto wire = wire_.living();
  // No rank was lost: the network was silent. Barriers that were used cannot begin again, so new
  // regions are mapped. A rank that is lost meanwhile ends the job.
  if (wire->size() == size()) {
    return std::make_unique<TwoLevelCommunicator>(std::move(wire), place());
  }
  return std::unique_ptr<Communicator>(new TwoLevelCommunicator(std::move(wire), *this));
}

}  // namespace lockstep::comm
