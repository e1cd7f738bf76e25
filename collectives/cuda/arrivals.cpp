#include "collectives/cuda/arrivals.hpp"

#include <algorithm>

#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::comm {

/// Ranks write often, so each has a cache line of its own.
struct Arrivals::Entry {
  alignas(64) std::atomic<std::uint64_t> count;
  std::atomic<bool> left;
};

Arrivals::Arrivals(Communicator& host) : host_(host.place().host), alone_(host.place().nodes == 1) {
  const std::string node = std::to_string(host.place().node) + ' ';
  const bool leads = host.place().local_rank == 0;
  if (leads) {
    try {
      region_.emplace(SharedRegion::create(static_cast<std::size_t>(host.size()) * sizeof(Entry)));
    } catch (const ConfigError&) {  // told below
    }
  }
  const auto all = gather_text(host, node + (region_ ? region_->address() : ""));
  std::string address;
  for (int rank = 0; rank < host.size(); ++rank) {
    const std::string& text = all[static_cast<std::size_t>(rank)];
    if (!text.starts_with(node)) continue;
    if (rank == host.rank()) mine_ = ranks_.size();
    ranks_.push_back(host.world_rank(rank));
    if (text.size() > node.size()) address = text.substr(node.size());
  }
  if (!host.all_agree(map(host, address))) region_.reset();
  if (region_) region_->close();
}

Arrivals::~Arrivals() {
  if (region_) entry(mine_).left = true;
}

bool Arrivals::map(Communicator& host, const std::string& leaders_address) {
  if (region_ || host.size() == 1) return true;
  if (leaders_address.empty()) return false;
  try {
    region_.emplace(SharedRegion::open(leaders_address));
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

Arrivals::Entry& Arrivals::entry(std::size_t local_rank) const noexcept {
  return reinterpret_cast<Entry*>(region_->data())[local_rank];
}

void Arrivals::come(std::uint64_t count) noexcept {
  if (region_) entry(mine_).count = count;
}

std::string Arrivals::lagging(std::uint64_t count) const {
  if (!region_) return "which rank lags is not known: ranks of " + host_ + " cannot share memory";
  std::string text;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const std::uint64_t theirs = entry(i).count;
    const bool left = entry(i).left;
    if (theirs >= count && !left) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(ranks_[i]) + " on " + host_ +
            (left ? " has left: it came to wait " : " lags: it came to wait ") +
            std::to_string(theirs) + ", this is " + std::to_string(count);
  }
  if (!text.empty()) return text;
  const std::string here =
      "all " + std::to_string(ranks_.size()) + " ranks of " + host_ + " have come to it: ";
  return here + (alone_ ? "a device, or the link between two, is stuck"
                        : "the rank that lags is on another host, or a link is stuck");
}

}  // namespace lockstep::comm
