#include "data/prefetch.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/toy_source.hpp"

using namespace lockstep;
using namespace lockstep::data;

namespace {

constexpr std::size_t features = 3;

/// 50 records in shuffled batches of 8: seven steps, the last of 2.
struct Setting {
  ToySource source{50, features, 2};
  Plan plan = Plan(plan_options());
  BatchReader reader{source, plan, 0};

  static PlanOptions plan_options() {
    PlanOptions options;
    options.records = 50;
    options.batch_size = 8;
    options.shuffle = Shuffle::global;
    return options;
  }
};

struct Copy {
  std::vector<float> x;
  std::vector<std::int32_t> labels;
  std::vector<std::uint64_t> ids;
  bool operator==(const Copy&) const = default;
};

template <class Reader>
Copy read(Reader& reader, std::uint64_t epoch, std::uint64_t step) {
  Copy copy;
  copy.x.resize(reader.piece(step).size() * features);
  const Batch batch = reader.read(epoch, step, copy.x);
  REQUIRE(batch.piece == reader.piece(step));
  REQUIRE(batch.global_examples == reader.plan().examples(step));
  copy.labels.assign(batch.labels.begin(), batch.labels.end());
  copy.ids.assign(batch.ids.begin(), batch.ids.end());
  return copy;
}

}  // namespace

TEST_CASE("what is read ahead is what would be read", "[prefetch]") {
  const std::size_t depth = GENERATE(0, 1, 2, 5, 40);
  Setting direct;
  Setting ahead;
  Prefetch prefetch(ahead.reader, depth);
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    for (std::uint64_t step = 0; step < direct.plan.steps(); ++step) {
      REQUIRE(read(prefetch, epoch, step) == read(direct.reader, epoch, step));
    }
  }
}

TEST_CASE("a consumer may go anywhere", "[prefetch]") {
  Setting direct;
  Setting ahead;
  Prefetch prefetch(ahead.reader, 2);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> walk = {
      {3, 4}, {3, 5}, {0, 0}, {0, 0}, {0, 6}, {1, 0}, {9, 2}, {8, 6}, {9, 0}, {9, 1}, {9, 2}};
  for (int round = 0; round < 20; ++round) {
    for (const auto& [epoch, step] : walk) {
      REQUIRE(read(prefetch, epoch, step) == read(direct.reader, epoch, step));
    }
  }
}

TEST_CASE("it reads ahead by its depth, and no further", "[prefetch]") {
  Setting setting;
  std::atomic<int> reads = 0;
  setting.source.on_read = [&] { ++reads; };
  Prefetch prefetch(setting.reader, 3);
  read(prefetch, 0, 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (reads < 4 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(reads == 4);  // the consumer's, and three ahead
}

TEST_CASE("it reads nothing beyond the end that it was told, unless asked", "[prefetch]") {
  Setting setting;
  std::atomic<int> reads = 0;
  setting.source.on_read = [&] { ++reads; };
  const auto steps = setting.reader.plan().steps();
  Prefetch prefetch(setting.reader, 2, steps + 1);
  for (std::uint64_t step = 0; step < steps; ++step) read(prefetch, 0, step);
  read(prefetch, 1, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(reads == static_cast<int>(steps) + 1);
  read(prefetch, 1, 1);
  CHECK(reads == static_cast<int>(steps) + 2);
}

TEST_CASE("views stay valid until the next read", "[prefetch]") {
  Setting direct;
  Setting ahead;
  Prefetch prefetch(ahead.reader, 1);
  std::vector<float> x(8 * features);
  for (std::uint64_t step = 0; step < 6; ++step) {
    const Batch batch = prefetch.read(0, step, x);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the thread is ahead by now
    const Copy expected = read(direct.reader, 0, step);
    REQUIRE(std::equal(batch.ids.begin(), batch.ids.end(), expected.ids.begin()));
    REQUIRE(std::equal(batch.labels.begin(), batch.labels.end(), expected.labels.begin()));
  }
}

TEST_CASE("an error comes out with the batch that met it, and again", "[prefetch]") {
  Setting setting;
  std::atomic<bool> broken = true;
  setting.source.on_read = [&, reads = 0]() mutable {
    if (++reads >= 3 && broken) throw std::runtime_error("read " + std::to_string(reads));
  };
  Prefetch prefetch(setting.reader, 5);
  read(prefetch, 0, 0);
  read(prefetch, 0, 1);
  CHECK_THROWS_WITH(read(prefetch, 0, 2), "read 3");
  CHECK_THROWS_WITH(read(prefetch, 0, 2), "read 4");
  broken = false;
  Setting direct;
  CHECK(read(prefetch, 0, 2) == read(direct.reader, 0, 2));
  CHECK(read(prefetch, 0, 3) == read(direct.reader, 0, 3));
}

TEST_CASE("an error beyond what is asked for harms nobody", "[prefetch]") {
  Setting setting;
  setting.source.on_read = [reads = 0]() mutable {
    if (++reads > 1) throw std::runtime_error("too far");
  };
  Prefetch prefetch(setting.reader, 2);
  read(prefetch, 0, 0);
}

TEST_CASE("a consumer may leave at any time", "[prefetch]") {
  for (int round = 0; round < 50; ++round) {
    Setting setting;
    Prefetch prefetch(setting.reader, 2);
    for (int step = 0; step < round % 4; ++step) {
      read(prefetch, 0, static_cast<std::uint64_t>(step));
    }
  }
}
