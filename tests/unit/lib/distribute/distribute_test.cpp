// The distributed-input guide's examples of sharing out, iterating and partial batches.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/numbered_file.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/toy_source.hpp"

using namespace lockstep;
using data::Rebatch;
using data::ShardPolicy;
using Steps = std::vector<std::string>;
using test::on_all;

namespace {

using Numbers = Dataset<std::int64_t>;
using NumberBatches = Dataset<Tensor<std::int64_t>>;

/// The same elements where nobody can know how many there are.
Numbers as_stream(const Numbers& numbers) {
  return from_generator<std::int64_t>([numbers] {
    return [number = numbers.begin()]() mutable -> std::optional<std::int64_t> {
      if (number == std::default_sentinel) return std::nullopt;
      const std::int64_t now = *number;
      ++number;
      return now;
    };
  });
}

/// Every step of the next epoch, written down.
template <BatchLike T>
Steps steps_of(const Strategy& strategy, DistributedDataset<T>& distributed,
               std::size_t max = 1000) {
  Steps steps;
  auto iterator = distributed.make_iterator();
  while (steps.size() < max) {
    auto batch = iterator.next_as_optional();
    if (!batch) break;
    steps.push_back(strategy.describe(*batch));
  }
  return steps;
}

Steps steps_of(int ranks, const NumberBatches& dataset, const DistributeOptions& options = {}) {
  return on_all(ranks, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(dataset, options);
    return steps_of(strategy, distributed);
  });
}

/// 12 numbers, [0..5] and [6..11], in files.
struct TwoFiles {
  TwoFiles() {
    test::write_numbers(folder.path() / "part-0", 0, 6);
    test::write_numbers(folder.path() / "part-1", 6, 6);
  }
  Numbers numbers(const FileOptions& options = {}) const {
    return from_files<std::int64_t>(folder.path() / "part-*", test::read_numbers, options);
  }
  test::TemporaryFolder folder;
};

/// Records whose one feature is their number, in files.
class CountingSource final : public data::Source {
 public:
  explicit CountingSource(std::vector<std::uint64_t> files) : files_(std::move(files)) {}
  std::uint64_t records() const noexcept override {
    std::uint64_t sum = 0;
    for (const auto file : files_) sum += file;
    return sum;
  }
  std::size_t features() const noexcept override { return 1; }
  float divisor() const noexcept override { return 1; }
  std::vector<std::uint64_t> file_records() const override { return files_; }
  std::string identity() const override { return "counting"; }
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override {
    reads += ids.size();
    ++calls;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      x[i] = static_cast<float>(ids[i]);
      labels[i] = static_cast<std::int32_t>(ids[i] % 10);
    }
  }
  std::uint64_t reads = 0;
  std::uint64_t calls = 0;

 private:
  std::vector<std::uint64_t> files_;
};

NumberBatches from_counting(std::vector<std::uint64_t> files, std::uint64_t batch) {
  return from_source(std::make_shared<CountingSource>(std::move(files)))
      .map([](const Tensor<float>& x, std::int32_t) {
        return static_cast<std::int64_t>(x.values()[0]);
      })
      .batch(batch);
}

const DistributeOptions by_data = {.policy = ShardPolicy::data};
const DistributeOptions by_file = {.policy = ShardPolicy::file};
const DistributeOptions off = {.policy = ShardPolicy::off};

}  // namespace

TEST_CASE("batches are cut for replicas as the guide says", "[distribute]") {
  const bool stream = GENERATE(false, true);
  const auto numbers = [&](std::int64_t count) {
    return stream ? as_stream(range_dataset(count)) : range_dataset(count);
  };
  CHECK(steps_of(2, numbers(6).batch(4)) == Steps{"{0: [0, 1], 1: [2, 3]}", "{0: [4], 1: [5]}"});
  CHECK(steps_of(5, numbers(4).batch(4)) == Steps{"{0: [0], 1: [1], 2: [2], 3: [3], 4: []}"});
  CHECK(steps_of(3, numbers(8).batch(4)) ==
        Steps{"{0: [0, 1], 1: [2, 3], 2: []}", "{0: [4, 5], 1: [6, 7], 2: []}"});
  CHECK(steps_of(2, numbers(9).batch(4)) ==
        Steps{"{0: [0, 1], 1: [2, 3]}", "{0: [4, 5], 1: [6, 7]}", "{0: [8], 1: []}"});
  CHECK(steps_of(2, numbers(9).batch(4, true)).size() == 2);
  CHECK(steps_of(3, numbers(0).batch(4)).empty());
}

TEST_CASE("100 elements in batches of 16 are seven batches", "[distribute]") {
  const auto ones = from_elements(std::vector(100, std::pair(1.0F, 1.0F))).batch(16);
  const auto sizes = on_all(1, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(ones);
    std::vector<std::size_t> rows;
    for (auto& batch : distributed) {
      const auto loss = strategy.run(
          [](const Tensor<float>& features, const Tensor<float>& labels) {
            auto result = labels;
            for (std::size_t i = 0; i < result.rows(); ++i) {
              result.values()[i] -= 0.3F * features.values()[i];
            }
            return result;
          },
          batch);
      const auto result = strategy.local_results(loss).front();
      rows.push_back(result.rows());
      for (const float value : result.values()) {
        if (value != 1.0F - 0.3F) throw std::runtime_error("not 0.7");
      }
    }
    return rows;
  });
  CHECK(sizes == std::vector<std::size_t>{16, 16, 16, 16, 16, 16, 4});
}

TEST_CASE("two workers share 12 elements by every policy", "[distribute]") {
  const TwoFiles files;
  const Steps file = {"{0: [0, 1], 1: [6, 7]}", "{0: [2, 3], 1: [8, 9]}", "{0: [4], 1: [10]}",
                      "{0: [5], 1: [11]}"};
  const Steps data = {"{0: [0, 1], 1: [2, 3]}", "{0: [4, 5], 1: [6, 7]}",
                      "{0: [8, 9], 1: [10, 11]}"};
  const auto stream = files.numbers().batch(4);
  CHECK(steps_of(2, stream) == file);  // AUTO
  CHECK(steps_of(2, stream, by_file) == file);
  CHECK(steps_of(2, from_counting({6, 6}, 4)) == file);
  CHECK(steps_of(2, stream, by_data) == data);
  CHECK(steps_of(2, from_counting({12}, 4), by_data) == data);
  for (const auto& all : {stream, from_counting({12}, 4), range_dataset(12).batch(4)}) {
    const auto steps = steps_of(2, all, off);
    CHECK(steps.size() == 6);
    CHECK(steps[5] == "{0: [10, 11], 1: [10, 11]}");
  }
  for (auto options : {by_file, off}) {
    options.rebatch = Rebatch::balanced;
    const auto planned = steps_of(2, from_counting({6, 6}, 4), options);
    CHECK(planned == steps_of(2, stream, options));
    if (options.policy == ShardPolicy::file) {
      CHECK(planned ==
            Steps{"{0: [0, 1], 1: [6, 7]}", "{0: [2, 3], 1: [8, 9]}", "{0: [4, 5], 1: [10, 11]}"});
    }
  }
}

TEST_CASE("combined data sets keep a plan, or are read batch by batch alike", "[distribute]") {
  const auto policy = GENERATE(ShardPolicy::automatic, ShardPolicy::data, ShardPolicy::off);
  const int ranks = GENERATE(2, 3);
  const auto made = [](const Numbers& a, const Numbers& b) {
    return a.concatenate(b).skip(1).enumerate().zip(b.repeat()).batch(4);
  };
  const auto steps = [&](const auto& dataset) {
    return on_all(ranks, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      auto distributed = strategy.distribute_dataset(dataset, {.policy = policy});
      return std::pair(steps_of(strategy, distributed), distributed.has_plan());
    });
  };
  const auto planned = steps(made(range_dataset(7), range_dataset(3)));
  const auto read = steps(made(as_stream(range_dataset(7)), as_stream(range_dataset(3))));
  CHECK(planned.second);
  CHECK_FALSE(read.second);
  CHECK(planned.first == read.first);
}

TEST_CASE("filtered and listed files follow the policies", "[distribute]") {
  const TwoFiles files;
  const auto even = [](std::int64_t i) { return i % 2 == 0; };
  CHECK(steps_of(2, range_dataset(9).filter(even).batch(4)) ==
        Steps{"{0: [0, 2], 1: [4, 6]}", "{0: [8], 1: []}"});
  CHECK(steps_of(2, files.numbers().filter(even).batch(4)) ==
        Steps{"{0: [0, 2], 1: [6, 8]}", "{0: [4], 1: [10]}"});
  CHECK(steps_of(2, files.numbers().filter([](std::int64_t i) { return i > 5; }).batch(4)) ==
        Steps{"{0: [], 1: [6, 7]}", "{0: [], 1: [8, 9]}", "{0: [], 1: [10]}", "{0: [], 1: [11]}"});
  const auto listed = list_files(files.folder.path() / "part-*").flat_map([](const std::string& p) {
    return from_files<std::int64_t>(p, test::read_numbers);
  });
  for (const auto& options : {DistributeOptions{}, by_file, by_data, off}) {
    CHECK(steps_of(2, listed.batch(4), options) == steps_of(2, files.numbers().batch(4), options));
  }
  // Files on one side only: the other cannot be shared out by files.
  CHECK(steps_of(2, listed.concatenate(range_dataset(2)).batch(4)) ==
        steps_of(2, listed.concatenate(range_dataset(2)).batch(4), by_data));
  CHECK(steps_of(2, listed.concatenate(files.numbers()).batch(4))[3] == "{0: [0, 1], 1: [6, 7]}");
}

TEST_CASE("elements that are not batched are cut along their axis 0", "[distribute]") {
  const auto element = [](std::int64_t i) {
    return Tensor<std::int64_t>({4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
  };
  const auto numbers = GENERATE_REF(range_dataset(1 << 20), as_stream(range_dataset(1 << 20)));
  const auto first = [&](int ranks) {
    return on_all(ranks, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      auto distributed = strategy.distribute_dataset(numbers.map(element));
      return steps_of(strategy, distributed, 2);
    });
  };
  CHECK(first(1) == Steps{"{0: [0, 1, 2, 3]}", "{0: [4, 5, 6, 7]}"});
  CHECK(first(2) == Steps{"{0: [0, 1], 1: [2, 3]}", "{0: [4, 5], 1: [6, 7]}"});
  CHECK(first(3) == Steps{"{0: [0, 1], 1: [2, 3], 2: []}", "{0: [4, 5], 1: [6, 7], 2: []}"});
}

TEST_CASE("uneven files end together", "[distribute]") {
  const int ranks = GENERATE(1, 2, 3, 4, 5);
  const test::TemporaryFolder folder;
  const std::vector<std::uint64_t> sizes = {5, 1, 9, 2, 4};
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto count = static_cast<std::int64_t>(sizes[i]);
    test::write_numbers(folder.path() / std::to_string(i), first, count);
    first += count;
  }
  const auto stream = from_files<std::int64_t>(folder.path() / "*", test::read_numbers);
  for (const auto rule : {Rebatch::ceil, Rebatch::balanced}) {
    const DistributeOptions options = {.policy = ShardPolicy::file, .rebatch = rule};
    CHECK(steps_of(ranks, stream.batch(6), options) ==
          steps_of(ranks, from_counting(sizes, 6), options));
  }
}

TEST_CASE("AUTO falls back with a warning, or refuses", "[distribute]") {
  const auto decided = [](const NumberBatches& dataset, int ranks) {
    return on_all(ranks, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      const auto distributed = strategy.distribute_dataset(dataset);
      return std::pair(distributed.policy(), distributed.warning());
    });
  };
  const auto [policy, warning] = decided(range_dataset(12).batch(4), 2);
  CHECK(policy == ShardPolicy::data);
  CHECK_THAT(warning, Catch::Contains("does not come from files"));
  CHECK(decided(range_dataset(12).batch(4), 1).second.empty());
  CHECK(decided(from_counting({6, 6}, 4), 2) == std::pair(ShardPolicy::file, std::string()));
  CHECK_THROWS_AS(decided(from_counting({6, 6}, 4), 3), comm::AgreedError);
  CHECK_THROWS_WITH(decided(from_counting({6, 6}, 4), 3),
                    Catch::Contains("2 files with records in use for 3 workers") &&
                        Catch::Contains("data") && Catch::Contains("off") &&
                        Catch::Contains("convert"));
}

TEST_CASE("what cannot be shared out is refused on every rank alike", "[distribute]") {
  const auto share = [](const NumberBatches& dataset, const DistributeOptions& options) {
    comm::run_ranks(
        3, [&](comm::Communicator& comm) { Strategy(comm).distribute_dataset(dataset, options); });
  };
  const auto refused = Catch::Predicate<comm::AgreedError>(
      [](const comm::AgreedError& error) { return error.code() == ExitCode::usage; });
  CHECK_THROWS_MATCHES(share(range_dataset(9).map([](std::int64_t i) {
                         return Tensor<std::int64_t>{i, i};
                       }),
                             {.policy = ShardPolicy::off, .rebatch = Rebatch::balanced}),
                       comm::AgreedError, refused);
  CHECK_THROWS_MATCHES(share(range_dataset(9).batch(4), {.rebatch = Rebatch::balanced}),
                       comm::AgreedError, refused);
  CHECK_THROWS_MATCHES(share(from_counting({1, 1, 1}, 2), {.rebatch = Rebatch::balanced}),
                       comm::AgreedError, refused);
  CHECK_THROWS_MATCHES(share(range_dataset(9).batch(4), by_file), comm::AgreedError, refused);
  CHECK_THROWS_MATCHES(share(range_dataset(9).batch(4), {.prefetch = static_cast<std::size_t>(-1)}),
                       comm::AgreedError, refused);
  const auto differ = [](comm::Communicator& comm) {
    Strategy(comm).distribute_dataset(range_dataset(9 + comm.rank() / 2).batch(4));
  };
  CHECK_THROWS_WITH(comm::run_ranks(3, differ), Catch::Contains("data is range 10 on rank 2"));
  const auto differ_in_seed = [](comm::Communicator& comm) {
    Strategy(comm).distribute_dataset(range_dataset(9).shuffle(comm.rank() / 2).batch(4));
  };
  CHECK_THROWS_WITH(comm::run_ranks(3, differ_in_seed),
                    Catch::Contains("data is range 9, shuffle with seed 1 on rank 2"));
}

TEST_CASE("replicas without data contribute nothing", "[distribute]") {
  const auto gradient = on_all(3, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(range_dataset(8).batch(4));
    auto iterator = distributed.make_iterator();
    const auto batch = iterator.next();
    const auto floats = strategy.run(
        [](const Tensor<std::int64_t>& x) {
          return x.map([](std::int64_t i) { return static_cast<double>(i); });
        },
        batch);
    return std::tuple(strategy.describe(floats), strategy.reduce(ReduceOp::mean, floats, 0).item(),
                      strategy.gather(floats, 0));
  });
  CHECK(std::get<0>(gradient) == "{0: [0.0, 1.0], 1: [2.0, 3.0], 2: []}");
  CHECK(std::get<1>(gradient) == (0.0 + 1 + 2 + 3) / 4);
  CHECK(std::get<2>(gradient) == Tensor<double>({0, 1, 2, 3}));
}

TEST_CASE("an empty piece has the shape of the others", "[distribute]") {
  const auto rows = from_elements(std::vector(4, std::pair(Tensor<float>({1, 2, 3}), 7)));
  const auto shapes = test::per_rank(5, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(rows.batch(4));
    auto iterator = distributed.make_iterator();
    return strategy.local_results(
        strategy.run([](const Tensor<float>& x,
                        const Tensor<int>& y) { return std::pair(x.shape(), y.shape()); },
                     iterator.next()))[0];
  });
  CHECK(shapes[0] == std::pair(Shape{1, 3}, Shape{1}));
  CHECK(shapes[4] == std::pair(Shape{0, 3}, Shape{0}));
}

TEST_CASE("10 epochs of 5 steps are 50 steps", "[distribute]") {
  const int ranks = GENERATE(1, 2, 3);
  const auto steps = on_all(ranks, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(range_dataset(80).shuffle(7).batch(8));
    int count = 0;
    std::set<std::string> first;
    for (int epoch = 0; epoch < 10; ++epoch) {
      auto iterator = distributed.make_iterator();
      for (int step = 0; step < 5; ++step) {
        const auto batch = iterator.next();
        if (step == 0) first.insert(strategy.describe(batch));
        ++count;
      }
    }
    return std::pair(count, first.size());
  });
  CHECK(steps == std::pair(50, std::size_t{10}));  // every epoch in an order of its own
}

TEST_CASE("past the end is OutOfRange, or nothing", "[distribute]") {
  const bool stream = GENERATE(false, true);
  const auto seen = on_all(2, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(
        (stream ? as_stream(range_dataset(9)) : range_dataset(9)).batch(4));
    auto iterator = distributed.make_iterator();
    int caught = 0;
    for (int step = 0; step < 5; ++step) {
      try {
        iterator.next();
      } catch (const OutOfRange&) {
        ++caught;
      }
    }
    auto again = distributed.make_iterator();
    int steps = 0;
    while (again.next_as_optional()) ++steps;
    return std::tuple(caught, steps, again.next_as_optional().has_value());
  });
  CHECK(seen == std::tuple(2, 3, false));
}

TEST_CASE("an epoch can be named, as after a restart", "[distribute]") {
  const auto [zero, one, named, two] = on_all(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(range_dataset(40).shuffle(3).batch(8));
    const auto first = steps_of(strategy, distributed);
    const auto second = steps_of(strategy, distributed);
    auto again = distributed.make_iterator(1);
    const auto step = strategy.describe(again.next());
    return std::tuple(first, second, step, steps_of(strategy, distributed));
  });
  CHECK(zero != one);
  CHECK(named == one[0]);
  CHECK(two != one);
}

template <class T>
concept Transformable = requires(T t) {
  t.batch(2);
}
|| requires(T t) { t.repeat(); }
|| requires(T t) {
  t.map([](auto x) { return x; });
}
|| requires(T t) { t.prefetch(1); }
|| requires(T t) { t.take(1); };

TEST_CASE("a distributed data set is not a data set", "[distribute]") {
  STATIC_REQUIRE(Transformable<NumberBatches>);
  STATIC_REQUIRE_FALSE(Transformable<DistributedDataset<Tensor<std::int64_t>>>);
  STATIC_REQUIRE_FALSE(
      std::is_convertible_v<DistributedDataset<Tensor<std::int64_t>>, NumberBatches>);
}

TEST_CASE("the element spec tells type and shape", "[distribute]") {
  const auto spec = [](int ranks, const auto& dataset) {
    return on_all(ranks, [&](comm::Communicator& comm) {
      const auto distributed = Strategy(comm).distribute_dataset(dataset, by_data);
      std::string text;
      for (const auto& one : distributed.element_spec()) text += to_text(one) + "; ";
      return text;
    });
  };
  const auto numbers = from_elements<std::int32_t>({5, 6, 7, 8});
  CHECK(spec(2, numbers.batch(2)) == "int32 (1); ");
  CHECK(spec(3, numbers.batch(2)) == "int32 (?); ");  // 2 does not divide by 3
  CHECK(spec(2, numbers.batch(3)) == "int32 (?); ");  // 3 does not divide by 2
  CHECK(spec(1, numbers.batch(3)) == "int32 (?); ");  // the last batch holds one
  CHECK(spec(1, numbers.batch(3, true)) == "int32 (3); ");
  CHECK(spec(2, numbers.repeat().batch(6)) == "int32 (3); ");
  const auto toy = from_source(std::make_shared<ToySource>(32, 5, 3));
  CHECK(spec(2, toy.batch(8)) == "float32 (4, 5); int32 (4); ");
  const auto of_workers = test::per_rank(2, [](comm::Communicator& comm) {
    const auto data =
        Strategy(comm).distribute_datasets_from_function([](const InputContext& context) {
          return range_dataset(context.input_pipeline_id == 0 ? 4 : 3).batch(2);
        });
    return to_text(data.element_spec()[0]);
  });
  CHECK(of_workers == std::vector<std::string>(2, "int64 (?)"));  // the second one ends with 1
}

TEST_CASE("workers' data sets that are too large for a plan are read without one", "[distribute]") {
  const auto reasons = test::per_rank(3, [](comm::Communicator& comm) {
    const auto data = Strategy(comm).distribute_datasets_from_function([](const InputContext&) {
      return range_dataset(std::numeric_limits<std::int64_t>::max()).batch(4);
    });
    try {
      data.plan();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  for (const auto& reason : reasons) CHECK_THAT(reason, Catch::Contains("too large for a plan"));
}

TEST_CASE("only one thread at a time reads from a source", "[distribute]") {
  const auto source = std::make_shared<ToySource>(64, 5, 3);
  std::atomic<int> readers = 0;
  std::atomic<bool> were_alone = true;
  source->on_read = [&](std::size_t) {
    if (++readers > 1) were_alone = false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    --readers;
  };
  const data::Plan plan({.records = 64, .batch_size = 8});
  std::jthread other([&] {
    data::BatchReader reader(*source, plan, 0);
    std::vector<float> x(8 * source->features());
    for (std::uint64_t step = 0; step < plan.steps(); ++step) reader.read(0, step, x);
  });
  int passed = 0;
  for ([[maybe_unused]] const auto& record : from_source(source)) ++passed;
  for ([[maybe_unused]] const auto& batch : from_source(source).batch(8)) ++passed;
  other.join();
  CHECK(passed == 64 + 8);
  CHECK(were_alone);
}

TEST_CASE("a rank reads its own examples alone", "[distribute]") {
  const auto reads = test::per_rank(4, [](comm::Communicator& comm) {
    const auto source = std::make_shared<CountingSource>(std::vector<std::uint64_t>{32});
    Strategy strategy(comm);
    auto distributed =
        strategy.distribute_dataset(from_source(source).shuffle(1).batch(8), by_data);
    for (auto& batch : distributed) strategy.local_results(batch);
    return source->reads;
  });
  CHECK(reads == std::vector<std::uint64_t>(4, 8));
}

TEST_CASE("batches of a source are read at once, in the order of its elements", "[distribute]") {
  const auto policy = GENERATE(ShardPolicy::data, ShardPolicy::file, ShardPolicy::off);
  const bool drop = GENERATE(false, true);
  const std::vector<std::uint64_t> files = {7, 5, 9};
  const auto alike = test::per_rank(2, [&](comm::Communicator& comm) {
    const auto source = std::make_shared<CountingSource>(files);
    const auto singly =
        from_source(std::make_shared<CountingSource>(files))
            .map([](const Tensor<float>& x, std::int32_t label) { return std::pair(x, label); })
            .shuffle(1)
            .batch(4, drop);
    Strategy strategy(comm);
    const DistributeOptions options = {.policy = policy, .prefetch = 0};
    auto batches =
        strategy.distribute_dataset(from_source(source).shuffle(1).batch(4, drop), options);
    auto expected = strategy.distribute_dataset(singly, options);
    const Steps first = steps_of(strategy, batches);
    const bool same = first == steps_of(strategy, expected) &&
                      steps_of(strategy, batches) == steps_of(strategy, expected);
    return static_cast<int>(same && source->calls <= 2 * first.size());  // in two epochs
  });
  CHECK(alike == std::vector<int>(2, 1));
}

TEST_CASE("batches of a source are read at once without a strategy, too", "[distribute]") {
  const auto source = std::make_shared<CountingSource>(std::vector<std::uint64_t>{21});
  std::size_t records = 0;
  for (const auto& batch : from_source(source).shuffle(1).batch(4).epoch(0)) {
    records += rows_of(batch);
  }
  CHECK(records == 21);
  CHECK(source->calls == 6);
}

TEST_CASE("the plan is the trainer's", "[distribute]") {
  const int ranks = GENERATE(1, 2, 3, 5);
  const std::uint64_t leaf = GENERATE(0, 1, 3);
  const std::uint64_t most = GENERATE(data::float32_leaf, data::bf16_leaf);
  const data::PlanOptions options = {.records = 703,
                                     .batch_size = 300,
                                     .ranks = static_cast<std::uint64_t>(ranks),
                                     .leaf = leaf,
                                     .max_leaf = most,
                                     .shuffle = data::Shuffle::global,
                                     .seed = 9};
  const data::Plan plan(options);
  const auto steps = test::per_rank(ranks, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto distributed =
        strategy.distribute_dataset(range_dataset(703).shuffle(9).batch(300),
                                    {.policy = ShardPolicy::data, .leaf = leaf, .max_leaf = most});
    distributed.make_iterator(4);
    std::vector<std::vector<std::uint64_t>> ids;
    for (auto& batch : distributed) {  // epoch 5
      const auto mine = strategy.local_results(batch)[0];
      ids.emplace_back(mine.values().begin(), mine.values().end());
    }
    return ids;
  });
  std::vector<std::uint64_t> expected;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto me = static_cast<std::size_t>(rank);
    REQUIRE(steps[me].size() == plan.steps());
    for (std::size_t step = 0; step < plan.steps(); ++step) {
      plan.records(5, step, me, expected);
      REQUIRE(steps[me][step] == expected);
    }
  }
}

TEST_CASE("transformed batches are cut behind the transformation", "[distribute]") {
  const auto reversed = [](const Tensor<std::int64_t>& batch) {
    std::vector<std::int64_t> values(batch.values().rbegin(), batch.values().rend());
    return Tensor(values);
  };
  CHECK(steps_of(2, range_dataset(6).batch(4).map(reversed)) ==
        Steps{"{0: [3, 2], 1: [1, 0]}", "{0: [5], 1: [4]}"});
  CHECK(steps_of(2, range_dataset(6).batch(4).repeat(2)).size() == 4);
  CHECK(steps_of(2, range_dataset(6).batch(4).prefetch(2)) ==
        steps_of(2, range_dataset(6).batch(4)));
  for (const std::size_t ahead : {0U, 1U, 7U}) {
    CHECK(steps_of(2, range_dataset(6).batch(4), {.prefetch = ahead}) ==
          steps_of(2, range_dataset(6).batch(4)));
  }
}

TEST_CASE("one rank's failure behind messages is everybody's", "[distribute]") {
  const TwoFiles files;
  const auto broken = [&](comm::Communicator& comm) {
    const auto numbers = files.numbers().map([](std::int64_t i) {
      if (i == 9) throw DataError("part-1: line 4: no number");
      return i;
    });
    Strategy strategy(comm);
    auto distributed = strategy.distribute_dataset(numbers.batch(4));
    steps_of(strategy, distributed);
  };
  CHECK_THROWS_AS(comm::run_ranks(2, broken), comm::AgreedError);
  CHECK_THROWS_WITH(comm::run_ranks(2, broken),
                    Catch::StartsWith("rank 1 on ") && Catch::Contains("part-1: line 4"));
}
