// Who takes part: the job's resolved cluster, as every rank sees it.
#pragma once

#include <string>
#include <vector>

#include "collectives/communicator.hpp"

namespace lockstep {

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

}  // namespace lockstep
