#include "lockstep/collectives/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/base/process.hpp"

namespace lockstep::comm {

RankLeft::RankLeft(const std::string& collective, int world_rank)
    : CommError(collective + ": rank " + std::to_string(world_rank) +
                " has left the group; every rank has to call every collective, in one order") {}

double Communicator::recorded_seconds() const noexcept {
  return recorder_ == nullptr ? 0 : recorder_->collective_seconds();
}

void Communicator::note_progress() const noexcept {
  if (recorder_ != nullptr) recorder_->touch();
}

void Communicator::Recorded::begin(const char* name, std::size_t bytes) noexcept {
  recorder_->begin(name, bytes);
}

void Communicator::Recorded::end() noexcept { recorder_->end(); }

int own_cores(const Place& place) {
  const int all = place.cores > 0 ? place.cores : machine_cores();
  return std::max(1, std::min(bound_cores(), all / std::max(1, place.local_ranks)));
}

Place place_among(const std::vector<int>& nodes, int rank, const std::string& host) {
  Place place{.host = host, .nodes = 0, .local_ranks = 0};
  const int node = nodes[static_cast<std::size_t>(rank)];
  for (auto other = nodes.begin(); other != nodes.end(); ++other) {
    const bool first = std::find(nodes.begin(), other, *other) == other;
    if (first && *other == node) place.node = place.nodes;
    if (first) ++place.nodes;
    if (*other != node) continue;
    if (other - nodes.begin() < rank) ++place.local_rank;
    ++place.local_ranks;
  }
  return place;
}

std::vector<int> Communicator::world_ranks() const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) ranks.push_back(world_rank(rank));
  return ranks;
}

void Communicator::require_blocks(const char* collective, std::size_t count) const {
  if (count % static_cast<std::size_t>(size_) != 0) {
    throw std::invalid_argument(std::string(collective) + ": " + std::to_string(count) +
                                " elements are not one equal block for each of " +
                                std::to_string(size_) + " ranks");
  }
}

void Communicator::require_equal_lengths(const char* collective, std::size_t send,
                                         std::size_t receive) {
  if (send == receive) return;
  throw std::invalid_argument(std::string(collective) + ": " + std::to_string(send) +
                              " elements to send, but " + std::to_string(receive) + " to receive");
}

void Communicator::all_gather(Buffers buffers) {
  std::vector<std::span<std::byte>> filled;
  filled.reserve(buffers.size());
  for (const auto& buffer : buffers) {
    require_blocks("all_gather", buffer.size());
    if (!buffer.empty()) filled.push_back(buffer);
  }
  if (size_ == 1 || filled.empty()) return note_progress();
  std::size_t bytes = 0;
  for (const auto& buffer : filled) bytes += buffer.size();
  const Recorded recorded(recorder_, "all_gather", bytes);
  if (filled.size() == 1) return do_all_gather({filled[0].data(), filled[0].size(), Type::u8});
  do_grouped_all_gather(filled);
}

void Communicator::gather_packed(Buffers buffers, std::pmr::vector<std::byte>& packed) {
  constexpr std::size_t longest = 65536;  // copying more takes longer than another message
  std::vector<std::span<std::byte>> few;
  few.reserve(buffers.size());
  for (const auto& buffer : buffers) {
    if (buffer.size() <= longest) {
      few.push_back(buffer);
    } else {
      do_all_gather({buffer.data(), buffer.size(), Type::u8});
    }
  }
  if (few.empty()) return;
  const std::size_t each = packed_bytes(few);
  const std::size_t bytes = each * static_cast<std::size_t>(size_);
  if (packed.size() < bytes) packed.resize(bytes);
  const auto at = [&](int rank) { return packed.data() + static_cast<std::size_t>(rank) * each; };
  pack(few, rank_, at(rank_));
  do_all_gather({packed.data(), bytes, Type::u8});
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) unpack(few, rank, at(rank));
  }
}

std::size_t Communicator::packed_bytes(Buffers buffers) const noexcept {
  std::size_t bytes = 0;
  for (const auto& buffer : buffers) bytes += buffer.size() / static_cast<std::size_t>(size_);
  return bytes;
}

void Communicator::pack(Buffers buffers, int rank, std::byte* packed) const noexcept {
  for (const auto& buffer : buffers) {
    const std::size_t block = buffer.size() / static_cast<std::size_t>(size_);
    std::memcpy(packed, buffer.data() + static_cast<std::size_t>(rank) * block, block);
    packed += block;
  }
}

void Communicator::unpack(Buffers buffers, int rank, const std::byte* packed) const noexcept {
  for (const auto& buffer : buffers) {
    const std::size_t block = buffer.size() / static_cast<std::size_t>(size_);
    std::memcpy(buffer.data() + static_cast<std::size_t>(rank) * block, packed, block);
    packed += block;
  }
}

void Communicator::require_root(int root) const {
  if (root >= 0 && root < size_) return;
  throw std::invalid_argument("broadcast: root " + std::to_string(root) + " is not a rank, of " +
                              std::to_string(size_));
}

std::unique_ptr<Communicator> Communicator::do_split(const Subgroup& /*part*/) {
  throw CommError(std::string(backend()) + ": this communicator cannot be split");
}

std::unique_ptr<Communicator> Communicator::living() {
  throw CommError(std::string(backend()) + ": this communicator does not report lost ranks");
}

std::unique_ptr<Communicator> Communicator::split(int color) {
  std::vector<std::uint64_t> colors(static_cast<std::size_t>(size_));
  colors[static_cast<std::size_t>(rank_)] = static_cast<std::uint64_t>(color);
  all_gather(std::span(colors));
  return split(std::span<const std::uint64_t>(colors));
}

std::unique_ptr<Communicator> Communicator::split(std::span<const std::uint64_t> colors) {
  if (colors.size() != static_cast<std::size_t>(size_)) {
    throw std::invalid_argument("split: " + std::to_string(colors.size()) + " colors of " +
                                std::to_string(size_) + " ranks");
  }
  const auto color_of = [&](int rank) { return colors[static_cast<std::size_t>(rank)]; };
  Subgroup part;
  for (int rank = 0; rank < size_; ++rank) {
    if (color_of(rank) != color_of(rank_)) continue;
    if (rank == rank_) part.rank = part.size();
    part.ranks.push_back(rank);
  }
  const bool all_alone = std::set(colors.begin(), colors.end()).size() == colors.size();
  auto made = all_alone ? nullptr : do_split(part);
  if (part.size() == 1) made = std::make_unique<SelfCommunicator>();
  made->world_ranks_.clear();  // of a communicator that another one has split
  for (const int rank : part.ranks) made->world_ranks_.push_back(world_rank(rank));
  made->own_cores_ = own_cores();
  made->recorder_ = recorder_;
  return made;
}

SelfCommunicator::SelfCommunicator()
    : Communicator(0, 1), place_{.host = host_name(), .cores = bound_cores()} {}

// Never called: Communicator returns early for one rank.
void SelfCommunicator::do_all_reduce(Elements, Op) {}
void SelfCommunicator::do_broadcast(Elements, int) {}
void SelfCommunicator::do_all_gather(Elements) {}

void SelfCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  std::memcpy(receive.data, send, receive.count * width(receive.type));
}

void SelfCommunicator::do_shift(const std::byte* send, Elements receive) {
  do_all_to_all(send, receive);
}

}  // namespace lockstep::comm
