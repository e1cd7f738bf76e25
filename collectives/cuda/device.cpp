#include "lockstep/collectives/cuda/device.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep::comm {
namespace {

constexpr std::size_t max_named = 8;

/// The number of visible devices.
int visible_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();  // clears the error
  std::string why = "no CUDA device is visible";
  if (error != cudaSuccess) why += std::string(" (") + cudaGetErrorString(error) + ")";
  throw ConfigError(why,
                    "ask the launcher for devices (Slurm: --gpus-per-task=1), look at "
                    "CUDA_VISIBLE_DEVICES and nvidia-smi, or use `device=cpu`");
}

int choose(int visible, const Place& place, bool share) {
  if (visible == 1) return 0;
  if (share) return place.local_rank % visible;
  if (place.local_ranks <= visible) return place.local_rank;
  throw ConfigError(
      counted(static_cast<std::uint64_t>(place.local_ranks), "rank") + " on " + place.host +
          ", but only " + std::to_string(visible) + " devices are visible",
      "start no more ranks on a host than it has devices, or pass `share_device`, which is slow");
}

DeviceOfRank take(int device) {
  cuda::select_device(device);
  cudaDeviceProp properties = {};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return {.device = device, .bus_id = cuda::pci_bus_id(device), .name = properties.name};
}

/// One line for each device that several ranks use.
std::vector<std::string> shared_devices(Communicator& host, const DeviceOfRank& mine) {
  std::map<std::pair<std::uint64_t, std::string>, std::vector<int>> ranks_of;  // names may repeat
  const std::string text =
      host.place().host + " take the same device, " + mine.bus_id + " (" + mine.name + ")";
  const auto all = gather_text(host, text);
  const auto nodes = gather_number(host, static_cast<std::uint64_t>(host.place().node));
  for (int rank = 0; rank < host.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    ranks_of[{nodes[at], all[at]}].push_back(host.world_rank(rank));
  }
  std::vector<std::string> lines;
  for (const auto& [device, ranks] : ranks_of) {
    if (ranks.size() > 1) lines.push_back(ranks_text(ranks) + " on " + device.second);
  }
  return lines;
}

}  // namespace

DeviceOfRank choose_device(Communicator& host, bool share) {
  DeviceOfRank mine;
  together(host, [&] { mine = take(choose(visible_devices(), host.place(), share)); });
  const auto lines = shared_devices(host, mine);
  mine.shared = !lines.empty();
  if (!mine.shared || share) return mine;
  std::string text = joined(std::span(lines).first(std::min(lines.size(), max_named)), "\n  ");
  if (lines.size() > max_named)
    text += "\n  and so on, " + std::to_string(lines.size()) + " in all";
  throw AgreedError(ExitCode::usage, text,
                    "give each rank a device of its own (Slurm: --gpus-per-task=1, not --gres), "
                    "start fewer ranks, or pass `share_device`, which is slow");
}

void require_device_memory(const char* collective, const void* memory) {
  cudaPointerAttributes attributes = {};
  cuda::check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeDevice) return;
  throw std::invalid_argument(std::string(collective) +
                              ": the values are in host memory: use the host "
                              "communicator");
}

/// One cache line per rank, because ranks write often.
struct Arrivals::Entry {
  alignas(64) std::atomic<std::uint64_t> count;
  std::atomic<bool> left;
};

Arrivals::Arrivals(Communicator& host) : host_(host.place().host), alone_(host.place().nodes == 1) {
  try {
    region_.emplace(share_on_host(host, static_cast<std::size_t>(host.size()) * sizeof(Entry)));
  } catch (const AgreedError&) {  // reported below
  }
  const auto here = static_cast<std::uint64_t>(host.place().node);
  const auto nodes = gather_number(host, here);
  for (int rank = 0; rank < host.size(); ++rank) {
    if (nodes[static_cast<std::size_t>(rank)] != here) continue;
    if (rank == host.rank()) mine_ = ranks_.size();
    ranks_.push_back(host.world_rank(rank));
  }
}

Arrivals::~Arrivals() {
  if (region_) entry(mine_).left = true;
}

Arrivals::Entry& Arrivals::entry(std::size_t local_rank) const noexcept {
  return reinterpret_cast<Entry*>(region_->data())[local_rank];
}

void Arrivals::arrive(std::uint64_t count) noexcept {
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
