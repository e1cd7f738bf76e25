// The guide's examples of data sets from functions, values, variables and order.
#include "lockstep/distribute/strategy.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "lockstep/collectives/agreement.hpp"
#include "tests/support/per_rank.hpp"

namespace lockstep {

/// Damages one replica's copy.
struct MirroredTest {
  template <class T>
  static void damage(Mirrored<T>& variable, T value) {
    variable.value_ = std::move(value);
  }
};

}  // namespace lockstep

using namespace lockstep;
using test::on_all;

namespace {

Dataset<Tensor<std::int32_t>> guide() { return from_elements<std::int32_t>({5, 6, 7, 8}).batch(2); }

template <class Body>
auto with_first_value(Body body) {
  return on_all(2, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(guide());
    const auto value = distributed.make_iterator().next();
    return body(strategy, value);
  });
}

}  // namespace

TEST_CASE("a function makes each worker's data set", "[distribute]") {
  const auto text = on_all(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    int calls = 0;
    auto distributed = strategy.distribute_datasets_from_function([&](const InputContext& context) {
      ++calls;
      return range_dataset(16)
          .shard(context.num_input_pipelines, context.input_pipeline_id)
          .batch(context.per_replica_batch_size(8))
          .prefetch(2);
    });
    std::string all = std::to_string(calls) + " call";
    for (auto& batch : distributed) all += "; " + strategy.describe(batch);
    return all + "; " + to_text(distributed.element_spec()[0]);
  });
  CHECK(text ==
        "1 call; {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}; {0: [8, 10, 12, 14], 1: [9, 11, 13, 15]}; "
        "int64 (4)");
}

TEST_CASE("data sets from a function may end at different times", "[distribute]") {
  const bool counted = GENERATE(true, false);
  const auto text = on_all(3, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_datasets_from_function([&](const InputContext& context) {
      const auto count = static_cast<std::int64_t>(context.input_pipeline_id);  // 0, 1, 2
      if (counted) return range_dataset(count).batch(1);
      return from_generator<std::int64_t>([count] {
               return [count, i = std::int64_t{0}]() mutable -> std::optional<std::int64_t> {
                 return i < count ? std::optional(i++) : std::nullopt;
               };
             })
          .batch(1);
    });
    std::string all;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : distributed) all += strategy.describe(batch);
    }
    return all;
  });
  const std::string once = "{0: [], 1: [0], 2: [0]}{0: [], 1: [], 2: [1]}";
  CHECK(text == once + once);
}

TEST_CASE("the sizes of workers' own data sets make a plan to train by", "[distribute]") {
  const auto sizes = GENERATE(std::vector<std::int64_t>{5, 2, 0}, std::vector<std::int64_t>{4, 4});
  const auto ranks = static_cast<int>(sizes.size());
  const auto pieces = test::per_rank(ranks, [&](comm::Communicator& comm) -> std::string {
    Strategy strategy(comm);
    const auto mine = sizes[static_cast<std::size_t>(comm.rank())];
    auto data = strategy.distribute_datasets_from_function(
        [&](const InputContext&) { return range_dataset(mine).batch(2); });
    const auto& plan = data.plan();
    std::uint64_t step = 0;
    for (auto& batch : data) {
      const auto rows = strategy.local_results(batch).front().rows();
      if (rows != plan.piece_size(step++, static_cast<std::uint64_t>(comm.rank()))) return "piece";
    }
    return step == plan.steps() ? "" : "steps";
  });
  CHECK(pieces == std::vector<std::string>(sizes.size()));
  const auto no_plan = [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const bool first = comm.rank() == 0;
    const auto data = strategy.distribute_datasets_from_function(
        [&](const InputContext&) { return range_dataset(4).batch(first ? 1 : 2); });
    return data.has_plan() ? 1 : 0;
  };
  CHECK(on_all(2, no_plan) == 0);
}

TEST_CASE("a generator of a stated number of elements has a plan", "[distribute]") {
  const auto numbers = [](std::int64_t count) {
    return from_generator<std::int64_t>([count] {
      return [count, i = std::int64_t{0}]() mutable {
        return i < count ? std::optional(i++) : std::nullopt;
      };
    });
  };
  const std::vector<std::int64_t> counts = {5, 0, 3};  // of the workers
  const auto alike = on_all(3, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto digest = [&](auto make) {
      const auto data =
          strategy.distribute_datasets_from_function([&](const InputContext& context) {
            return make(counts[context.input_pipeline_id]).batch(2);
          });
      std::string text = std::to_string(data.plan().digest());
      for (auto& batch : data) text += strategy.describe(batch);
      return text;
    };
    const auto stated = [&](auto count) {
      return numbers(count).assert_cardinality(static_cast<std::uint64_t>(count));
    };
    const auto ten = strategy.distribute_dataset(numbers(10).assert_cardinality(10).batch(4));
    const bool same = ten.plan().digest() ==
                      strategy.distribute_dataset(range_dataset(10).batch(4)).plan().digest();
    return digest(stated) == digest(range_dataset) && same ? 1 : 0;
  });
  CHECK(alike == 1);
  const auto steps = on_all(2, [&](comm::Communicator& comm) {
    const auto none = Strategy(comm).distribute_datasets_from_function(
        [&](const InputContext&) { return numbers(0).assert_cardinality(0).batch(2); });
    return none.plan().steps();
  });
  CHECK(steps == 0);
  for (const std::uint64_t wrong : {4, 6}) {
    const auto data = numbers(5).assert_cardinality(wrong).batch(2);
    CHECK(data.size() == (wrong + 1) / 2);
    const auto read = [&] {
      for ([[maybe_unused]] auto& batch : data) {
      }
    };
    CHECK_THROWS_AS(read(), DataError);
  }
}

TEST_CASE("infinite data sets may differ in their seed", "[distribute]") {
  const auto pieces = test::per_rank(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_datasets_from_function([](const InputContext& context) {
      return range_dataset(10).shuffle(context.input_pipeline_id).repeat().batch(3);
    });
    auto iterator = distributed.make_iterator();
    std::set<std::string> different;
    std::vector<Tensor<std::int64_t>> own;
    own.reserve(20);
    for (int step = 0; step < 20; ++step) {
      const auto batch = iterator.next();
      different.insert(strategy.describe(batch));
      own.push_back(strategy.local_results(batch).front());
    }
    return std::pair(own, different.size());
  });
  CHECK(pieces[0].second == 20);
  CHECK(pieces[1].second == 20);
  CHECK(pieces[0].first != pieces[1].first);
}

TEST_CASE("a global batch that does not divide is refused", "[distribute]") {
  const InputContext context{.num_replicas_in_sync = 3};
  CHECK(context.per_replica_batch_size(12) == 4);
  CHECK_THROWS_AS(context.per_replica_batch_size(16), ConfigError);
  CHECK_THROWS_AS(
      comm::run_ranks(3,
                      [](comm::Communicator& comm) {
                        Strategy(comm).distribute_datasets_from_function(
                            [](const InputContext& given) {
                              return range_dataset(9).batch(given.per_replica_batch_size(16));
                            });
                      }),
      comm::AgreedError);
}

TEST_CASE("an infinite generator of 4 floats runs 4 steps", "[distribute]") {
  const int ranks = GENERATE(1, 2, 3, 8);
  const auto [steps, warning, spec] = on_all(ranks, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto endless_ones = from_generator<Tensor<float>>([] {
      return [i = 0]() mutable -> std::optional<Tensor<float>> {
        return Tensor<float>(std::vector(4, static_cast<float>(i++)));
      };
    });
    auto distributed = strategy.distribute_dataset(endless_ones.batch(16, true));
    auto iterator = distributed.make_iterator();
    std::vector<float> sums;
    sums.reserve(4);
    for (int step = 0; step < 4; ++step) {
      sums.push_back(strategy.reduce(ReduceOp::sum, iterator.next(), 0).values()[3]);
    }
    return std::tuple(sums, distributed.warning(), to_text(distributed.element_spec()[0]));
  });
  CHECK(steps == std::vector<float>{120, 376, 632, 888});
  CHECK(warning.empty() == (ranks == 1));
  CHECK(spec ==
        (ranks == 3 ? "float32 (?, 4)" : "float32 (" + std::to_string(16 / ranks) + ", 4)"));
}

TEST_CASE("a function makes each replica's value", "[distribute]") {
  const auto text = on_all(4, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto ones =
        strategy.distribute_values_from_function([](const ValueContext&) { return 1.0; });
    const auto ids = strategy.distribute_values_from_function(
        [](const ValueContext& context) { return context.replica_id_in_sync_group; });
    return strategy.describe(ones) + strategy.describe(ids) +
           to_text(strategy.reduce(ReduceOp::sum, ones)) +
           to_text(strategy.reduce(ReduceOp::sum, ids));
  });
  CHECK(text == "{0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}{0: 0, 1: 1, 2: 2, 3: 3}4.06");
}

TEST_CASE("outputs are put back in global order", "[distribute]") {
  const int ranks = GENERATE(1, 2, 3, 4, 5, 8);
  const auto ordered = on_all(ranks, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto indexed = range_dataset(24).map([](std::int64_t i) { return std::pair(i, i); });
    auto distributed = strategy.distribute_dataset(indexed.shuffle(5).batch(6));
    std::map<std::int64_t, std::int64_t> all;
    for (auto& batch : distributed) {
      const auto indices =
          strategy.run([](const auto& index, const auto&) { return index; }, batch);
      const auto doubled = strategy.run(
          [](const auto&, const auto& x) { return x.map([](std::int64_t v) { return 2 * v; }); },
          batch);
      all.merge(in_global_order(strategy, indices, doubled));
    }
    return all;
  });
  REQUIRE(ordered.size() == 24);
  for (const auto& [index, value] : ordered) CHECK(value == 2 * index);
}

TEST_CASE("outputs of other indices are refused on every rank", "[distribute]") {
  const auto refuse = [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto of_lengths = [&](std::size_t first, std::size_t second) {
      return strategy.distribute_values_from_function([=](const ValueContext& context) {
        const std::size_t length = context.replica_id_in_sync_group == 0 ? first : second;
        return Tensor<std::int64_t>(Shape{length}, std::vector<std::int64_t>(length));
      });
    };
    in_global_order(strategy, of_lengths(2, 1), of_lengths(1, 2));  // 3 of both
  };
  CHECK_THROWS_WITH(comm::run_ranks(2, refuse),
                    Catch::Contains("indices of shape (2) for values of shape (1)"));
}

TEST_CASE("values of replicas cannot be made by hand", "[distribute]") {
  using Value = PerReplica<Tensor<float>>;
  using Weights = Mirrored<Tensor<float>>;
  STATIC_REQUIRE_FALSE(std::is_default_constructible_v<Value>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<Value, Tensor<float>>);
  STATIC_REQUIRE_FALSE(std::is_default_constructible_v<Weights>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<Weights, Tensor<float>>);
  STATIC_REQUIRE_FALSE(std::is_default_constructible_v<SyncOnRead<double>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<Value, Weights>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<Weights, Value>);
}

TEST_CASE("the first value of [5, 6, 7, 8] is {0: [5], 1: [6]}", "[distribute]") {
  CHECK(with_first_value([](auto& strategy, const auto& value) {
          return strategy.describe(value);
        }) == "{0: [5], 1: [6]}");
  const auto own = test::per_rank(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(guide());
    return strategy.local_results(distributed.make_iterator().next());
  });
  CHECK(own[0] == std::vector{Tensor<std::int32_t>({5})});
  CHECK(own[1] == std::vector{Tensor<std::int32_t>({6})});
  CHECK(own[1][0].shape() == Shape{1});
}

TEST_CASE("run computes on every replica", "[distribute]") {
  CHECK(with_first_value([](auto& strategy, const auto& value) {
          const auto more = [](const Tensor<std::int32_t>& x) {
            return x.map([](std::int32_t v) { return v + 1; });
          };
          return strategy.describe(strategy.run(more, value)) +
                 strategy.describe(strategy.run([&] { return strategy.replica_id(); }));
        }) == "{0: [6], 1: [7]}{0: 0, 1: 1}");
}

TEST_CASE("run takes arguments of all kinds apart", "[distribute]") {
  CHECK(with_first_value([](auto& strategy, const auto& value) {
          const auto weight = strategy.create_variable(10);
          const auto sum = [](std::int32_t w, const auto& pair, int plain) {
            return w + pair.first.item() + pair.second + plain;
          };
          int ran = 0;
          strategy.run([&](const auto&) { ++ran; }, value);
          return strategy.describe(strategy.run(sum, weight, std::pair(value, 100), 1000)) +
                 std::to_string(ran);
        }) == "{0: 1115, 1: 1116}1");
}

TEST_CASE("reduce adds and averages over replicas", "[distribute]") {
  const auto sum = with_first_value(
      [](auto& strategy, const auto& value) { return strategy.reduce(ReduceOp::sum, value, 0); });
  CHECK(sum == Tensor<std::int32_t>(11));
  CHECK(sum.shape().empty());
  CHECK(with_first_value([](auto& strategy, const auto& value) {
          return strategy.reduce(ReduceOp::sum, value);
        }) == Tensor<std::int32_t>({11}));
  const int ranks = GENERATE(1, 2, 3, 4, 5, 8);
  const auto reduced = on_all(ranks, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto id = strategy.replica_id();
    const auto value = strategy.run([&] {  // rank r holds r rows [r, -r]
      std::vector<double> rows;
      for (int i = 0; i < id; ++i) rows.insert(rows.end(), {double(id), double(-id)});
      return Tensor<double>({static_cast<std::size_t>(id), 2}, rows);
    });
    const auto scalar = strategy.run([&] { return static_cast<float>(id); });
    const auto row = strategy.run([&] { return Tensor<std::int8_t>({-1, 2}); });
    return std::tuple(strategy.reduce(ReduceOp::sum, value, 0), strategy.gather(value, 0),
                      strategy.reduce(ReduceOp::mean, scalar), strategy.reduce(ReduceOp::sum, row));
  });
  double squares = 0;
  for (int id = 0; id < ranks; ++id) squares += id * id;
  if (ranks > 1) {
    CHECK(std::get<0>(reduced) == Tensor<double>({squares, -squares}));
    CHECK(std::get<1>(reduced).shape() ==
          Shape{static_cast<std::size_t>(ranks * (ranks - 1) / 2), 2});
  }
  CHECK(std::get<2>(reduced) == static_cast<float>(ranks - 1) / 2);
  CHECK(std::get<3>(reduced).values()[0] == -ranks);
}

TEST_CASE("a replica without examples is left out along any axis", "[distribute]") {
  for (const std::ptrdiff_t axis : {1, -1}) {
    CHECK(on_all(2, [&](comm::Communicator& comm) {
            Strategy strategy(comm);
            const auto value = strategy.run([&] {
              return comm.rank() == 0 ? Tensor<float>() : Tensor<float>({1, 3}, {1, 2, 3});
            });
            return strategy.reduce(ReduceOp::sum, value, axis);
          }) == Tensor<float>({6.0F}));
  }
}

TEST_CASE("where no replica has examples, a sum is zeros and a mean is refused", "[distribute]") {
  const auto reduced = [](ReduceOp op, std::ptrdiff_t axis, const Tensor<float>& first) {
    return on_all(2, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      const auto value = strategy.run([&] {
        return comm.rank() == 0 ? first : Tensor<float>({0, 3}, {});
      });
      return strategy.reduce(op, value, axis);
    });
  };
  const Tensor<float> known({0, 3}, {});
  const Tensor<float> unknown;
  for (const auto& first : {known, unknown}) {
    CHECK(reduced(ReduceOp::sum, 0, first) == Tensor<float>({3}, {0, 0, 0}));
    CHECK(reduced(ReduceOp::sum, -1, first) == Tensor<float>({0}, {}));
    CHECK_THROWS_WITH(reduced(ReduceOp::mean, 0, first), Catch::Contains("the mean of no values"));
    CHECK_THROWS_AS(reduced(ReduceOp::sum, 2, first), comm::AgreedError);
  }
}

TEST_CASE("gather joins along any axis", "[distribute]") {
  const auto joined = on_all(3, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto id = static_cast<float>(strategy.replica_id());
    const auto value = strategy.run([&] { return Tensor<float>({2, 1}, {id, 10 + id}); });
    if (strategy.gather(value, -1) != strategy.gather(value, 1)) return Tensor<float>();
    const auto last = strategy.reduce(ReduceOp::sum, value, -1);
    return last == Tensor<float>({3, 33}) ? strategy.gather(value, 1) : last;
  });
  CHECK(joined == Tensor<float>({2, 3}, {0, 1, 2, 10, 11, 12}));
}

TEST_CASE("what cannot be reduced is refused on every rank", "[distribute]") {
  const auto refuse = [](auto body) {
    return [body](comm::Communicator& comm) {
      Strategy strategy(comm);
      body(strategy);
    };
  };
  const auto shapes = refuse([](Strategy& strategy) {
    const auto id = static_cast<std::size_t>(strategy.replica_id());
    const auto value = strategy.run([&] { return Tensor<float>(std::vector<float>(id + 1)); });
    strategy.reduce(ReduceOp::sum, value);
  });
  const std::ptrdiff_t axis_of_two = GENERATE(1, -2);
  const auto axis = refuse([&](Strategy& strategy) {
    const auto value = strategy.run([] { return Tensor<float>({1, 2}); });
    strategy.reduce(ReduceOp::sum, value, axis_of_two);
  });
  const auto whole = refuse(
      [](Strategy& strategy) { strategy.reduce(ReduceOp::mean, strategy.run([] { return 1; })); });
  const auto nothing = refuse([](Strategy& strategy) {
    strategy.reduce(ReduceOp::mean, strategy.run([] { return Tensor<float>(); }), 0);
  });
  const auto gathered = refuse([](Strategy& strategy) {
    strategy.gather(strategy.run([] { return Tensor<float>(1.0F); }), 0);
  });
  CHECK_THROWS_AS(comm::run_ranks(3, shapes), comm::AgreedError);
  CHECK_THROWS_WITH(comm::run_ranks(3, axis),
                    Catch::Contains("(2) has no axis " + std::to_string(axis_of_two)));
  CHECK_THROWS_AS(comm::run_ranks(3, whole), comm::AgreedError);
  CHECK_THROWS_AS(comm::run_ranks(3, nothing), comm::AgreedError);
  CHECK_THROWS_AS(comm::run_ranks(3, gathered), comm::AgreedError);
}

TEST_CASE("a mirrored variable is the same everywhere, which can be verified", "[distribute]") {
  const int ranks = GENERATE(1, 2, 3, 5);
  CHECK(on_all(ranks, [](comm::Communicator& comm) {
          Strategy strategy(comm);
          auto weights = strategy.create_variable(
              Tensor<float>({1.0F + static_cast<float>(strategy.replica_id()), 2}));
          weights.verify();
          const auto before = weights.read();
          weights.assign(before.map([](float w) { return w - 0.5F; }));
          weights.verify();
          return std::pair(before, weights.read());
        }) == std::pair(Tensor<float>({1, 2}), Tensor<float>({0.5F, 1.5F})));
}

TEST_CASE("a mirrored variable keeps its shape", "[distribute]") {
  const auto assign = [](comm::Communicator& comm) {
    auto weights = Strategy(comm).create_variable(Tensor<float>({1.0F, 2}));
    weights.assign(Tensor<float>({1.0F, 2, 3}));
  };
  CHECK_THROWS_WITH(comm::run_ranks(2, assign),
                    Catch::Contains("a value of shape (3) for a variable of shape (2)"));
}

TEST_CASE("replicas that differ are named", "[distribute]") {
  const auto differ = [](bool assign) {
    return [assign](comm::Communicator& comm) {
      Strategy strategy(comm);
      auto weights = strategy.create_variable(Tensor<float>({0.0F, 2}));
      const Tensor<float> odd({strategy.replica_id() == 1 ? -0.0F : 0.0F, 2});
      if (assign) weights.assign(odd);
      MirroredTest::damage(weights, odd);
      weights.verify();
    };
  };
  const auto invariant = Catch::Predicate<comm::AgreedError>(
      [](const comm::AgreedError& error) { return error.code() == ExitCode::invariant; });
  for (const bool assign : {true, false}) {
    CHECK_THROWS_MATCHES(comm::run_ranks(3, differ(assign)), comm::AgreedError, invariant);
    CHECK_THROWS_WITH(comm::run_ranks(3, differ(assign)), Catch::Contains("on rank 1"));
  }
}

TEST_CASE("a metric is put together when it is read", "[distribute]") {
  const int ranks = GENERATE(1, 2, 4);
  const auto read = on_all(ranks, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto sum = strategy.create_metric<double>(ReduceOp::sum);
    auto mean = strategy.create_metric<float>(ReduceOp::mean);
    auto count = strategy.create_metric<std::int32_t>(ReduceOp::sum);
    for (int step = 0; step < 3; ++step) {
      sum.add(strategy.replica_id());
      mean.add(static_cast<float>(strategy.replica_id()));
      count.add(-1);
    }
    const auto twice = sum.read() + sum.read();
    sum.reset();
    return std::tuple(twice, mean.read(), count.read(), sum.read());
  });
  const double ids = ranks * (ranks - 1) / 2.0;
  CHECK(read == std::tuple(6 * ids, static_cast<float>(3 * ids / ranks), -3 * ranks, 0.0));
}

TEST_CASE("the cluster is shown", "[distribute]") {
  const auto cluster = on_all(3, [](comm::Communicator& comm) {
    const Strategy strategy(comm, "device " + std::to_string(comm.rank()));
    return to_text(strategy.cluster());
  });
  CHECK_THAT(cluster, Catch::StartsWith("3 replicas on 1 host over threads"));
  CHECK_THAT(cluster, Catch::Contains("replica 2") && Catch::EndsWith("device 2"));
}
