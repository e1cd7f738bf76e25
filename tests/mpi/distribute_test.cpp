// The distributed-input guide's key examples, with processes as replicas.
#include <catch2/catch.hpp>

#include "lockstep/distribute/strategy.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/require_on_all.hpp"

using namespace lockstep;

namespace {

std::vector<std::string> steps_of(Strategy& strategy,
                                  const Dataset<Tensor<std::int64_t>>& dataset) {
  auto distributed = strategy.distribute_dataset(dataset);
  std::vector<std::string> steps;
  for (auto& batch : distributed) steps.push_back(strategy.describe(batch));
  return steps;
}

/// What the rule `ceil` says of range(count) in batches.
std::vector<std::string> told(std::int64_t count, std::int64_t batch, std::int64_t replicas) {
  std::vector<std::string> steps;
  for (std::int64_t first = 0; first < count; first += batch) {
    const std::int64_t size = std::min(batch, count - first);
    const std::int64_t each = (size + replicas - 1) / replicas;
    std::string text = "{";
    for (std::int64_t r = 0; r < replicas; ++r) {
      text += (r == 0 ? "" : ", ") + std::to_string(r) + ": [";
      for (std::int64_t i = r * each; i < std::min(size, (r + 1) * each); ++i) {
        text += (i == r * each ? "" : ", ") + std::to_string(first + i);
      }
      text += "]";
    }
    steps.push_back(text + "}");
  }
  return steps;
}

}  // namespace

TEST_CASE("data sets are shared out over MPI", "[mpi][distribute]") {
  auto& comm = test::mpi_world();
  Strategy strategy(comm);
  for (const auto& [count, batch] : {std::pair(6, 4), {4, 4}, {8, 4}, {9, 4}, {100, 16}}) {
    const auto size = static_cast<std::uint64_t>(batch);
    REQUIRE_ON_ALL(comm, steps_of(strategy, range_dataset(count).batch(size)) ==
                             told(count, batch, comm.size()));
  }
}

TEST_CASE("replicas without data take no part in a mean over MPI", "[mpi][distribute]") {
  auto& comm = test::mpi_world();
  Strategy strategy(comm);
  auto distributed = strategy.distribute_dataset(range_dataset(8).batch(4));
  const auto first = distributed.make_iterator().next();
  const auto doubles = strategy.run(
      [](const Tensor<std::int64_t>& x) {
        return x.map([](std::int64_t i) { return static_cast<double>(i); });
      },
      first);
  REQUIRE_ON_ALL(comm, strategy.describe(first) == told(8, 4, comm.size()).front());
  REQUIRE_ON_ALL(comm, strategy.reduce(ReduceOp::mean, doubles, 0).item() == (0.0 + 1 + 2 + 3) / 4);
}

TEST_CASE("streams from functions end together over MPI", "[mpi][distribute]") {
  auto& comm = test::mpi_world();
  Strategy strategy(comm);
  auto distributed = strategy.distribute_datasets_from_function([](const InputContext& context) {
    const auto count = static_cast<std::int64_t>(context.input_pipeline_id);
    return from_generator<std::int64_t>([count] {
             return [count, i = std::int64_t{0}]() mutable -> std::optional<std::int64_t> {
               return i < count ? std::optional(i++) : std::nullopt;
             };
           })
        .batch(1)
        .prefetch(2);
  });
  std::int64_t examples = 0;
  int steps = 0;
  for (auto& batch : distributed) {
    examples += static_cast<std::int64_t>(strategy.gather(batch, 0).values().size());
    ++steps;
  }
  REQUIRE_ON_ALL(comm, steps == comm.size() - 1);
  REQUIRE_ON_ALL(comm, examples == comm.size() * (comm.size() - 1) / 2);
}

TEST_CASE("outputs come back in global order over MPI", "[mpi][distribute]") {
  auto& comm = test::mpi_world();
  Strategy strategy(comm);
  const auto indexed = range_dataset(24).map([](std::int64_t i) { return std::pair(i, 2 * i); });
  auto distributed = strategy.distribute_dataset(indexed.shuffle(1).batch(6));
  std::map<std::int64_t, std::int64_t> all;
  for (auto& batch : distributed) {
    all.merge(in_global_order(
        strategy, strategy.run([](const auto& index, const auto&) { return index; }, batch),
        strategy.run([](const auto&, const auto& value) { return value; }, batch)));
  }
  bool right = all.size() == 24;
  for (const auto& [index, value] : all) right = right && value == 2 * index;
  REQUIRE_ON_ALL(comm, right);
}

TEST_CASE("values are reduced, gathered and mirrored over MPI", "[mpi][distribute]") {
  auto& comm = test::mpi_world();
  const Strategy strategy(comm);
  const auto ids = strategy.run([&] { return Tensor<double>{1.0 * strategy.replica_id()}; });
  const auto ranks = static_cast<double>(comm.size());
  REQUIRE_ON_ALL(comm, strategy.reduce(ReduceOp::sum, ids, 0).item() == ranks * (ranks - 1) / 2);
  REQUIRE_ON_ALL(comm, strategy.reduce(ReduceOp::mean, ids).item() == (ranks - 1) / 2);
  REQUIRE_ON_ALL(comm, strategy.gather(ids, 0).rows() == static_cast<std::size_t>(comm.size()));
  auto weights = strategy.create_variable(Tensor<float>{static_cast<float>(comm.rank()), 7});
  weights.verify();
  REQUIRE_ON_ALL(comm, weights.read() == Tensor<float>{0, 7});
  auto total = strategy.create_metric<double>(ReduceOp::sum);
  total.add(comm.rank());
  REQUIRE_ON_ALL(comm, total.read() == ranks * (ranks - 1) / 2);
}
