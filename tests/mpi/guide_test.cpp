// The examples of the guides that name a number of replicas, with processes as replicas: the first
// ranks of the world, where it has as many. Its sizes in tests/CMakeLists.txt reach all of them.
#include <catch2/catch.hpp>
#include <functional>

#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/require_on_all.hpp"

using namespace lockstep;

namespace {

using Ints = Tensor<std::int64_t>;

/// `example` says on each of `replicas` ranks whether it saw what the guide says.
void on_replicas(int replicas, const std::function<bool(comm::Communicator&)>& example) {
  auto& world = test::mpi_world();
  if (world.size() < replicas) return;
  const bool takes_part = world.rank() < replicas;
  const auto part = world.split(takes_part ? 0 : 1);
  INFO(replicas << " replicas");
  REQUIRE_ON_ALL(world, !takes_part || example(*part));
}

Dataset<Tensor<float>> endless_floats() {
  return from_generator<Tensor<float>>([] {
    return [i = 0]() mutable -> std::optional<Tensor<float>> {
      return Tensor<float>(std::vector(4, static_cast<float>(i++)));
    };
  });
}

}  // namespace

TEST_CASE("range(8) in batches of 4 on 3 replicas: a mean over 4 examples", "[mpi][guide]") {
  on_replicas(3, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(range_dataset(8).batch(4));
    const auto doubles = strategy.run(
        [](const Ints& x) { return x.map([](std::int64_t i) { return static_cast<double>(i); }); },
        distributed.make_iterator().next());
    return strategy.describe(doubles) == "{0: [0.0, 1.0], 1: [2.0, 3.0], 2: []}" &&
           strategy.reduce(ReduceOp::mean, doubles, 0).item() == (0.0 + 1 + 2 + 3) / 4;
  });
}

TEST_CASE("10 epochs of 5 steps, and past the end", "[mpi][guide]") {
  for (const int replicas : {1, 2, 3, 4, 5, 8}) {
    on_replicas(replicas, [](comm::Communicator& comm) {
      Strategy strategy(comm);
      auto distributed = strategy.distribute_dataset(range_dataset(40).batch(8));
      int steps = 0;
      int ends = 0;
      for (int epoch = 0; epoch < 10; ++epoch) {
        auto iterator = distributed.make_iterator();
        for (int step = 0; step < 5; ++step, ++steps) iterator.next();
        try {
          iterator.next();
        } catch (const OutOfRange&) {
          ++ends;
        }
        if (iterator.next_as_optional()) return false;
      }
      return steps == 50 && ends == 10;
    });
  }
}

TEST_CASE("data sets from a function, on 2 workers", "[mpi][guide]") {
  on_replicas(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_datasets_from_function([](const InputContext& context) {
      return range_dataset(16)
          .shard(context.num_input_pipelines, context.input_pipeline_id)
          .batch(context.per_replica_batch_size(8))
          .prefetch(2);
    });
    std::string all;
    for (auto& batch : distributed) all += strategy.describe(batch);
    return all == "{0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}{0: [8, 10, 12, 14], 1: [9, 11, 13, 15]}";
  });
}

TEST_CASE("a constant 1.0 on 4 replicas is four times 1.0", "[mpi][guide]") {
  on_replicas(4, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto ones =
        strategy.distribute_values_from_function([](const ValueContext&) { return 1.0; });
    const auto ids = strategy.distribute_values_from_function(
        [](const ValueContext& context) { return context.replica_id_in_sync_group; });
    return strategy.describe(ones) + strategy.describe(ids) ==
           "{0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}{0: 0, 1: 1, 2: 2, 3: 3}";
  });
}

TEST_CASE("4 steps of an infinite generator; AUTO warns and takes DATA", "[mpi][guide]") {
  for (const int replicas : {1, 2, 3, 4, 5, 8}) {
    on_replicas(replicas, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      auto distributed = strategy.distribute_dataset(endless_floats().batch(16, true));
      auto iterator = distributed.make_iterator();
      std::vector<float> sums;
      sums.reserve(4);
      for (int step = 0; step < 4; ++step) {
        sums.push_back(strategy.reduce(ReduceOp::sum, iterator.next(), 0).values()[3]);
      }
      return sums == std::vector<float>{120, 376, 632, 888} &&
             distributed.warning().empty() == (replicas == 1);
    });
  }
}

TEST_CASE("[5, 6, 7, 8] on 2 replicas: run, reduce, local results", "[mpi][guide]") {
  on_replicas(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto guide = from_elements(std::vector<std::int64_t>{5, 6, 7, 8}).batch(2);
    auto distributed = strategy.distribute_dataset(guide);
    const auto value = distributed.make_iterator().next();
    const auto more = strategy.run(
        [](const Ints& x) { return x.map([](std::int64_t v) { return v + 1; }); }, value);
    const auto ids = strategy.run([&] { return strategy.replica_id(); });
    const auto own = strategy.local_results(value);
    return strategy.describe(value) == "{0: [5], 1: [6]}" &&
           strategy.describe(more) == "{0: [6], 1: [7]}" &&
           strategy.describe(ids) == "{0: 0, 1: 1}" &&
           strategy.reduce(ReduceOp::sum, value, 0) == Ints(11) &&
           strategy.reduce(ReduceOp::sum, value) == Ints({11}) && own.size() == 1 &&
           own[0] == Ints({5 + comm.rank()}) && own[0].shape() == Shape{1};
  });
}

TEST_CASE("a mesh of one dimension batch of 8", "[mpi][guide]") {
  on_replicas(8, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 8}});
    const Tensor<float> mine({1, 2}, {static_cast<float>(comm.rank()), 1});
    const Layout layout(mesh, {"batch", Layout::unsharded});
    const auto packed = pack_to_mesh(mesh, mine, layout);
    return mesh.size() == 8 && packed.shape() == Shape{8, 2} && packed.unpack() == mine &&
           packed.relayout(Layout::replicated(mesh, 2)).relayout(layout).unpack() == mine &&
           layout.without_axis(0) == Layout::replicated(mesh, 1);
  });
}

TEST_CASE("the guide's product: contraction over 3, rows also over 2", "[mpi][guide]") {
  const auto product = [](Mesh& mesh, const Layout& left, const Layout& right) {
    const auto a = copy_to_mesh(mesh, Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}), left);
    const auto b = copy_to_mesh(mesh, Tensor<float>({3, 2}, {6, 5, 4, 3, 2, 1}), right);
    return matmul(a, b).to_global() == Tensor<float>({2, 2}, {20, 14, 56, 41});
  };
  constexpr auto unsharded = Layout::unsharded;
  on_replicas(3, [&](comm::Communicator& comm) {
    Mesh mesh(comm, {{"x", 3}});
    return product(mesh, Layout::replicated(mesh, 2), Layout::replicated(mesh, 2)) &&
           product(mesh, {mesh, {unsharded, "x"}}, {mesh, {"x", unsharded}});
  });
  on_replicas(6, [&](comm::Communicator& comm) {
    Mesh mesh(comm, {{"y", 2}, {"x", 3}});
    return product(mesh, {mesh, {"y", "x"}}, {mesh, {"x", unsharded}});
  });
}

TEST_CASE("2 logical devices in each of 4 replicas", "[mpi][guide]") {
  on_replicas(4, [](comm::Communicator& comm) {
    const Topology topology({1, 4, 1, 2});
    const Strategy strategy(comm, "cpu", DeviceAssignment::build(topology, {1, 1, 1, 2}, 4));
    const Tensor<float> tensor = {1, 2};
    if (strategy.assign_to_logical_device(tensor, 1) != tensor) return false;
    try {
      strategy.assign_to_logical_device(tensor, 2);
    } catch (const ConfigError&) {
      return true;
    }
    return false;
  });
}
