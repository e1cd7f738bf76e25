#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory_resource>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/data/batches.hpp"
#include "lockstep/data/synthetic.hpp"
#include "tests/support/soon.hpp"
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

std::size_t width_of(const BatchReader& reader) { return reader.features(); }
std::size_t width_of(const Prefetch& prefetch) { return prefetch.features(); }

template <class Reader>
Copy read(Reader& reader, std::uint64_t epoch, std::uint64_t step) {
  Copy copy;
  copy.x.resize(reader.piece(step).size() * width_of(reader));
  const Batch batch = reader.read(epoch, step, copy.x);
  REQUIRE(batch.piece == reader.piece(step));
  REQUIRE(batch.global_examples == reader.plan().examples(step));
  copy.labels.assign(batch.labels.begin(), batch.labels.end());
  copy.ids.assign(batch.ids.begin(), batch.ids.end());
  return copy;
}

/// Called by each read: the first one takes so long that all others are read by the thread.
std::function<void()> slow_begin() {
  return [is_first = true]() mutable {
    if (std::exchange(is_first, false)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
}

/// The same as Source::on_read.
std::function<void(std::size_t)> on_slow_begin() {
  return [begin = slow_begin()](std::size_t) { begin(); };
}

constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

/// The same of drawn digits, which are bytes.
struct Digits {
  SyntheticSource source{
      data::drawn_digits, Part::train, {.limit = 50, .divide_by = 3.0F, .classes = 10}};
  Plan plan = Plan(Setting::plan_options());
  BatchReader reader{source, plan, 0};
};

/// What was taken, bytes divided.
Copy copy_of(const StagedBatch& staged, const BatchReader& reader) {
  Copy copy;
  copy.x.assign(staged.floats.begin(), staged.floats.end());
  for (const std::uint8_t byte : staged.bytes) {
    copy.x.push_back(static_cast<float>(byte) / reader.divisor());
  }
  copy.labels.assign(staged.batch.labels.begin(), staged.batch.labels.end());
  copy.ids.assign(staged.batch.ids.begin(), staged.batch.ids.end());
  return copy;
}

/// Waits for the thread. Throws after 20 seconds.
StagedBatch wait_until_ready(Prefetch& prefetch, std::uint64_t epoch, std::uint64_t step) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto staged = prefetch.ready(epoch, step)) return *staged;
    std::this_thread::yield();
  }
  throw std::runtime_error("never ready");
}

/// Knows what it gave, and gives no more than `left` blocks.
class Recording final : public std::pmr::memory_resource {
 public:
  bool holds(std::span<const std::byte> view) const {
    if (view.empty()) return true;
    const auto after = blocks.upper_bound(view.data());
    if (after == blocks.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return view.data() + view.size() <= begin + size;
  }

  std::map<const std::byte*, std::size_t> blocks;
  std::size_t bytes = 0;
  int left = 1000;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    if (left-- == 0) throw std::bad_alloc();
    void* const block = std::pmr::new_delete_resource()->allocate(size, alignment);
    blocks[static_cast<const std::byte*>(block)] = size;
    bytes += size;
    return block;
  }
  void do_deallocate(void* block, std::size_t size, std::size_t alignment) override {
    blocks.erase(static_cast<const std::byte*>(block));
    std::pmr::new_delete_resource()->deallocate(block, size, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

TEST_CASE("what is read ahead is what would be read", "[prefetch]") {
  const std::size_t depth = GENERATE(0, 1, 2, 5, 40);
  Setting direct;
  Setting ahead;
  ahead.source.on_read = on_slow_begin();
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
  ahead.source.on_read = on_slow_begin();
  Prefetch prefetch(ahead.reader, 2);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> walk = {
      {3, 4}, {3, 5}, {0, 0}, {0, 0}, {0, 6}, {1, 0}, {9, 2}, {8, 6}, {9, 0}, {9, 1}, {9, 2}};
  for (int round = 0; round < 20; ++round) {
    for (const auto& [epoch, step] : walk) {
      REQUIRE(read(prefetch, epoch, step) == read(direct.reader, epoch, step));
    }
  }
}

TEST_CASE("the thread reads once reading is slow, ahead by its depth", "[prefetch]") {
  for (int attempt = 0; attempt < 100; ++attempt) {
    Setting direct;
    Setting setting;
    std::atomic<int> reads = 0;
    bool slow = false;
    setting.source.on_read = [&](std::size_t) {
      ++reads;
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    Prefetch prefetch(setting.reader, 3);
    prefetch.start();
    const auto begin = std::chrono::steady_clock::now();
    const Copy first = read(prefetch, 0, 0);
    const auto taken = std::chrono::steady_clock::now() - begin;
    if (taken > std::chrono::milliseconds(4)) continue;  // on a busy machine; 5 ms count as slow
    CHECK(first == read(direct.reader, 0, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(reads == 1);
    slow = true;
    CHECK(read(prefetch, 0, 1) == read(direct.reader, 0, 1));
    CHECK(reads == 2);
    CHECK(read(prefetch, 0, 2) == read(direct.reader, 0, 2));
    REQUIRE(test::soon([&] { return reads >= 6; }));  // the consumer's three, and three ahead
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(reads == 6);
    CHECK(read(prefetch, 0, 3) == read(direct.reader, 0, 3));
    return;
  }
  FAIL("each of 100 first reads took more than 4 ms");
}

TEST_CASE("it reads nothing beyond the end that it was told, unless asked", "[prefetch]") {
  Setting setting;
  std::atomic<int> reads = 0;
  setting.source.on_read = [&, begin = slow_begin()](std::size_t) {
    ++reads;
    begin();
  };
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
  ahead.source.on_read = on_slow_begin();
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
  setting.source.on_read = [&, reads = 0, begin = slow_begin()](std::size_t) mutable {
    begin();
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
  std::atomic<int> reads = 0;
  setting.source.on_read = [&reads, begin = slow_begin()](std::size_t) mutable {
    begin();
    if (++reads > 2) throw std::runtime_error("too far");
  };
  Prefetch prefetch(setting.reader, 2);
  Setting direct;
  CHECK(read(prefetch, 0, 0) == read(direct.reader, 0, 0));
  CHECK(read(prefetch, 0, 1) == read(direct.reader, 0, 1));
  REQUIRE(test::soon([&] { return reads > 2; }));  // the thread has met the error
}

TEST_CASE("a consumer may leave at any time", "[prefetch]") {
  for (int round = 0; round < 50; ++round) {
    Setting setting;
    setting.source.on_read = on_slow_begin();
    Prefetch prefetch(setting.reader, 2);
    for (int step = 0; step < round % 4; ++step) {
      read(prefetch, 0, static_cast<std::uint64_t>(step));
    }
  }
}

TEST_CASE("what is taken is what would be read, in order", "[prefetch][staged]") {
  const std::size_t depth = GENERATE(0, 1, 2, 3, 4);
  Digits direct;
  Digits ahead;
  Prefetch prefetch(ahead.reader, depth, endless, *std::pmr::new_delete_resource());
  CHECK(prefetch.divisor() == 3.0F);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    for (std::uint64_t step = 0; step < direct.plan.steps(); ++step) {
      const StagedBatch staged = prefetch.take(epoch, step);
      REQUIRE(staged.batch.step == step);
      REQUIRE(staged.batch.piece == direct.reader.piece(step));
      REQUIRE(copy_of(staged, ahead.reader) == read(direct.reader, epoch, step));
      REQUIRE(staged.floats.empty());
    }
  }
}

TEST_CASE("what was taken stays while the next one is taken", "[prefetch][staged]") {
  const std::size_t depth = GENERATE(0, 1, 2, 3, 4);
  Digits direct;
  Digits ahead;
  Prefetch prefetch(ahead.reader, depth, endless, *std::pmr::new_delete_resource());
  const std::uint64_t steps = direct.plan.steps();
  const auto expected = [&](std::uint64_t i) { return read(direct.reader, i / steps, i % steps); };
  StagedBatch last = prefetch.take(0, 0);
  for (std::uint64_t i = 1; i < 3 * steps; ++i) {
    const StagedBatch next = prefetch.take(i / steps, i % steps);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the thread is ahead by now
    REQUIRE(copy_of(last, ahead.reader) == expected(i - 1));
    REQUIRE(copy_of(next, ahead.reader) == expected(i));
    last = next;
  }
}

TEST_CASE("what was taken stays while the consumer goes elsewhere", "[prefetch][staged]") {
  const std::size_t depth = GENERATE(0, 1, 2, 3, 4);
  Digits direct;
  Digits ahead;
  Prefetch prefetch(ahead.reader, depth, endless, *std::pmr::new_delete_resource());
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> walk = {
      {3, 4}, {3, 5}, {0, 0}, {0, 0}, {0, 6}, {1, 0}, {9, 2}, {8, 6}, {9, 0}, {9, 1}, {9, 2}};
  std::optional<StagedBatch> last;
  Copy expected_last;
  for (int round = 0; round < 20; ++round) {
    for (const auto& [epoch, step] : walk) {
      const StagedBatch next = prefetch.take(epoch, step);
      const Copy expected = read(direct.reader, epoch, step);
      if (round % 2 == 0) std::this_thread::yield();
      if (last) REQUIRE(copy_of(*last, ahead.reader) == expected_last);
      REQUIRE(copy_of(next, ahead.reader) == expected);
      last = next;
      expected_last = expected;
    }
  }
}

TEST_CASE("numbers are held as floats", "[prefetch][staged]") {
  Setting direct;
  Setting ahead;
  Prefetch prefetch(ahead.reader, 2, endless, *std::pmr::new_delete_resource());
  const StagedBatch staged = prefetch.take(0, 0);
  CHECK(staged.bytes.empty());
  CHECK(copy_of(staged, ahead.reader) == read(direct.reader, 0, 0));
}

TEST_CASE("a batch that is ready is the one that is taken", "[prefetch][staged]") {
  const std::size_t depth = GENERATE(1, 2, 3, 4);
  Digits direct;
  Digits ahead;
  Prefetch prefetch(ahead.reader, depth, endless, *std::pmr::new_delete_resource());
  CHECK_FALSE(prefetch.ready(0, 0));  // nobody has said where to begin
  prefetch.take(0, 0);
  const std::uint64_t steps = direct.plan.steps();
  for (std::uint64_t i = 1; i < 3 * steps; ++i) {
    // All that are ahead, in order, before the first of them is taken.
    for (std::uint64_t k = i; k < i + depth; ++k) {
      const StagedBatch early = wait_until_ready(prefetch, k / steps, k % steps);
      REQUIRE(copy_of(early, ahead.reader) == read(direct.reader, k / steps, k % steps));
    }
    const std::uint64_t beyond = i + depth;
    REQUIRE_FALSE(prefetch.ready(beyond / steps, beyond % steps));
    REQUIRE_FALSE(prefetch.ready((i - 1) / steps, (i - 1) % steps));  // taken already
    const StagedBatch early = *prefetch.ready(i / steps, i % steps);
    const StagedBatch taken = prefetch.take(i / steps, i % steps);
    REQUIRE(early.floats.data() == taken.floats.data());
    REQUIRE(early.bytes.data() == taken.bytes.data());
    REQUIRE(early.batch.labels.data() == taken.batch.labels.data());
    REQUIRE(early.batch.ids.data() == taken.batch.ids.data());
    REQUIRE(copy_of(taken, ahead.reader) == read(direct.reader, i / steps, i % steps));
  }
}

TEST_CASE("asking what is ready neither waits nor throws nor moves", "[prefetch][staged]") {
  Setting setting;
  std::atomic<int> reads = 0;
  std::atomic<bool> closed = false;
  std::atomic<bool> broken = false;
  setting.source.on_read = [&](std::size_t) {
    ++reads;
    // Opens in the end by itself, so that waiting for it fails below and does not hang.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (closed && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (broken) throw std::runtime_error("broken");
  };
  Setting direct;
  Prefetch prefetch(setting.reader, 1, endless, *std::pmr::new_delete_resource());
  closed = true;
  CHECK_FALSE(prefetch.ready(0, 0));
  CHECK(reads == 0);
  closed = false;
  prefetch.take(0, 0);
  wait_until_ready(prefetch, 0, 1);
  closed = true;
  prefetch.take(0, 1);
  REQUIRE(test::soon([&] { return reads >= 3; }));
  CHECK_FALSE(prefetch.ready(0, 2));  // its read has begun and does not end
  broken = true;
  closed = false;
  CHECK_THROWS_WITH(prefetch.take(0, 2), "broken");
  CHECK_FALSE(prefetch.ready(0, 2));
  CHECK_FALSE(prefetch.ready(5, 0));
  broken = false;
  CHECK(copy_of(prefetch.take(0, 2), setting.reader) == read(direct.reader, 0, 2));
}

TEST_CASE("an error comes out with the batch that is taken", "[prefetch][staged]") {
  const std::size_t depth = GENERATE(0, 1, 2, 3, 4);
  Setting setting;
  std::atomic<bool> broken = true;
  std::atomic<int> reads = 0;
  setting.source.on_read = [&](std::size_t) {
    if (++reads >= 3 && broken) throw std::runtime_error("broken");
  };
  Prefetch prefetch(setting.reader, depth, endless, *std::pmr::new_delete_resource());
  const StagedBatch first = prefetch.take(0, 0);
  const StagedBatch second = prefetch.take(0, 1);
  Setting direct;
  CHECK(copy_of(first, setting.reader) == read(direct.reader, 0, 0));
  if (depth > 0) {  // the thread has met it: whoever asks what is ready hears nothing of it
    REQUIRE(test::soon([&] { return reads >= 3; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK_FALSE(prefetch.ready(0, 2));
  }
  CHECK_THROWS_WITH(prefetch.take(0, 2), "broken");
  CHECK(copy_of(second, setting.reader) == read(direct.reader, 0, 1));
  CHECK_THROWS_WITH(prefetch.take(0, 2), "broken");
  broken = false;
  CHECK(copy_of(prefetch.take(0, 2), setting.reader) == read(direct.reader, 0, 2));
  CHECK(copy_of(prefetch.take(0, 3), setting.reader) == read(direct.reader, 0, 3));
}

TEST_CASE("going elsewhere drops what was read", "[prefetch][staged]") {
  Setting setting;
  std::atomic<int> reads = 0;
  setting.source.on_read = [&](std::size_t) { ++reads; };
  const std::uint64_t steps = setting.plan.steps();
  Prefetch prefetch(setting.reader, 2, steps, *std::pmr::new_delete_resource());
  prefetch.take(0, 0);
  wait_until_ready(prefetch, 0, 2);
  prefetch.take(0, 5);
  CHECK_FALSE(prefetch.ready(0, 1));
  CHECK_FALSE(prefetch.ready(0, 2));
  wait_until_ready(prefetch, 0, 6);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(prefetch.ready(1, 0));  // beyond the end that it was told
  CHECK(reads == 5);
}

TEST_CASE("it reads ahead by its depth when batches are staged, too", "[prefetch][staged]") {
  const int depth = GENERATE(1, 2, 3, 4);
  Setting setting;
  std::atomic<int> reads = 0;
  setting.source.on_read = [&](std::size_t) { ++reads; };
  Prefetch prefetch(setting.reader, static_cast<std::size_t>(depth), endless,
                    *std::pmr::new_delete_resource());
  for (std::uint64_t step = 0; step < 3; ++step) prefetch.take(0, step);
  wait_until_ready(prefetch, 0, 2 + static_cast<std::uint64_t>(depth));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(reads == 3 + depth);
}

TEST_CASE("slots stand in the memory that is given, taken once", "[prefetch][staged]") {
  const std::size_t depth = GENERATE(0, 1, 4);
  Recording memory;
  {
    Digits setting;
    Prefetch prefetch(setting.reader, depth, endless, memory);
    const std::size_t blocks = memory.blocks.size();
    CHECK(blocks == 2 * (depth + 2));  // features and labels
    const std::size_t rows = 8;
    const std::size_t width = setting.source.features();
    CHECK(memory.bytes >= (depth + 2) * rows * (width + sizeof(std::int32_t)));
    CHECK(memory.bytes <= (depth + 2) * (rows * (width + sizeof(std::int32_t)) + 128));
    for (std::uint64_t step = 0; step < setting.plan.steps(); ++step) {
      const StagedBatch staged = prefetch.take(0, step);
      CHECK(memory.holds(std::as_bytes(staged.floats)));
      CHECK(memory.holds(std::as_bytes(staged.bytes)));
      CHECK(memory.holds(std::as_bytes(staged.batch.labels)));
    }
    CHECK(memory.blocks.size() == blocks);
  }
  CHECK(memory.blocks.empty());
}

TEST_CASE("memory that is not given ends the construction", "[prefetch][staged]") {
  Setting setting;
  Recording memory;
  memory.left = GENERATE(0, 1, 5);
  const auto make = [&](std::size_t depth) { Prefetch(setting.reader, depth, endless, memory); };
  CHECK_THROWS_AS(make(3), std::bad_alloc);
  CHECK(memory.blocks.empty());
}

TEST_CASE("no value is read after the end was asked for", "[prefetch]") {
  constexpr std::size_t depth = 20;
  std::atomic<int> calls = 0;
  {
    ReadAhead values(depth + 2, depth, [&](std::size_t, std::uint64_t) {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return true;
    });
    values.take(0);
  }
  CHECK(calls <= 10);  // 21 fill all slots
}
