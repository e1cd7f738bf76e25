// Data sets as ranges of C++, what their elements look like as text, and the warning of AUTO.
#include <algorithm>
#include <catch2/catch.hpp>
#include <ranges>

#include "lockstep/base/errors.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/per_rank.hpp"

using namespace lockstep;
using test::on_all;

namespace {

using Digit = std::pair<std::int64_t, std::string>;
using Digits = std::pair<Tensor<std::int64_t>, Tensor<std::string>>;

static_assert(std::ranges::input_range<Dataset<Digit>>);
static_assert(std::ranges::input_range<const Dataset<Digit>>);
static_assert(std::ranges::input_range<Dataset<Digit>::Epoch>);
static_assert(std::ranges::input_range<const DistributedDataset<Digits>>);

Dataset<Digit> digits() {
  return range_dataset(5).map(
      [](std::int64_t i) { return Digit(i, std::string(1, static_cast<char>('a' + i))); });
}

}  // namespace

TEST_CASE("a data set is a range of its elements", "[distribute]") {
  auto data = digits();
  const auto& const_data = data;
  std::string all;
  for (auto& [number, name] : data) all += to_text(number++) + name + " ";
  for (const auto& [number, name] : const_data) all += to_text(number) + name + " ";
  CHECK(all == "0a 1b 2c 3d 4e 0a 1b 2c 3d 4e ");

  const auto shuffled = range_dataset(100).shuffle(1);
  CHECK(std::ranges::equal(shuffled, shuffled.epoch(0)));
  CHECK(!std::ranges::equal(shuffled, shuffled.epoch(1)));
  CHECK(std::ranges::count_if(shuffled, [](std::int64_t i) { return i % 3 == 0; }) == 34);
  std::int64_t sum = 0;
  for (const auto i : range_dataset(3).repeat() | std::views::take(7)) sum += i;
  CHECK(sum == 6);
  CHECK(std::ranges::distance(range_dataset(0)) == 0);
}

TEST_CASE("a distributed data set is a range of batches and their parts", "[distribute]") {
  CHECK(on_all(2,
               [](comm::Communicator& comm) {
                 Strategy strategy(comm);
                 auto data = strategy.distribute_dataset(digits().batch(4));
                 const auto& const_data = data;
                 std::string all;
                 for (auto& [numbers, names] : data) {
                   all += strategy.describe(numbers) + strategy.describe(names) + " ";
                 }
                 for (const auto& [numbers, names] : const_data) {
                   const auto twice = strategy.run([](const auto& x) { return 2 * x.values()[0]; },
                                                   strategy.distribute_values_from_function(
                                                       [](auto) { return Tensor<int>{21}; }));
                   all += strategy.describe(twice) +
                          to_text(strategy.reduce(ReduceOp::sum, numbers, 0));
                 }
                 return all;
               }) ==
        "{0: [0, 1], 1: [2, 3]}{0: [\"a\", \"b\"], 1: [\"c\", \"d\"]} "
        "{0: [4], 1: []}{0: [\"e\"], 1: []} {0: 42, 1: 42}6{0: 42, 1: 42}4");
}

TEST_CASE("strings are printed in quotes", "[distribute]") {
  CHECK(to_text(Tensor<std::string>{"a", "b, \"c\""}) == R"(["a", "b, \"c\""])");
  CHECK(to_text(std::map<std::string, std::string>{{"name", "\x01\n\\"}}) ==
        R"({name: "\x01\n\\"})");
  CHECK(to_text(std::string("\xC3\xA9")) == "\"\xC3\xA9\"");
  CHECK(to_text(std::string("\xC3")) == R"("\xc3")");
}

TEST_CASE("a warning handler is called once for each warning", "[distribute]") {
  std::vector<std::string> told;
  const auto before = set_warning_handler([&](const std::string& text) { told.push_back(text); });
  for (int repetition = 0; repetition < 2; ++repetition) {
    comm::run_ranks(3, [](comm::Communicator& comm) {
      Strategy strategy(comm);
      strategy.distribute_dataset(range_dataset(6).batch(4));
      strategy.distribute_dataset(range_dataset(9).batch(4));
      strategy.distribute_dataset(range_dataset(9).batch(4), {.policy = data::ShardPolicy::off});
      strategy.distribute_dataset(range_dataset(9).batch(4), {.policy = data::ShardPolicy::data});
    });
  }
  set_warning_handler(before);
  REQUIRE(told.size() == 2);
  CHECK_THAT(told[0], Catch::Contains("does not come from files"));
  CHECK_THAT(told[1], Catch::Contains("off"));
}
