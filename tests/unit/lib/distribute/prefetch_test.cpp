#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "lockstep/distribute/readers.hpp"
#include "lockstep/distribute/sources.hpp"
#include "tests/support/soon.hpp"

using namespace lockstep;

namespace {

/// Counts up to `end`, and how often it was asked.
struct Counter {
  int end;
  std::atomic<int> asked{0};
  std::optional<int> operator()() {
    const int now = asked++;
    return now < end ? std::optional(now) : std::nullopt;
  }
};

std::shared_ptr<void> boxed(std::optional<int> value) {
  return value ? std::make_shared<int>(*value) : nullptr;
}

/// The next value; nullopt at the end.
std::optional<int> next_of(Prefetcher& ahead) {
  const auto value = ahead.next();
  return value ? std::optional(*static_cast<int*>(value.get())) : std::nullopt;
}

}  // namespace

TEST_CASE("values come in order and end, whatever the depth", "[prefetch]") {
  const auto depth = GENERATE(std::size_t{0}, 1, 2, 100);
  Counter counter{500};
  Prefetcher ahead([&] { return boxed(counter()); }, depth);
  for (int i = 0; i < 500; ++i) REQUIRE(next_of(ahead) == i);
  CHECK_FALSE(next_of(ahead));
  CHECK_FALSE(next_of(ahead));
}

TEST_CASE("a thread reads ahead, and no further than it may", "[prefetch]") {
  Counter counter{1000};
  Prefetcher ahead([&] { return boxed(counter()); }, 3);
  CHECK(counter.asked == 0);  // nothing before the first next()
  CHECK(next_of(ahead) == 0);
  CHECK(test::soon([&] { return counter.asked == 4; }));  // 1 taken, 3 ready
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(counter.asked == 4);
}

TEST_CASE("it stops cleanly at any time", "[prefetch]") {
  for (int taken = 0; taken < 50; ++taken) {
    Counter counter{1 << 30};
    Prefetcher ahead([&] { return boxed(counter()); }, 1 + static_cast<std::size_t>(taken % 4));
    for (int i = 0; i < taken; ++i) REQUIRE(next_of(ahead) == i);
  }
}

TEST_CASE("what the thread throws comes out of next(), behind the values before it", "[prefetch]") {
  const auto depth = GENERATE(std::size_t{1}, 8);
  Prefetcher ahead(
      [i = 0]() mutable {
        if (i == 3) throw std::runtime_error("line 4");
        return boxed(i++);
      },
      depth);
  for (int i = 0; i < 3; ++i) CHECK(next_of(ahead) == i);
  CHECK_THROWS_WITH(next_of(ahead), "line 4");
  CHECK_THROWS_WITH(next_of(ahead), "line 4");
}

TEST_CASE("a data set is read ahead", "[prefetch]") {
  const auto dataset =
      range_dataset(2000).map([](std::int64_t i) { return 2 * i; }).batch(10).prefetch(4);
  std::int64_t sum = 0;
  for (auto& batch : dataset.epoch(0)) {
    for (const auto value : batch.values()) sum += value;
  }
  CHECK(sum == std::int64_t{2000} * 1999);
}
