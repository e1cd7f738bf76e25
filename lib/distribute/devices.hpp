// The machines and ranks of a job, its devices as a topology, and the devices of each replica.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/collectives/communicator.hpp"

namespace lockstep {

/// The place of one replica.
struct ReplicaPlace {
  std::string host;    ///< name of the machine
  int node = 0;        ///< index of the machine
  int local_rank = 0;  ///< index among the ranks of this machine
  std::string device;  ///< "cpu"
  int cores = 1;       ///< usable cores: Communicator::own_cores()
};

/// All replicas of a job, the same on every rank.
struct Cluster {
  std::string transport;                    ///< "mpi", "threads", "self", ...
  std::vector<ReplicaPlace> replicas = {};  ///< by rank

  /// Names of the machines, by node.
  std::vector<std::string> hosts() const;
};

/// One line for the cluster and one per replica.
std::string to_text(const Cluster& cluster);

/// Gathers the places of all ranks. `device`: the name of this rank's device. Collective.
Cluster resolve_cluster(comm::Communicator& comm, const std::string& device);

/// The four axes of a topology and of a computation shape: node, rank on the node, GPU, core.
inline constexpr std::size_t topology_axes = 4;

/// The index of a device on each axis.
using DeviceCoordinates = std::array<int, topology_axes>;

/// "node 0, rank 1, GPU 0, core 3".
std::string to_text(const DeviceCoordinates& coordinates);

/// The devices of a job as a grid: every node has the same number of ranks, every rank the same
/// number of GPUs and of cores. A value; local.
class Topology {
 public:
  /// A grid of that shape, with ranks numbered node by node. Throws ConfigError for lengths
  /// below 1.
  explicit Topology(const DeviceCoordinates& shape);

  /// The topology of a cluster. A rank without a GPU has one device on the GPU axis, its processor.
  /// If ranks have different numbers of cores, the smallest is used.
  /// Errors   throws ConfigError, naming two nodes, if nodes have different numbers of ranks.
  static Topology of(const Cluster& cluster);

  const DeviceCoordinates& shape() const noexcept { return shape_; }

  /// The rank of the job with that node and local rank. Throws std::out_of_range.
  int rank_at(int node, int local_rank) const;

 private:
  std::size_t index(int node, int local_rank) const noexcept;

  DeviceCoordinates shape_;
  std::vector<int> ranks_;  // node by node
};

/// Assigns a block of the topology to each replica; its devices are the replica's logical devices.
///
///   const auto topology = Topology::of(resolve_cluster(comm, "cpu"));
///   const auto assignment = DeviceAssignment::build(topology, {1, 1, 1, 2}, 4);
///   assignment.num_logical_devices();  // 2 in each of 4 replicas
///
/// A value; local. All ranks that build it from one cluster get the same.
class DeviceAssignment {
 public:
  /// Cuts the topology into blocks of `computation_shape`. Blocks are ordered by their lowest rank,
  /// then by position; replica r has the r-th. Logical devices are numbered along the last axis
  /// first. Blocks beyond `num_replicas` stay unused.
  /// Errors   throws ConfigError: a shape without four axes, with a length below 1, or that does
  ///          not divide the topology; fewer than 1 replicas, or more than there are blocks.
  static DeviceAssignment build(const Topology& topology, const std::vector<int>& computation_shape,
                                int num_replicas);

  int num_replicas() const noexcept { return static_cast<int>(devices_.size()); }

  /// The number of partitions of a replica: the product of the computation shape.
  int num_logical_devices() const noexcept { return static_cast<int>(devices_.front().size()); }

  /// The coordinates of a logical device. Throws ConfigError for an unknown replica or device.
  const DeviceCoordinates& coordinates(int replica, int logical_device) const;

  /// The rank of the job that owns the logical device. Throws as coordinates().
  int rank(int replica, int logical_device) const;

  const Topology& topology() const noexcept { return topology_; }

  /// Throws ConfigError unless `id` is in [0, num_logical_devices()).
  void require_logical_device(int id) const;

 private:
  using Box = std::vector<DeviceCoordinates>;

  DeviceAssignment(Topology topology, std::vector<Box> devices);

  // The block at that position in the grid of blocks, and the lowest rank in it.
  static std::pair<int, Box> box_at(const Topology& topology, const DeviceCoordinates& shape,
                                    const DeviceCoordinates& at);

  Topology topology_;
  std::vector<Box> devices_;  // by replica, by logical device
};

/// One line per replica: "replica 0  node 0, rank 0, GPU 0, core 0; node 0, rank 0, ...".
std::string to_text(const DeviceAssignment& assignment);

}  // namespace lockstep
