#include "lockstep/collectives/peer_watch.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep::comm {
namespace {

constexpr std::size_t max_entries = 64;  // of a message: fits a packet of any network

struct Message {
  std::array<std::uint64_t, 2> key;
  std::uint64_t rank;
  std::uint64_t entries;
  std::array<CollectiveCounts::Entry, max_entries> counts;
};

}  // namespace

CollectiveCount& CollectiveCounts::add(std::uint64_t id) {
  const std::scoped_lock lock(mutex_);
  return all_.emplace_back(id);
}

std::vector<CollectiveCounts::Entry> CollectiveCounts::all() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Entry> entries;
  for (const CollectiveCount& count : all_) entries.push_back({count.id(), count.calls()});
  return entries;
}

PeerWatch::PeerWatch(Communicator& wire, std::shared_ptr<const CollectiveCounts> counts,
                     std::function<void(const RankLeft&)> on_left)
    : rank_(wire.rank()),
      counts_(std::move(counts)),
      on_left_(std::move(on_left)),
      key_(shared_key(wire)) {
  together(wire, [&] { socket_ = Socket::for_datagrams(); });
  contacts_ = share_contacts(wire, socket_.port());
  together(wire, [&] {
    thread_ = start_thread("that detects ranks that have finished",
                           [this](const std::stop_token& stop) { run(stop); });
  });
}

void PeerWatch::tell() const {
  const auto all = counts_->all();
  for (std::size_t first = 0; first < all.size(); first += max_entries) {
    Message message = {.key = key_,
                       .rank = static_cast<std::uint64_t>(rank_),
                       .entries = std::min(max_entries, all.size() - first),
                       .counts = {}};
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), message.entries,
                message.counts.begin());
    for (std::size_t peer = 0; peer < contacts_.size(); ++peer) {
      if (peer == static_cast<std::size_t>(rank_)) continue;
      for (const auto& address : contacts_[peer].addresses) {
        send_datagram(address, contacts_[peer].port, std::as_bytes(std::span(&message, 1)));
      }
    }
  }
}

void PeerWatch::run(const std::stop_token& stop) {
  do {
    receive();
    if (const auto left = find_left()) return on_left_(*left);
  } while (sleep_unless_stopped(stop, std::chrono::milliseconds(100)));
}

void PeerWatch::receive() {
  Message message;
  for (;;) {
    const ssize_t size = ::recv(socket_.descriptor(), &message, sizeof message, 0);
    if (size < 0) return;
    const bool is_ours = size == sizeof message && message.key == key_ &&
                         message.rank < contacts_.size() && message.entries <= max_entries;
    if (!is_ours) continue;
    Calls& calls = finished_[static_cast<int>(message.rank)];
    for (std::size_t i = 0; i < message.entries; ++i) {
      calls[message.counts[i].id] = message.counts[i].calls;
    }
  }
}

/// The lowest rank that has finished without the collective in which this rank is.
std::optional<RankLeft> PeerWatch::find_left() const {
  const CollectiveCount* const mine = counts_->current();
  if (mine == nullptr) return std::nullopt;
  for (const auto& [rank, calls] : finished_) {
    const auto theirs = calls.find(mine->id());
    if (theirs != calls.end() && theirs->second < mine->calls()) {
      return RankLeft(mine->name(), rank);
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::comm
