// What is read of a stream, and the shapes of batches without examples.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/soon.hpp"

using namespace lockstep;
using data::ShardPolicy;
using test::on_all;

namespace {

using Rows = Tensor<float>;

/// Numbers that can be read once: all generators share one position.
struct ReadOnce {
  std::shared_ptr<std::atomic<std::int64_t>> position =
      std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<std::atomic<int>> starts = std::make_shared<std::atomic<int>>(0);

  Dataset<std::int64_t> numbers(std::int64_t end = 1 << 20) const {
    return from_generator<std::int64_t>([*this, end] {
      ++*starts;
      return [at = position, end]() -> std::optional<std::int64_t> {
        const std::int64_t now = (*at)++;
        return now < end ? std::optional(now) : std::nullopt;
      };
    });
  }
};

/// Until `count` numbers were read, and a little longer, in which more could be.
void wait_for(const ReadOnce& once, std::int64_t count) {
  test::soon([&] { return *once.position >= count; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// `count` elements [1, 2, 3] whose number is not known.
Dataset<Rows> rows_of_three(std::int64_t count) {
  return from_generator<Rows>([count] {
    return [count, i = std::int64_t{0}]() mutable -> std::optional<Rows> {
      return i++ < count ? std::optional(Rows{1, 2, 3}) : std::nullopt;
    };
  });
}

}  // namespace

TEST_CASE("prefetch(n) reads n batches ahead of the last one taken", "[distribute]") {
  const bool transformed = GENERATE(false, true);
  const ReadOnce once;
  on_all(1, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto ahead = once.numbers().batch(1).prefetch(3);
    if (transformed) ahead = ahead.map([](const Tensor<std::int64_t>& batch) { return batch; });
    auto data = strategy.distribute_dataset(ahead, {.policy = ShardPolicy::data});
    auto iterator = data.make_iterator();
    iterator.next();
    wait_for(once, 4);
    return 0;
  });
  CHECK(*once.position == 4);
}

TEST_CASE("batches are read ahead as the options say, and a function's as it says",
          "[distribute]") {
  struct Case {
    bool function;
    std::size_t in_pipeline;              // the depth of its prefetch; 0: none
    std::optional<std::size_t> prefetch;  // the option
    std::int64_t read;                    // batches, when one was taken
  };
  const auto [function, in_pipeline, prefetch, read] =
      GENERATE(Case{false, 0, std::nullopt, 2}, Case{false, 0, 0, 1}, Case{false, 0, 5, 6},
               Case{true, 0, std::nullopt, 1}, Case{true, 2, std::nullopt, 3});
  const ReadOnce once;
  on_all(1, [&, function = function, in_pipeline = in_pipeline, prefetch = prefetch,
             read = read](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto batches = once.numbers().batch(1);
    if (in_pipeline > 0) batches = batches.prefetch(in_pipeline);
    auto data = function ? strategy.distribute_datasets_from_function(
                               [&](const InputContext&) { return batches; })
                         : strategy.distribute_dataset(
                               batches, {.policy = ShardPolicy::data, .prefetch = prefetch});
    auto iterator = data.make_iterator();
    iterator.next();
    wait_for(once, read);
    return 0;
  });
  CHECK(*once.position == read);
}

TEST_CASE("a stream that can be read once is started once and loses nothing", "[distribute]") {
  const bool function = GENERATE(false, true);
  const bool iterator_first = GENERATE(false, true);
  const ReadOnce once;
  const auto text = on_all(1, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto data = function ? strategy.distribute_datasets_from_function(
                               [&](const InputContext&) { return once.numbers(5).batch(2); })
                         : strategy.distribute_dataset(once.numbers(5).batch(2));
    std::string all;
    if (iterator_first) {
      auto iterator = data.make_iterator();
      all = to_text(data.element_spec()[0]) + to_text(iterator.element_spec()[0]);
      while (const auto batch = iterator.next_as_optional()) all += strategy.describe(*batch);
    } else {
      all = to_text(data.element_spec()[0]) + to_text(data.element_spec()[0]);
      for (auto& batch : data) all += strategy.describe(batch);
    }
    return all + to_text(data.element_spec()[0]);
  });
  CHECK(text == "int64 (?)int64 (?){0: [0, 1]}{0: [2, 3]}{0: [4]}int64 (?)");
  CHECK(*once.starts == 1);
}

TEST_CASE("a worker without an element has the trailing shape of the others", "[distribute]") {
  const bool counted = GENERATE(false, true);
  const auto text = on_all(3, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto data = strategy.distribute_datasets_from_function([&](const InputContext& context) {
      const auto count = static_cast<std::int64_t>(context.input_pipeline_id % 2);  // 0, 1, 0
      const auto rows =
          counted ? from_elements(std::vector<Rows>(static_cast<std::size_t>(count), Rows{1, 2, 3}))
                  : rows_of_three(count);
      return rows.map([](const Rows& x) { return std::pair(x, std::int64_t{1}); }).batch(2);
    });
    std::string all;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : data) {
        const auto shapes = strategy.run(
            [](const Rows& x, const Tensor<std::int64_t>& y) {
              return to_text(x.shape()) + to_text(y.shape());
            },
            batch);
        all += strategy.describe(shapes);
      }
    }
    return all;
  });
  const std::string step = R"x({0: "(0, 3)(0)", 1: "(1, 3)(1)", 2: "(0, 3)(0)"})x";
  CHECK(text == step + step);
}

TEST_CASE("values without elements are reduced and gathered to their shape", "[distribute]") {
  on_all(2, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    const auto same = [&](const Shape& shape) {
      return strategy.distribute_values_from_function(
          [&](const ValueContext&) { return Rows(shape, {}); });
    };
    const auto refused = [&](auto body) {
      try {
        body();
        return false;
      } catch (const comm::AgreedError&) {
        return true;
      }
    };
    const auto require = [](bool right, const char* what) {
      if (!right) throw std::runtime_error(what);
    };
    require(strategy.reduce(ReduceOp::sum, same({0, 3}), 0) == Rows({3}, {0, 0, 0}), "sum");
    require(strategy.reduce(ReduceOp::sum, same({2, 0}), 0) == Rows({0}, {}), "sum of columns");
    require(refused([&] { strategy.reduce(ReduceOp::sum, same({0, 3}), 2); }), "axis 2");
    require(refused([&] { strategy.gather(same({0, 3}), 2); }), "gather along axis 2");
    require(refused([&] { strategy.reduce(ReduceOp::mean, same({0, 3}), 0); }), "mean of nothing");
    require(strategy.gather(same({2, 0}), 0) == Rows({4, 0}, {}), "gather");
    require(strategy.gather(same({0, 3}), 0) == Rows({0, 3}, {}), "gather of no rows");
    const auto mixed = strategy.distribute_values_from_function([](const ValueContext& context) {
      return context.replica_id_in_sync_group == 0 ? Rows({0, 2}, {}) : Rows({1, 2}, {1, 3});
    });
    require(strategy.reduce(ReduceOp::sum, mixed, 0) == Rows({2}, {1, 3}), "some rows");
    require(strategy.reduce(ReduceOp::mean, mixed, 0) == Rows({2}, {1, 3}), "mean of some");
    return 0;
  });
}
