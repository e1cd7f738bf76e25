#include "lib/distribute/cluster.hpp"

#include "collectives/agreement.hpp"
#include "lib/base/process.hpp"
#include "lib/base/text.hpp"

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
  const auto nodes = comm::gather_text(comm, std::to_string(place.node));
  const auto local_ranks = comm::gather_text(comm, std::to_string(place.local_rank));
  const auto devices = comm::gather_text(comm, device);
  const bool threads = comm.backend() == std::string("threads");
  const auto cores = comm::gather_text(comm, std::to_string(own_cores(place.local_ranks, threads)));
  Cluster cluster{.transport = comm.backend()};
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    cluster.replicas.push_back({hosts[i], std::stoi(nodes[i]), std::stoi(local_ranks[i]),
                                devices[i], std::stoi(cores[i])});
  }
  return cluster;
}

}  // namespace lockstep
