// Elements and values of several parts: pairs, tuples, maps by name and structs with fields.
#include <catch2/catch.hpp>
#include <map>
#include <tuple>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/per_rank.hpp"

using namespace lockstep;
using test::on_all;

namespace {

using Numbers = Tensor<std::int64_t>;
using ByName = std::map<std::string, std::int64_t>;

struct Digit {
  Tensor<float> image;
  std::int32_t label = 0;
  auto fields() const { return std::tie(image, label); }
};

}  // namespace

TEST_CASE("maps and structs are batched, cut and described by their parts", "[distribute]") {
  const auto named = range_dataset(5).map([](std::int64_t i) {
    return ByName{{"x", i}, {"y", 10 * i}};
  });
  const auto digits = range_dataset(3).map([](std::int64_t i) {
    return Digit{Tensor<float>({static_cast<float>(i), 0.5F}), static_cast<std::int32_t>(i)};
  });
  const auto text = on_all(2, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    std::string all;
    auto maps = strategy.distribute_dataset(named.batch(4));
    for (auto& batch : maps) all += strategy.describe(batch) + " ";
    all += to_text(maps.element_spec()[1]) + " ";
    auto structs = strategy.distribute_dataset(digits.batch(3));
    for (auto& batch : structs) {
      const auto labels = strategy.run(
          [](const Tensor<float>&, const Tensor<std::int32_t>& label) { return label; }, batch);
      all += strategy.describe(batch) + strategy.describe(labels);
    }
    return all;
  });
  CHECK(text ==
        "{0: {x: [0, 1], y: [0, 10]}, 1: {x: [2, 3], y: [20, 30]}} "
        "{0: {x: [4], y: [40]}, 1: {x: [], y: []}} int64 (?) "
        "{0: ([[0.0, 0.5], [1.0, 0.5]], [0, 1]), 1: ([[2.0, 0.5]], [2])}{0: [0, 1], 1: [2]}");
  const auto odd = range_dataset(3).map([](std::int64_t i) {
    return i == 2 ? ByName{{"z", i}} : ByName{{"x", i}};
  });
  const auto batches = odd.batch(3);
  CHECK_THROWS_WITH(batches.begin(), Catch::Contains("parts named \"x\" and \"z\""));
  const auto alike = range_dataset(2).map([](std::int64_t i) {
    return i == 0 ? ByName{{"x, y", i}} : ByName{{"x", i}, {"y", i}};
  });
  const auto unequal = alike.batch(2);
  CHECK_THROWS_WITH(unequal.begin(), Catch::Contains("parts named \"x, y\" and \"x\", \"y\""));
}

TEST_CASE("batches of different rows, or without an axis, are not joined", "[distribute]") {
  CHECK(join_batches<Numbers>({{1, 2}, {3}}) == Numbers{1, 2, 3});
  const Numbers scalar(Shape{}, {1});
  CHECK_THROWS_AS(join_batches<Numbers>({scalar, scalar}), DataError);
  CHECK_THROWS_AS(join_batches<Numbers>({Numbers{1}, Numbers(Shape{1, 1}, {1})}), DataError);
}

TEST_CASE("values of several parts are reduced, gathered and read", "[distribute]") {
  const auto text = on_all(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const std::int64_t id = strategy.replica_id();
    const auto value = strategy.run([&] {
      return std::tuple(Numbers{id, 1}, std::map<std::string, Numbers>{{"a", {id}}, {"b", {2}}});
    });
    const auto scalars = strategy.run([&] { return std::pair(id, 1.5); });
    const auto apart = std::pair(strategy.run([&] { return Numbers{id}; }), scalars);
    const auto local = strategy.local_results(apart);
    return to_text(strategy.reduce(ReduceOp::sum, value)) +
           to_text(strategy.reduce(ReduceOp::sum, value, 0)) + to_text(strategy.gather(value, 0)) +
           to_text(strategy.reduce(ReduceOp::sum, scalars)) +
           to_text(strategy.reduce(ReduceOp::sum, apart)) +
           (to_text(local.at(0).first) == to_text(Numbers{id}) ? "" : "not its own");
  });
  CHECK(text ==
        "([1, 2], {a: [1], b: [4]})(3, {a: 1, b: 4})([0, 1, 1, 1], {a: [0, 1], b: [2, 2]})"
        "(1, 3.0)([1], (1, 3.0))");
  const auto names = [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto name = std::to_string(comm.rank());
    strategy.reduce(ReduceOp::sum, strategy.run([&] {
      return std::map<std::string, std::int64_t>{{name, 1}};
    }));
  };
  CHECK_THROWS_AS(comm::run_ranks(2, names), comm::AgreedError);
}

TEST_CASE("features of any type are reduced and gathered, on any number of replicas",
          "[distribute]") {
  const int ranks = GENERATE(1, 2, 3);
  const auto batch = range_dataset(5).map([](std::int64_t i) {
    return Features{{"count", Numbers(i)},
                    {"name", Tensor<std::string>(std::string("n") + std::to_string(i))},
                    {"x", Tensor<float>({static_cast<float>(i), 1})}};
  });
  const auto text = on_all(ranks, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto data = strategy.distribute_dataset(batch.batch(5));
    const auto features = data.make_iterator().next();
    const auto numbers = strategy.run(
        [](Features values) {
          values.erase("name");
          return values;
        },
        features);
    return to_text(strategy.gather(features, 0)) +
           to_text(strategy.reduce(ReduceOp::sum, numbers, 0));
  });
  CHECK(text == R"({count: [0, 1, 2, 3, 4], name: ["n0", "n1", "n2", "n3", "n4"], )"
                "x: [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]}"
                "{count: 10, x: [10.0, 5.0]}");
  const auto refuse = [&](auto value) {
    return [value](comm::Communicator& comm) {
      Strategy strategy(comm);
      strategy.reduce(ReduceOp::sum, strategy.run([&] { return value(comm.rank()); }), 0);
    };
  };
  CHECK_THROWS_WITH(
      comm::run_ranks(ranks, refuse([](int) -> Feature { return Tensor<std::string>({"a"}); })),
      Catch::Contains("a reduction of texts"));
  if (ranks == 1) return;
  const auto differ = refuse([](int rank) -> Feature {
    if (rank == 1) return Tensor<float>({1});
    return Numbers({1});
  });
  CHECK_THROWS_WITH(comm::run_ranks(ranks, differ), Catch::Contains("float32"));
}

TEST_CASE("run takes pairs, tuples and maps apart beside other arguments", "[distribute]") {
  const auto text = on_all(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const std::int64_t id = strategy.replica_id();
    const auto pair = strategy.run([&] { return std::pair(id, id + 1); });
    const auto weight = strategy.create_variable(std::int64_t{10});
    const auto flat = [](std::int64_t a, std::int64_t b, std::int64_t w, int plain) {
      return a + b + w + plain;
    };
    const auto whole = [](const std::pair<std::int64_t, std::int64_t>& p, std::int64_t w) {
      return p.second * w;
    };
    const auto named = std::map{std::pair(std::string("x"), strategy.run([&] { return id; }))};
    return strategy.describe(strategy.run(flat, pair, weight, 100)) +
           strategy.describe(strategy.run(whole, pair, weight)) +
           strategy.describe(
               strategy.run([](const ByName& map, int k) { return map.at("x") * k; }, named, 3));
  });
  CHECK(text == "{0: 111, 1: 113}{0: 10, 1: 20}{0: 0, 1: 3}");
}

TEST_CASE("mirrored variables are added to in step", "[distribute]") {
  CHECK(on_all(3, [](comm::Communicator& comm) {
          Strategy strategy(comm);
          auto weights = strategy.create_variable(Tensor<float>({1, 2}));
          weights.assign_add(Tensor<float>({0.5F, 1}));
          weights.assign_sub(Tensor<float>({1, 0}));
          auto count = strategy.create_variable(std::uint8_t{250});
          count.assign_add(10);
          count.assign_sub(5);
          weights.verify();
          bool refused = false;
          try {
            weights.assign_add(Tensor<float>({1}));
          } catch (const comm::AgreedError&) {
            refused = true;
          }
          return std::tuple(weights.read(), static_cast<int>(count.read()), refused);
        }) == std::tuple(Tensor<float>({0.5F, 3}), 255, true));
  const auto differ = [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto count = strategy.create_variable(std::int64_t{1});
    count.assign_add(comm.rank());
  };
  CHECK_THROWS_AS(comm::run_ranks(2, differ), comm::AgreedError);
}
