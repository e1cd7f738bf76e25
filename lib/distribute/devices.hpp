// Which devices of the job compute which replica.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.hpp"

namespace lockstep {
// Who takes part: the job's resolved cluster, as every rank sees it.

/// Where one replica runs.
struct ReplicaPlace {
  std::string host;    ///< name of the machine
  int node = 0;        ///< index of the machine
  int local_rank = 0;  ///< among the ranks of this machine
  std::string device;  ///< "cpu"
  int cores = 1;       ///< its own: those it may run on, shared with the ranks bound to the same
};

/// All replicas of a job, the same on every rank.
struct Cluster {
  std::string transport;                    ///< "mpi", "threads", "self", ...
  std::vector<ReplicaPlace> replicas = {};  ///< by rank

  /// Names of the machines, by node.
  std::vector<std::string> hosts() const;
};

/// A line for the cluster and one for each replica.
std::string to_text(const Cluster& cluster);

/// Asks all ranks. `device` is this rank's. Collective.
Cluster resolve_cluster(comm::Communicator& comm, const std::string& device);

/// The four axes of a topology and of a computation shape: node, rank on the node, GPU, core.
inline constexpr std::size_t topology_axes = 4;

/// A device of the job by its position on each axis.
using DeviceCoordinates = std::array<int, topology_axes>;

/// "node 0, rank 1, GPU 0, core 3".
std::string to_text(const DeviceCoordinates& coordinates);

/// The devices that are there, as a box: every node has as many ranks, every rank as many GPUs, and
/// every GPU's rank as many cores. A value; local.
class Topology {
 public:
  /// A box of that shape whose ranks stand node by node. Throws ConfigError for lengths below 1.
  explicit Topology(const DeviceCoordinates& shape);

  /// What a job's cluster has. A rank without a GPU counts one device on that axis, its processor;
  /// where ranks have different numbers of cores, the least counts.
  /// Errors   throws ConfigError, naming both, for nodes with different numbers of ranks, and where
  ///          some ranks compute on GPUs and others do not.
  static Topology of(const Cluster& cluster);

  const DeviceCoordinates& shape() const noexcept { return shape_; }

  /// The job's rank at [node, rank on the node]. Throws std::out_of_range.
  int rank_at(int node, int local_rank) const;

 private:
  std::size_t index(int node, int local_rank) const noexcept;

  DeviceCoordinates shape_;
  std::vector<int> ranks_;  // node by node
};

/// A box of devices for each replica; each device of it is a logical device of that replica.
///
///   const auto topology = Topology::of(resolve_cluster(comm, "cpu"));
///   const auto assignment = DeviceAssignment::build(topology, {1, 1, 1, 2}, 4);
///   assignment.num_logical_devices();  // 2 in each of 4 replicas
///
/// A value; local. All ranks that build it from one cluster get the same.
class DeviceAssignment {
 public:
  /// Cuts the topology into boxes of `computation_shape`. Replica r has the r-th box by the lowest
  /// rank in it, and the position in the topology where several have that rank; a box's logical
  /// devices are counted along its last axis first. Boxes beyond `num_replicas` stay idle.
  /// Errors   throws ConfigError: a shape without four axes, or with one below 1; one that does not
  ///          divide the topology; fewer than 1 replicas, or more than there are boxes.
  static DeviceAssignment build(const Topology& topology, const std::vector<int>& computation_shape,
                                int num_replicas);

  int num_replicas() const noexcept { return static_cast<int>(devices_.size()); }

  /// Partitions of each replica: the product of the computation shape.
  int num_logical_devices() const noexcept { return static_cast<int>(devices_.front().size()); }

  /// Where a logical device stands. Throws ConfigError for a replica or an id that there is not.
  const DeviceCoordinates& coordinates(int replica, int logical_device) const;

  /// The job's rank that it belongs to. Throws as above.
  int rank(int replica, int logical_device) const;

  const Topology& topology() const noexcept { return topology_; }

  /// Throws ConfigError for an id that is not one of the logical devices.
  void require_logical_device(int id) const;

 private:
  using Box = std::vector<DeviceCoordinates>;

  DeviceAssignment(Topology topology, std::vector<Box> devices);

  // The box at that position in the grid of boxes, and the lowest rank in it.
  static std::pair<int, Box> box_at(const Topology& topology, const DeviceCoordinates& shape,
                                    const DeviceCoordinates& at);

  Topology topology_;
  std::vector<Box> devices_;  // by replica, by logical device
};

/// A line for each replica: "replica 0  node 0, rank 0, GPU 0, core 0; node 0, rank 0, ...".
std::string to_text(const DeviceAssignment& assignment);

}  // namespace lockstep
