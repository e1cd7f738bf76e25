// Several nodes made up on one machine, for tests of communicators that care.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/collectives/communicator.hpp"

namespace lockstep::test {

/// Which node each rank is said to be on.
using Nodes = std::vector<int>;

/// Nodes of two ranks each, of one and the rest, and dealt in turn.
inline std::vector<Nodes> layouts(int ranks) {
  std::vector<Nodes> all(3);
  for (int rank = 0; rank < ranks; ++rank) {
    all[0].push_back(rank / 2);
    all[1].push_back(rank == 0 ? 0 : 1);
    all[2].push_back(rank % 2);
  }
  return all;
}

inline comm::Place place_in(const Nodes& nodes, int rank) {
  comm::Place place{
      .host = "node", .node = nodes[static_cast<std::size_t>(rank)], .local_ranks = 0};
  for (int other = 0; other < static_cast<int>(nodes.size()); ++other) {
    const int node = nodes[static_cast<std::size_t>(other)];
    place.nodes = std::max(place.nodes, node + 1);
    if (node != place.node) continue;
    if (other < rank) ++place.local_rank;
    ++place.local_ranks;
  }
  return place;
}

}  // namespace lockstep::test
