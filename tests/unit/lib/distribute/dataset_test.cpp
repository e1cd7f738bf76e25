#include "lockstep/distribute/dataset.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <set>

#include "lockstep/base/philox.hpp"
#include "lockstep/distribute/sources.hpp"
#include "tests/support/numbered_file.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/toy_source.hpp"

using namespace lockstep;
using Numbers = std::vector<std::int64_t>;

namespace {

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset, std::uint64_t epoch = 0) {
  std::vector<T> all;
  for (auto& element : dataset.epoch(epoch)) all.push_back(element);
  return all;
}

/// Elements by position, where they can be reached so.
template <class T>
std::vector<T> by_position(const Dataset<T>& dataset, std::uint64_t epoch = 0) {
  const auto reader = dataset.pipeline().open({.epoch = epoch});
  std::vector<T> all(reader->size().value());
  for (std::uint64_t i = all.size(); i-- > 0;) all[i] = readers::value_in<T>(reader->at(i).value);
  return all;
}

Dataset<std::int64_t> counting_from(std::int64_t first, std::int64_t count) {
  return from_generator<std::int64_t>([=] {
    return [first, last = first + count]() mutable -> std::optional<std::int64_t> {
      return first < last ? std::optional(first++) : std::nullopt;
    };
  });
}

std::string texts(const Dataset<Tensor<std::int64_t>>& batches) {
  std::string text;
  for (auto& batch : batches.epoch(0)) text += to_text(batch);
  return text;
}

}  // namespace

TEST_CASE("elements come in order, from anywhere", "[distribute]") {
  CHECK(all_of(range_dataset(4)) == Numbers{0, 1, 2, 3});
  CHECK(all_of(range_dataset(0)).empty());
  CHECK(all_of(from_elements<std::string>({"a", "b"})) == std::vector<std::string>{"a", "b"});
  CHECK(all_of(counting_from(3, 2), 7) == Numbers{3, 4});
  CHECK_FALSE(counting_from(3, 2).size());
  CHECK_THROWS_WITH(from_source(nullptr), Catch::Contains("no data set"));
  const auto toy = all_of(from_source(std::make_shared<ToySource>(5, 3, 2)));
  CHECK(toy.size() == 5);
  CHECK(toy[4].first.shape() == Shape{3});
}

TEST_CASE("transformations compose, in order and by position alike", "[distribute]") {
  const bool stream = GENERATE(false, true);
  const auto ten = stream ? counting_from(0, 10) : range_dataset(10);
  const auto check = [&](const Dataset<std::int64_t>& dataset, const Numbers& expected) {
    CHECK(all_of(dataset) == expected);
    CHECK(all_of(dataset) == expected);  // again
    CHECK(all_of(dataset.prefetch(3)) == expected);
    if (!stream) CHECK(by_position(dataset) == expected);
  };
  check(ten.map([](std::int64_t i) { return i * i; }).take(4), {0, 1, 4, 9});
  check(ten.take(2).repeat(3), {0, 1, 0, 1, 0, 1});
  check(ten.take(2).repeat().take(5), {0, 1, 0, 1, 0});
  check(ten.take(0).repeat(), {});
  check(ten.shard(3, 0), {0, 3, 6, 9});
  check(ten.shard(3, 2), {2, 5, 8});
  check(ten.take(1).shard(3, 2), {});
  check(ten.take(99), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("batches stack elements", "[distribute]") {
  const bool stream = GENERATE(false, true);
  const auto seven = stream ? counting_from(0, 7) : range_dataset(7);
  CHECK(texts(seven.batch(3)) == "[0, 1, 2][3, 4, 5][6]");
  CHECK(texts(seven.batch(3, true)) == "[0, 1, 2][3, 4, 5]");
  CHECK(texts(seven.batch(2).batch(2).take(1)) == "[[0, 1], [2, 3]]");
  if (!stream) CHECK(by_position(seven.batch(3)) == all_of(seven.batch(3)));
  const auto nested = seven.map([](std::int64_t i) {
    return std::pair(Tensor<float>({static_cast<float>(i), 0.5F}), std::tuple(i, std::string("x")));
  });
  const auto batch = all_of(nested.batch(2))[1];
  CHECK(to_text(batch) == R"(([[2.0, 0.5], [3.0, 0.5]], ([2, 3], ["x", "x"])))");
  CHECK(rows_of(batch) == 2);
  CHECK(to_text(cut(batch, 1, 2)) == R"(([[3.0, 0.5]], ([3], ["x"])))");
}

TEST_CASE("elements that do not fit together are bad data", "[distribute]") {
  const auto ragged = from_elements(std::vector{Tensor<float>({1, 2}), Tensor<float>({1, 2, 3})});
  CHECK_THROWS_AS(all_of(ragged.batch(2)), DataError);
  CHECK_NOTHROW(all_of(ragged.batch(1)));
}

TEST_CASE("a stated number of elements hides no random access", "[distribute]") {
  const auto stated = range_dataset(10).assert_cardinality(10);
  CHECK(by_position(stated) == all_of(range_dataset(10)));
  CHECK(all_of(stated.shuffle(1)) == all_of(range_dataset(10).shuffle(1)));
  CHECK_THROWS_AS(range_dataset(10).prefetch(2).shuffle(1), ConfigError);  // it has no positions
  CHECK(range_dataset(24).repeat(1ULL << 62).pipeline().open({})->size() ==
        range_dataset(24).repeat().pipeline().open({})->size());
  const auto wrong = range_dataset(10).assert_cardinality(9);
  CHECK_FALSE(wrong.pipeline().open({})->size());
  CHECK_THROWS_AS(all_of(wrong), DataError);
}

TEST_CASE("-1 repetitions are those without end", "[distribute]") {
  const auto without_end = static_cast<std::uint64_t>(-1);
  CHECK(range_dataset(2).repeat(without_end).size() == endless);
  CHECK(all_of(counting_from(5, 2).repeat(without_end).take(3)) == Numbers{5, 6, 5});
  CHECK(all_of(counting_from(5, 0).repeat(without_end)).empty());
}

TEST_CASE("repetitions that are read in turn are kept open", "[distribute]") {
  int opened = 0;
  const Dataset<std::int64_t> numbers(readers::Pipeline(
      [&opened](const Pass& pass) {
        ++opened;
        return range_dataset(4).pipeline().open(pass);
      },
      {.identity = "numbers"}));
  const auto repeated = numbers.repeat(3).pipeline().open({});
  for (int round = 0; round < 9; ++round) {
    for (const auto index : {1U, 6U, 11U}) {
      CHECK(readers::value_in<std::int64_t>(repeated->at(index).value) ==
            static_cast<std::int64_t>(index % 4));
    }
  }
  CHECK(opened == 6);  // the first pass, 3 of the first round, 2 again: these stay
}

TEST_CASE("records of two limits are different data", "[distribute]") {
  const auto identity = [](std::uint64_t records) {
    return from_source(std::make_shared<ToySource>(records, 3, 2)).facts().identity;
  };
  CHECK(identity(5) == identity(5));
  CHECK(identity(5) != identity(6));
}

TEST_CASE("an element of another shape is named", "[distribute]") {
  using X = Tensor<float>;
  const auto batches = from_elements<X>({X{1, 2}, X{3, 4}, X{5}}).batch(3);
  CHECK_THROWS_WITH(
      all_of(batches),
      Catch::StartsWith("element 2 of a batch has shape (1), those before it have (2)"));
}

TEST_CASE("a shuffled order is a function of seed and epoch", "[distribute]") {
  const auto pool = GENERATE(std::size_t{0}, 1, 4, 50);
  const auto shuffled = [&](std::uint64_t seed) {
    return pool == 0 ? range_dataset(20).shuffle(seed) : counting_from(0, 20).shuffle(seed, pool);
  };
  const auto first = all_of(shuffled(1));
  CHECK(std::multiset(first.begin(), first.end()).size() == 20);
  CHECK(std::set(first.begin(), first.end()).size() == 20);
  CHECK(all_of(shuffled(1)) == first);
  if (pool == 1) {
    CHECK(first == all_of(range_dataset(20)));
    return;
  }
  CHECK(all_of(shuffled(1), 1) != first);
  CHECK(all_of(shuffled(2)) != first);
  const auto twice = all_of(shuffled(1).repeat(2));  // epochs 0 and 1
  CHECK(Numbers(twice.begin(), twice.begin() + 20) == first);
  CHECK(Numbers(twice.begin() + 20, twice.end()) == all_of(shuffled(1), 1));
}

TEST_CASE("random transformations follow the element", "[distribute]") {
  const auto noisy = [](const Dataset<std::int64_t>& numbers) {
    return numbers.map_random(5, [](std::int64_t i, const Draw& draw) {
      return std::pair(i, draw.uniform(0) + draw.uniform(1));
    });
  };
  const auto plain = all_of(noisy(range_dataset(30)));
  auto shuffled = all_of(noisy(range_dataset(30).shuffle(3)));
  CHECK(shuffled != plain);
  std::sort(shuffled.begin(), shuffled.end());
  CHECK(shuffled == plain);
  CHECK(all_of(noisy(range_dataset(30).shard(3, 1)))[2] == plain[7]);
  CHECK(all_of(noisy(range_dataset(30)), 1) != plain);
  CHECK(plain[0].second != plain[1].second);
}

TEST_CASE("a transformation and a shuffle with one seed share no random numbers", "[distribute]") {
  // Round r of the order of epoch e mixes with Philox at {value, e, 0, r}.
  constexpr std::uint32_t seed = 22;
  for (std::uint32_t epoch = 0; epoch < 4; ++epoch) {
    const auto words =
        all_of(range_dataset(3).map_random(
                   seed, [](std::int64_t, const Draw& draw) { return draw.word(7); }),
               epoch);
    for (std::uint32_t id = 0; id < 3; ++id) {
      const auto block = Philox::at({7, id, 0, epoch}, {seed, 0});
      CHECK(words[id] != (std::uint64_t{block[0]} << 32 | block[1]));
    }
  }
}

TEST_CASE("batches read no record twice, and none for an empty piece", "[distribute]") {
  std::vector<std::int64_t> read;
  const auto batches = range_dataset(10)
                           .map([&read](std::int64_t i) {
                             read.push_back(i);
                             return i;
                           })
                           .batch(4);
  const auto reader = batches.pipeline().open({});
  CHECK(reader->at(1).id == 4);
  CHECK(read == Numbers{4, 5, 6, 7});
  CHECK(to_text(readers::value_in<Tensor<std::int64_t>>(reader->rows({0, 0}))) == "[]");
  CHECK(read.size() == 4);
}

TEST_CASE("files by pattern are sorted and interleaved", "[distribute]") {
  const test::TemporaryFolder folder;
  for (const std::int64_t i : {2, 0, 1}) {
    test::write_numbers(folder.path() / ("f" + std::to_string(i)), 10 * i, 2 + i);
  }
  std::filesystem::create_directory(folder.path() / "f9");
  const auto read = [&](const FileOptions& options) {
    return from_files<std::int64_t>(folder.path() / "f*", test::read_numbers, options);
  };
  CHECK(read({}).facts().files == 3);
  CHECK(all_of(read({})) == Numbers{0, 1, 10, 11, 12, 20, 21, 22, 23});
  CHECK(all_of(read({.cycle_length = 2})) == Numbers{0, 10, 1, 11, 12, 20, 21, 22, 23});
  CHECK(all_of(read({.cycle_length = 3, .block_length = 2})) ==
        Numbers{0, 1, 10, 11, 20, 21, 12, 22, 23});
  CHECK(all_of(read({.cycle_length = 9})).size() == 9);
  const auto shuffled = read({.shuffle_files = true, .seed = 1});
  std::set<Numbers> orders;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) orders.insert(all_of(shuffled, epoch));
  CHECK(orders.size() > 2);
  CHECK(all_of(shuffled, 4) == all_of(shuffled, 4));
  const auto reader = read({}).pipeline().open({.worker = 1, .workers = 2});
  CHECK(reader->next()->id == std::uint64_t{1} << 40);
  CHECK_THROWS_AS(from_files<std::int64_t>(folder.path() / "g*", test::read_numbers), DataError);
  CHECK_THROWS_AS(read({.cycle_length = 0}), ConfigError);
  CHECK_THROWS_AS(read({.block_length = 0}), ConfigError);
}

TEST_CASE("elements are selected and combined as by tf.data", "[distribute]") {
  const bool stream = GENERATE(false, true);
  const auto numbers = [&](std::int64_t first, std::int64_t count) {
    return stream ? counting_from(first, count)
                  : range_dataset(count).map([first](std::int64_t i) { return first + i; });
  };
  const auto check = [&](const auto& dataset, const std::string& expected) {
    std::string text;
    for (const auto& element : all_of(dataset)) text += to_text(element) + " ";
    CHECK(text == expected);
    if (!stream) CHECK(by_position(dataset) == all_of(dataset));
  };
  check(numbers(0, 5).skip(3), "3 4 ");
  check(numbers(0, 5).skip(9), "");
  check(numbers(0, 9).skip(2).take(3).shard(2, 0), "2 4 ");
  check(numbers(7, 3).enumerate(5), "(5, 7) (6, 8) (7, 9) ");
  check(numbers(7, 2).enumerate(std::numeric_limits<std::int64_t>::max()),
        "(9223372036854775807, 7) (-9223372036854775808, 8) ");
  check(numbers(7, 2).repeat(2).enumerate(), "(0, 7) (1, 8) (2, 7) (3, 8) ");
  check(numbers(1, 3).zip(numbers(4, 9)), "(1, 4) (2, 5) (3, 6) ");
  check(numbers(1, 3).repeat().zip(numbers(4, 2)), "(1, 4) (2, 5) ");
  check(numbers(1, 3).concatenate(numbers(4, 2)), "1 2 3 4 5 ");
  check(numbers(1, 2).repeat().concatenate(numbers(4, 2)).take(3), "1 2 1 ");
  CHECK(all_of(numbers(0, 9).filter([](std::int64_t i) { return i % 3 == 1; })) ==
        Numbers{1, 4, 7});
  CHECK(all_of(numbers(0, 3).zip(numbers(3, 3)).filter([](std::int64_t a, std::int64_t b) {
          return a + b != 5;
        })).size() == 2);
  // The example of Dataset.interleave.
  const auto six_times = [&](std::int64_t i) { return numbers(i, 1).repeat(6); };
  CHECK(all_of(numbers(1, 5).interleave(six_times, 2, 4)) == Numbers{1, 1, 1, 1, 2, 2, 2, 2, 1, 1,
                                                                     2, 2, 3, 3, 3, 3, 4, 4, 4, 4,
                                                                     3, 3, 4, 4, 5, 5, 5, 5, 5, 5});
  const auto up_to = [&](std::int64_t i) { return numbers(0, i); };
  CHECK(all_of(numbers(0, 4).flat_map(up_to)) == Numbers{0, 0, 1, 0, 1, 2});
  CHECK_THROWS_AS(numbers(0, 2).interleave(up_to, 0), ConfigError);
}

TEST_CASE("elements of several data sets draw numbers of their own", "[distribute]") {
  const auto drawn = [](const Dataset<std::int64_t>& numbers) {
    const auto words =
        all_of(numbers.map_random(1, [](std::int64_t, const Draw& draw) { return draw.word(0); }));
    return std::set(words.begin(), words.end()).size();
  };
  CHECK(drawn(range_dataset(4).concatenate(range_dataset(4)).concatenate(range_dataset(4))) == 12);
  CHECK(drawn(range_dataset(4).flat_map([](std::int64_t) { return range_dataset(3); })) == 12);
}

TEST_CASE("files are listed, repeated, shuffled and interleaved", "[distribute]") {
  const test::TemporaryFolder folder;
  for (std::int64_t i = 0; i < 4; ++i) {
    test::write_numbers(folder.path() / ("f" + std::to_string(i)), 10 * i, 3);
  }
  const auto files = list_files(folder.path() / "f*");
  CHECK(files.size() == 4);
  const auto read = [](const std::string& path) {
    return from_files<std::int64_t>(path, test::read_numbers);
  };
  const auto numbers = files.interleave(read, 2).map([](std::int64_t i) { return -i; });
  CHECK(numbers.facts().files == 4);
  CHECK(all_of(numbers) == Numbers{0, -10, -1, -11, -2, -12, -20, -30, -21, -31, -22, -32});
  const auto mine = files.shard(2, 1).repeat().shuffle(5, 3).interleave(read, 2).take(24);
  const auto once = all_of(mine);
  CHECK(all_of(mine) == once);
  const std::set<std::int64_t> all(once.begin(), once.end());
  CHECK(all == std::set<std::int64_t>{10, 11, 12, 30, 31, 32});
}

TEST_CASE("a file is found by its name, whatever characters it has", "[distribute]") {
  const test::TemporaryFolder folder;
  for (const char* const name : {"f[1]", "f1", "a\\b", "f*"}) {
    test::write_numbers(folder.path() / name, 0, 2);
    CHECK(all_of(list_files(folder.path() / name)) == std::vector{(folder.path() / name).string()});
  }
  CHECK(list_files(folder.path() / "f[0-9]").size() == 1);
  CHECK_THROWS_WITH(list_files(folder.path()), Catch::Contains("no such regular file"));
}

TEST_CASE("what cannot be done to a data set is refused", "[distribute]") {
  CHECK_THROWS_AS(range_dataset(-1), ConfigError);
  CHECK_THROWS_AS(range_dataset(3).batch(0), ConfigError);
  CHECK_THROWS_AS(range_dataset(3).repeat(0), ConfigError);
  CHECK_THROWS_AS(range_dataset(3).shard(2, 2), ConfigError);
  CHECK_THROWS_AS(range_dataset(3).shard(0, 0), ConfigError);
  CHECK_THROWS_AS(range_dataset(3).prefetch(0), ConfigError);
  CHECK_THROWS_WITH(range_dataset(3).prefetch(std::numeric_limits<std::size_t>::max()),
                    Catch::Contains("AUTOTUNE"));
  CHECK_THROWS_AS(range_dataset(3).shuffle(1, 0), ConfigError);
  CHECK_THROWS_AS(counting_from(0, 3).shuffle(1), ConfigError);
  CHECK_THROWS_AS(range_dataset(3).repeat().shuffle(1), ConfigError);
}

TEST_CASE("tensors know their shape", "[distribute]") {
  const Tensor<float> six({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(six.rows(1, 2) == Tensor<float>({1, 3}, {4, 5, 6}));
  CHECK(six.rows(1, 1).shape() == Shape{0, 3});
  CHECK(Tensor<float>().shape() == Shape{0});
  CHECK(Tensor<float>(2.0F).item() == 2);
  CHECK_THROWS_AS(six.item(), std::invalid_argument);
  CHECK_THROWS_AS(six.rows(1, 3), std::out_of_range);
  CHECK_THROWS_AS(Tensor<float>(2.0F).rows(), std::invalid_argument);
  CHECK_THROWS_AS(spec_of(Tensor<float>(2.0F), 1), std::invalid_argument);
  CHECK_THROWS_AS(Tensor<float>({2, 2}, {1, 2, 3}), std::invalid_argument);
}
