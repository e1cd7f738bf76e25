#include "collectives/cuda/device_of_rank.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/base/cuda/runtime.hpp"
#include "lib/base/text.hpp"

namespace lockstep::comm {
namespace {

constexpr std::size_t most_named = 8;

/// How many devices this process sees.
int visible_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();  // the next call is not to blame
  std::string why = "no CUDA device is visible";
  if (error != cudaSuccess) why += std::string(" (") + cudaGetErrorString(error) + ")";
  throw ConfigError(why,
                    "ask the launcher for devices (Slurm: --gpus-per-task=1), look at "
                    "CUDA_VISIBLE_DEVICES and nvidia-smi, or use --device cpu");
}

int choose(int visible, const Place& place, bool share) {
  if (visible == 1) return 0;
  if (share) return place.local_rank % visible;
  if (place.local_ranks <= visible) return place.local_rank;
  throw ConfigError(
      counted(static_cast<std::uint64_t>(place.local_ranks), "rank") + " on " + place.host +
          ", but only " + std::to_string(visible) + " devices are visible",
      "start no more ranks on a host than it has devices, or pass --share-device, which is slow");
}

DeviceOfRank take(int device) {
  cuda::select_device(device);
  cudaDeviceProp properties = {};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return {.device = device,
          .bus_id = cuda::pci_bus_id(device),
          .name = properties.name,
          .memory_bytes = properties.totalGlobalMem};
}

/// "ranks 0 and 1", "ranks 0, 1 and 2".
std::string name_ranks(const Communicator& host, const std::vector<int>& ranks) {
  std::string text = "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == most_named) return text + ", ... (" + std::to_string(ranks.size()) + " in all)";
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(host.world_rank(ranks[i]));
  }
  return text;
}

/// One line for each device that several ranks take.
std::vector<std::string> shared_devices(Communicator& host, const DeviceOfRank& mine) {
  std::map<std::string, std::vector<int>> ranks_of;
  const auto all = gather_text(
      host, host.place().host + " take the same device, " + mine.bus_id + " (" + mine.name + ")");
  for (int rank = 0; rank < host.size(); ++rank) {
    ranks_of[all[static_cast<std::size_t>(rank)]].push_back(rank);
  }
  std::vector<std::string> lines;
  for (const auto& [device, ranks] : ranks_of) {
    if (ranks.size() > 1) lines.push_back(name_ranks(host, ranks) + " on " + device);
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
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), most_named); ++i) {
    text += (i > 0 ? "\n  " : "") + lines[i];
  }
  if (lines.size() > most_named)
    text += "\n  and so on, " + std::to_string(lines.size()) + " in all";
  throw AgreedError(ExitCode::usage, text,
                    "give each rank a device of its own (Slurm: --gpus-per-task=1, not --gres), "
                    "start fewer ranks, or pass --share-device, which is slow");
}

}  // namespace lockstep::comm
