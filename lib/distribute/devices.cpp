#include "lockstep/distribute/devices.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep {
std::vector<std::string> Cluster::hosts() const {
  std::vector<std::string> names;
  for (const auto& replica : replicas) {
    const auto node = static_cast<std::size_t>(replica.node);
    if (names.size() <= node) names.resize(node + 1);
    names[node] = replica.host;
  }
  return names;
}

std::string to_text(const Cluster& cluster) {
  std::string text = counted(cluster.replicas.size(), "replica") + " on " +
                     counted(cluster.hosts().size(), "host") + " over " + cluster.transport;
  for (std::size_t rank = 0; rank < cluster.replicas.size(); ++rank) {
    const auto& replica = cluster.replicas[rank];
    text += "\n  replica " + std::to_string(rank) + "  " + replica.host + ", rank " +
            std::to_string(replica.local_rank) + " there, " + replica.device;
  }
  return text;
}

Cluster resolve_cluster(comm::Communicator& comm, const std::string& device) {
  const comm::Place& place = comm.place();
  const auto hosts = comm::gather_text(comm, place.host);
  const auto gather = [&](int number) {
    return comm::gather_number(comm, static_cast<std::uint64_t>(number));
  };
  const auto nodes = gather(place.node);
  const auto local_ranks = gather(place.local_rank);
  const auto devices = comm::gather_text(comm, device);
  const auto cores = gather(comm.own_cores());
  Cluster cluster{.transport = comm.backend()};
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    cluster.replicas.push_back({hosts[i], static_cast<int>(nodes[i]),
                                static_cast<int>(local_ranks[i]), devices[i],
                                static_cast<int>(cores[i])});
  }
  return cluster;
}

namespace {

constexpr std::array<const char*, topology_axes> axis_names = {"node", "rank", "GPU", "core"};

std::string shape_text(std::span<const int> shape) { return "[" + joined(shape) + "]"; }

int ranks_per_node(const Cluster& cluster) {
  std::vector<int> ranks(cluster.hosts().size());
  for (const auto& place : cluster.replicas) ++ranks[static_cast<std::size_t>(place.node)];
  for (std::size_t node = 1; node < ranks.size(); ++node) {
    if (ranks[node] == ranks[0]) continue;
    throw ConfigError("node 0 has " + counted(static_cast<std::uint64_t>(ranks[0]), "rank") +
                          " and node " + std::to_string(node) + " has " +
                          std::to_string(ranks[node]) +
                          ": every node must have the same number of ranks",
                      "launch as many ranks on every node");
  }
  return ranks.at(0);
}

// The coordinates of position `index` in a box of that shape; the last axis varies fastest.
DeviceCoordinates position(const DeviceCoordinates& shape, int index) {
  DeviceCoordinates at{};
  for (std::size_t axis = topology_axes; axis-- > 0;) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return at;
}

int volume(const DeviceCoordinates& shape) {
  int product = 1;
  for (const int length : shape) product *= length;
  return product;
}

DeviceCoordinates checked_shape(const Topology& topology, const std::vector<int>& shape) {
  if (shape.size() != topology_axes) {
    throw ConfigError("computation shape " + shape_text(shape) + " has " +
                          std::to_string(shape.size()) + " axes (not 4)",
                      "give [nodes, ranks on a node, GPUs, cores]");
  }
  DeviceCoordinates checked{};
  for (std::size_t axis = 0; axis < topology_axes; ++axis) {
    const int there = topology.shape()[axis];
    checked[axis] = shape[axis];
    if (shape[axis] >= 1 && there % shape[axis] == 0) continue;
    throw ConfigError("computation shape " + shape_text(shape) + " does not divide the topology " +
                          shape_text(topology.shape()) + ": " + std::to_string(shape[axis]) +
                          " of " + std::to_string(there) + " on axis " + axis_names[axis],
                      "give a divisor of the topology on each axis");
  }
  return checked;
}

}  // namespace

std::string to_text(const DeviceCoordinates& coordinates) {
  std::string text;
  for (std::size_t axis = 0; axis < topology_axes; ++axis) {
    text += std::string(axis == 0 ? "" : ", ") + axis_names[axis] + " " +
            std::to_string(coordinates[axis]);
  }
  return text;
}

Topology::Topology(const DeviceCoordinates& shape) : shape_(shape) {
  std::int64_t devices = 1;
  for (const int length : shape) {
    devices *= std::max(length, 0);
    if (devices >= 1 && devices <= (1 << 30)) continue;
    throw ConfigError("a topology of shape " + shape_text(shape),
                      "give lengths of at least 1, and devices that can be counted");
  }
  for (int rank = 0; rank < shape[0] * shape[1]; ++rank) ranks_.push_back(rank);
}

Topology Topology::of(const Cluster& cluster) {
  const int nodes = static_cast<int>(cluster.hosts().size());
  const int ranks = ranks_per_node(cluster);
  int cores = cluster.replicas.front().cores;
  for (const auto& place : cluster.replicas) cores = std::min(cores, place.cores);
  Topology topology({nodes, ranks, 1, cores});
  int rank = 0;
  for (const auto& place : cluster.replicas) {
    topology.ranks_[topology.index(place.node, place.local_rank)] = rank++;
  }
  return topology;
}

int Topology::rank_at(int node, int local_rank) const {
  if (node < 0 || node >= shape_[0] || local_rank < 0 || local_rank >= shape_[1]) {
    throw std::out_of_range("Topology: no rank " + std::to_string(local_rank) + " on node " +
                            std::to_string(node));
  }
  return ranks_[index(node, local_rank)];
}

std::size_t Topology::index(int node, int local_rank) const noexcept {
  return static_cast<std::size_t>(node) * static_cast<std::size_t>(shape_[1]) +
         static_cast<std::size_t>(local_rank);
}

DeviceAssignment::DeviceAssignment(Topology topology, std::vector<Box> devices)
    : topology_(std::move(topology)), devices_(std::move(devices)) {}

DeviceAssignment DeviceAssignment::build(const Topology& topology,
                                         const std::vector<int>& computation_shape,
                                         int num_replicas) {
  const DeviceCoordinates shape = checked_shape(topology, computation_shape);
  DeviceCoordinates grid = topology.shape();
  for (std::size_t axis = 0; axis < topology_axes; ++axis) grid[axis] /= shape[axis];
  const int boxes = volume(grid);
  if (num_replicas < 1 || num_replicas > boxes) {
    throw ConfigError(std::to_string(num_replicas) + " replicas of computation shape " +
                          shape_text(shape) + ", but the topology " + shape_text(topology.shape()) +
                          " has room for " + std::to_string(boxes),
                      "give from 1 to that many replicas");
  }
  std::vector<std::pair<int, Box>> ordered;
  ordered.reserve(static_cast<std::size_t>(boxes));
  for (int index = 0; index < boxes; ++index) {
    ordered.push_back(box_at(topology, shape, position(grid, index)));
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Box> devices;
  devices.reserve(static_cast<std::size_t>(num_replicas));
  for (int replica = 0; replica < num_replicas; ++replica) {
    devices.push_back(std::move(ordered[static_cast<std::size_t>(replica)].second));
  }
  return {topology, std::move(devices)};
}

std::pair<int, DeviceAssignment::Box> DeviceAssignment::box_at(const Topology& topology,
                                                               const DeviceCoordinates& shape,
                                                               const DeviceCoordinates& at) {
  std::pair<int, Box> result;
  for (int i = 0; i < volume(shape); ++i) {
    auto device = position(shape, i);
    for (std::size_t axis = 0; axis < topology_axes; ++axis) device[axis] += at[axis] * shape[axis];
    const int rank = topology.rank_at(device[0], device[1]);
    result.first = i == 0 ? rank : std::min(result.first, rank);
    result.second.push_back(device);
  }
  return result;
}

const DeviceCoordinates& DeviceAssignment::coordinates(int replica, int logical_device) const {
  require_logical_device(logical_device);
  if (replica < 0 || replica >= num_replicas()) {
    throw ConfigError(
        "no replica " + std::to_string(replica) + " among " + std::to_string(num_replicas()),
        "replicas are counted from 0");
  }
  return devices_[static_cast<std::size_t>(replica)][static_cast<std::size_t>(logical_device)];
}

int DeviceAssignment::rank(int replica, int logical_device) const {
  const auto& at = coordinates(replica, logical_device);
  return topology_.rank_at(at[0], at[1]);
}

void DeviceAssignment::require_logical_device(int id) const {
  if (id >= 0 && id < num_logical_devices()) return;
  throw ConfigError("no logical device " + std::to_string(id) + ": each replica has " +
                        counted(static_cast<std::uint64_t>(num_logical_devices()), "partition"),
                    "give an id from 0 to " + std::to_string(num_logical_devices() - 1));
}

std::string to_text(const DeviceAssignment& assignment) {
  std::string text;
  for (int replica = 0; replica < assignment.num_replicas(); ++replica) {
    text += (replica == 0 ? "replica " : "\nreplica ") + std::to_string(replica) + "  ";
    for (int id = 0; id < assignment.num_logical_devices(); ++id) {
      text += (id == 0 ? "" : "; ") + to_text(assignment.coordinates(replica, id));
    }
  }
  return text;
}

}  // namespace lockstep
