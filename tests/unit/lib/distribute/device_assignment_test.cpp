// Logical devices of replicas, from the topology that is there.
#include <catch2/catch.hpp>
#include <set>

#include "lockstep/distribute/devices.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/refusal.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

ReplicaPlace place(int node, int local_rank, int cores) {
  return {"h" + std::to_string(node), node, local_rank, "cpu", cores};
}

DeviceAssignment build(const DeviceCoordinates& topology, const std::vector<int>& shape,
                       int replicas) {
  return DeviceAssignment::build(Topology(topology), shape, replicas);
}

/// A strategy over `ranks` threads whose ranks have two cores each.
template <class Body>
std::string with_two_cores(int ranks, Body body) {
  return test::refusal(ranks, [&](comm::Communicator& comm) {
    Strategy strategy(comm, "cpu", build({1, ranks, 1, 2}, {1, 1, 1, 2}, ranks));
    body(strategy);
  });
}

}  // namespace

TEST_CASE("2 logical devices in each of 4 replicas", "[devices]") {
  const auto assignment = build({2, 2, 1, 2}, {1, 1, 1, 2}, 4);
  CHECK(assignment.num_replicas() == 4);
  CHECK(assignment.num_logical_devices() == 2);
  CHECK(assignment.rank(3, 1) == 3);
  CHECK(to_text(assignment) ==
        "replica 0  node 0, rank 0, GPU 0, core 0; node 0, rank 0, GPU 0, core 1\n"
        "replica 1  node 0, rank 1, GPU 0, core 0; node 0, rank 1, GPU 0, core 1\n"
        "replica 2  node 1, rank 0, GPU 0, core 0; node 1, rank 0, GPU 0, core 1\n"
        "replica 3  node 1, rank 1, GPU 0, core 0; node 1, rank 1, GPU 0, core 1");
}

TEST_CASE("no device computes two replicas", "[devices]") {
  const DeviceCoordinates topology = {2, 4, 2, 6};
  for (const auto& shape : std::vector<std::vector<int>>{
           {1, 1, 1, 1}, {1, 1, 1, 3}, {1, 2, 1, 2}, {2, 1, 2, 6}, {2, 4, 2, 6}}) {
    int devices = 1;
    for (const int length : shape) devices *= length;
    const auto assignment = build(topology, shape, 96 / devices);
    std::set<DeviceCoordinates> seen;
    for (int replica = 0; replica < assignment.num_replicas(); ++replica) {
      for (int id = 0; id < assignment.num_logical_devices(); ++id) {
        seen.insert(assignment.coordinates(replica, id));
      }
    }
    REQUIRE(assignment.num_logical_devices() == devices);
    REQUIRE(seen.size() == 96);
  }
}

TEST_CASE("a topology is what the cluster has", "[devices]") {
  const Cluster block{"mpi", {place(0, 0, 4), place(0, 1, 2), place(1, 0, 4), place(1, 1, 4)}};
  CHECK(Topology::of(block).shape() == DeviceCoordinates{2, 2, 1, 2});
  // Ranks dealt to the nodes in turn: replica r is still what rank r computes.
  const Cluster dealt{"mpi", {place(0, 0, 2), place(1, 0, 2), place(0, 1, 2), place(1, 1, 2)}};
  const auto assignment = DeviceAssignment::build(Topology::of(dealt), {1, 1, 1, 2}, 4);
  for (int replica = 0; replica < 4; ++replica) {
    CHECK(assignment.rank(replica, 0) == replica);
    CHECK(assignment.coordinates(replica, 1) == DeviceCoordinates{replica % 2, replica / 2, 0, 1});
  }
  const Cluster uneven{"mpi", {place(0, 0, 2), place(0, 1, 2), place(1, 0, 2)}};
  CHECK_THROWS_WITH(Topology::of(uneven), StartsWith("node 0 has 2 ranks and node 1 has 1"));
}

TEST_CASE("assignments that do not fit the topology are refused", "[devices]") {
  const auto refused = [](const DeviceCoordinates& topology, const std::vector<int>& shape,
                          int replicas, const char* why) {
    CHECK_THROWS_AS(build(topology, shape, replicas), ConfigError);
    CHECK_THROWS_WITH(build(topology, shape, replicas), Contains(why));
  };
  refused({1, 4, 1, 2}, {1, 1, 2}, 4, "computation shape [1, 1, 2] has 3 axes");
  refused({1, 4, 1, 2}, {1, 1, 1, 3}, 1, "does not divide the topology [1, 4, 1, 2]: 3 of 2 on");
  refused({1, 4, 1, 6}, {1, 1, 1, 4}, 1, "4 of 6 on axis core");
  refused({1, 4, 1, 2}, {1, 0, 1, 2}, 1, "0 of 4 on axis rank");
  refused({1, 4, 1, 2}, {1, 1, 1, 2}, 5, "5 replicas of computation shape [1, 1, 1, 2], but");
  refused({1, 4, 1, 2}, {1, 1, 1, 2}, 0, "has room for 4");
  refused({1, 0, 1, 2}, {1, 1, 1, 2}, 1, "a topology of shape [1, 0, 1, 2]");
  refused({1 << 20, 1 << 20, 1, 1}, {1, 1, 1, 1}, 1, "devices that can be counted");
  const auto assignment = build({1, 4, 1, 2}, {1, 1, 1, 2}, 4);
  CHECK_THROWS_WITH(assignment.coordinates(4, 0), Contains("no replica 4 among 4"));
  CHECK_THROWS_WITH(assignment.coordinates(0, 2), Contains("no logical device 2"));
}

TEST_CASE("a tensor assigned to a logical device is the identical tensor", "[devices]") {
  const Tensor<float> tensor({2, 2}, {1, 2, 3, 4});
  CHECK(with_two_cores(4, [&](Strategy& strategy) {
          for (const int id : {0, 1}) {
            if (strategy.assign_to_logical_device(tensor, id) != tensor) {
              throw comm::AgreedError(ExitCode::internal, "another tensor");
            }
          }
          if (strategy.num_replicas_in_sync() != 4) {
            throw comm::AgreedError(ExitCode::internal, "another number of replicas");
          }
        }) == "nothing");
}

TEST_CASE("ids that do not fit the partitions are refused", "[devices]") {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    const auto says = [](const Strategy& strategy, int id, const char* expected) {
      try {
        strategy.assign_to_logical_device(Tensor<int>{1}, id);
      } catch (const ConfigError& error) {
        if (std::string(error.what()).find(expected) == 0) return;
      }
      throw std::logic_error("id " + std::to_string(id) + ": not refused as " + expected);
    };
    const Strategy two(comm, "cpu", build({1, 2, 1, 2}, {1, 1, 1, 2}, 2));
    says(two, 2, "no logical device 2: each replica has 2 partitions");
    says(two, -1, "no logical device -1");
    const Strategy plain(comm);
    says(plain, 1, "no logical device 1: without a device assignment each replica has 1 partition");
    plain.assign_to_logical_device(Tensor<int>{1}, 0);
  });
}

TEST_CASE("assignments that a strategy cannot honour are refused alike", "[devices]") {
  const auto refusal = [](int ranks, auto assignment) {
    return test::refusal(ranks, [&](comm::Communicator& comm) {
      Strategy strategy(comm, "cpu", assignment(comm.rank()));
    });
  };
  CHECK_THAT(refusal(3,
                     [](int) {
                       return build({1, 4, 1, 2}, {1, 1, 1, 2}, 4);
                     }),
             StartsWith("2: a device assignment of 4 replicas for 3 ranks"));
  CHECK_THAT(refusal(2,
                     [](int) {
                       return build({1, 4, 1, 2}, {1, 2, 1, 1}, 2);
                     }),
             StartsWith("2: logical device 1 of replica 0 belongs to rank 1"));
  CHECK_THAT(
      refusal(4,
              [](int rank) {
                return build({1, 4, 1, 2}, {1, 1, 1, rank == 2 ? 1 : 2}, 4);
              }),
      StartsWith("2: the device assignment differs between ranks") && Contains("on rank 2 on "));
}

TEST_CASE("every strategy has a topology of its ranks", "[devices]") {
  const auto shape = test::on_all(
      2, [](comm::Communicator& comm) { return Topology::of(Strategy(comm).cluster()).shape(); });
  CHECK(shape[0] == 1);
  CHECK(shape[1] == 2);
  CHECK(shape[2] == 1);
  CHECK(shape[3] >= 1);
}
