// Files by explicit paths: TFRecord with a specification of features, and the command's formats.
#include <catch2/catch.hpp>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/sources.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/tfrecord_bytes.hpp"

using namespace lockstep;
using Catch::Contains;
using Catch::StartsWith;
using test::Bytes;
using test::operator+;

namespace {

Bytes ints(const Bytes& values) { return test::field(3, test::field(1, values)); }
Bytes texts(const std::vector<std::string>& values) {
  Bytes list;
  for (const auto& value : values) list = list + test::field(1, test::text(value));
  return test::field(1, list);
}

/// A reading: two floats, a name and a count below 128.
Bytes reading(float x, const std::string& name, std::uint8_t count) {
  return test::record(test::example(test::entry("x", test::floats({x, x + 0.5F})) +
                                    test::entry("name", texts({name})) +
                                    test::entry("count", ints({count}))));
}

const FeatureSpecs specs = {{"count", {FeatureType::int64}},
                            {"name", {FeatureType::bytes}},
                            {"x", {FeatureType::float32, {2, 1}}}};

struct Readings {
  Readings() {
    folder.write("a.tfrecord", reading(1, "one", 1) + reading(2, "two", 2) + reading(3, "3", 3));
    folder.write("b.tfrecord", reading(4, "four", 4));
  }
  std::string path(const std::string& name) const { return folder.path() / name; }
  std::vector<std::string> paths() const { return {path("a.tfrecord"), path("b.tfrecord")}; }
  test::TemporaryFolder folder;
};

std::string text_of(const Dataset<Features>& data) {
  std::string all;
  for (const auto& features : data) all += to_text(features);
  return all;
}

/// What reading `entries` as the second record says, without the folder.
std::string refusal(const Bytes& entries, const FeatureSpecs& wanted) {
  const Readings files;
  const auto path =
      files.folder.write("c.tfrecord", reading(1, "a", 1) + test::record(test::example(entries)));
  try {
    for (const auto& features : tfrecord_dataset({path}, wanted)) static_cast<void>(features);
  } catch (const DataError& error) {
    return std::string(error.what()).substr(files.folder.path().string().size() + 1);
  }
  return "";
}

}  // namespace

TEST_CASE("TFRecord examples are maps of the features that a specification names", "[distribute]") {
  const Readings files;
  const auto data = tfrecord_dataset(files.paths(), specs);
  CHECK(text_of(data.take(2)) == R"({count: 1, name: "one", x: [[1.0], [1.5]]})"
                                 R"({count: 2, name: "two", x: [[2.0], [2.5]]})");
  CHECK(text_of(tfrecord_dataset({files.path("b.tfrecord")}, {{"count", {FeatureType::int64}}})) ==
        "{count: 4}");
  const auto listed = list_files(files.path("*.tfrecord")).flat_map([](const std::string& path) {
    return tfrecord_dataset({path}, specs);
  });
  CHECK(text_of(listed) == text_of(data));
  const auto mapped = data.map([](const Features& features) {
    return std::pair(std::get<Tensor<float>>(features.at("x")),
                     std::get<Tensor<std::int64_t>>(features.at("count")).item());
  });
  CHECK(to_text(*mapped.batch(4).begin()) ==
        "([[[1.0], [1.5]], [[2.0], [2.5]], [[3.0], [3.5]], [[4.0], [4.5]]], [1, 2, 3, 4])");
}

TEST_CASE("batches of features are cut, and workers without any have their names", "[distribute]") {
  const Readings files;
  const auto text = test::on_all(2, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto data = strategy.distribute_dataset(
        tfrecord_dataset(files.paths(), specs)
            .filter([](const Features& f) {
              return std::get<Tensor<std::int64_t>>(f.at("count")).item() < 4;
            })
            .batch(4));
    std::string all;
    for (auto& batch : data) all += strategy.describe(batch) + "\n";
    for (const auto& spec : data.element_spec()) all += to_text(spec) + "; ";
    const auto shapes = strategy.run(
        [](const Features& f) { return to_text(std::get<Tensor<float>>(f.at("x")).shape()); },
        data.make_iterator().next());
    return all + strategy.describe(shapes);
  });
  CHECK(text ==
        R"({0: {count: [1, 2], name: ["one", "two"], x: [[[1.0], [1.5]], [[2.0], [2.5]]]}, )"
        "1: {count: [], name: [], x: []}}\n"
        R"({0: {count: [3], name: ["3"], x: [[[3.0], [3.5]]]}, 1: {count: [], name: [], x: []}})"
        "\nint64 (?); string (?); float32 (?, 2, 1); "
        R"x({0: "(2, 2, 1)", 1: "(0, 2, 1)"})x");
}

TEST_CASE("default values stand for missing features", "[distribute]") {
  const Readings files;
  FeatureSpecs wanted = {{"weight", {FeatureType::float32, {2}, std::vector<float>{0.5F}}},
                         {"tags", {FeatureType::bytes, {2}, std::vector<std::string>{"a", "b"}}},
                         {"count", {FeatureType::int64, {}, std::vector<std::int64_t>{-1}}}};
  CHECK(text_of(tfrecord_dataset({files.path("b.tfrecord")}, wanted)) ==
        R"({count: 4, tags: ["a", "b"], weight: [0.5, 0.5]})");
  wanted["tags"].default_value = std::vector<std::string>{"a", "b", "c"};
  CHECK_THROWS_WITH(tfrecord_dataset(files.paths(), wanted),
                    StartsWith("feature 'tags': 3 default values of type bytes for type bytes and "
                               "2 places"));
  wanted["tags"] = {FeatureType::bytes, {0}, std::vector<std::string>{}};
  CHECK(text_of(tfrecord_dataset({files.path("b.tfrecord")}, wanted)) ==
        R"({count: 4, tags: [], weight: [0.5, 0.5]})");
  wanted["tags"].default_value = std::vector<float>{1};
  CHECK_THROWS_AS(tfrecord_dataset(files.paths(), wanted), ConfigError);
  CHECK_THROWS_AS(tfrecord_dataset(files.paths(), {}), ConfigError);
  CHECK_THROWS_AS(tfrecord_dataset({}, specs), ConfigError);
}

TEST_CASE("lists of any length are read as they are", "[distribute]") {
  const test::TemporaryFolder folder;
  const auto path =
      folder.write("a.tfrecord", test::record(test::example(test::entry("ids", ints({7, 8, 9})) +
                                                            test::entry("words", texts({"a"})))) +
                                     test::record(test::example(test::entry("ids", ints({1})))));
  FeatureSpecs wanted = {{"ids", {.type = FeatureType::int64, .any_length = true}},
                         {"words", {.type = FeatureType::bytes, .any_length = true}}};
  const auto data = tfrecord_dataset({path}, wanted);
  CHECK(text_of(data) == R"({ids: [7, 8, 9], words: ["a"]}{ids: [1], words: []})");
  const auto first_two = data.map([](const Features& features) {
    auto ids = std::get<Tensor<std::int64_t>>(features.at("ids")).values();
    std::vector<std::int64_t> two(ids.begin(),
                                  ids.begin() + std::min<std::ptrdiff_t>(2, ids.size()));
    two.resize(2, -1);
    return Tensor<std::int64_t>(std::move(two));
  });
  CHECK(to_text(*first_two.batch(2).begin()) == "[[7, 8], [1, -1]]");
  wanted["ids"].default_value = std::vector<std::int64_t>{0};
  CHECK_THROWS_WITH(tfrecord_dataset({path}, wanted), Contains("'ids' of any length"));
}

TEST_CASE("the specification is part of what identifies the data", "[distribute]") {
  const Readings files;
  const auto identity = [&](const FeatureSpecs& wanted) {
    return tfrecord_dataset(files.paths(), wanted).facts().identity;
  };
  FeatureSpecs other = specs;
  CHECK(identity(specs) == identity(other));
  other["x"].shape = {1, 2};
  CHECK(identity(specs) != identity(other));
  other = specs;
  other["count"].default_value = std::vector<std::int64_t>{1};
  CHECK(identity(specs) != identity(other));
  const auto differ = [&](comm::Communicator& comm) {
    Strategy(comm).distribute_dataset(
        tfrecord_dataset(files.paths(), comm.rank() == 0 ? specs : other).batch(2));
  };
  CHECK_THROWS_AS(comm::run_ranks(2, differ), comm::AgreedError);
}

TEST_CASE("what is in the files identifies the data, too", "[distribute]") {
  const Readings files;
  const Readings others;
  others.folder.write("b.tfrecord", reading(5, "five", 5));
  const auto records = [&](int rank) {
    return tfrecord_dataset((rank == 0 ? files : others).paths(), specs);
  };
  const auto differ = [&](comm::Communicator& comm) {
    Strategy(comm).distribute_dataset(records(comm.rank()).batch(2));
  };
  CHECK_THROWS_WITH(comm::run_ranks(2, differ), Contains("hash of names and samples"));
  const auto zipped = [&](comm::Communicator& comm) {
    Strategy(comm).distribute_dataset(range_dataset(3).zip(records(comm.rank())).batch(2));
  };
  CHECK_THROWS_WITH(comm::run_ranks(2, zipped), Contains("hash of names and samples"));
}

TEST_CASE("a file that does not exist is named when it is needed", "[distribute]") {
  const Readings files;
  const auto missing =
      tfrecord_dataset({files.path("a.tfrecord"), files.path("c.tfrecord")}, specs);
  CHECK_THROWS_WITH(text_of(missing), Contains("c.tfrecord"));
  const auto distribute = [&](comm::Communicator& comm) {
    Strategy(comm).distribute_dataset(missing.batch(2));
  };
  CHECK_THROWS_WITH(comm::run_ranks(2, distribute), Contains("c.tfrecord"));
}

TEST_CASE("a feature that is missing, of another type or number is named", "[distribute]") {
  const auto count = test::entry("count", ints({1}));
  const FeatureSpecs wanted = {{"count", {FeatureType::int64}},
                               {"x", {FeatureType::float32, {2, 1}}}};
  const auto says = [&](const Bytes& entries) {
    const std::string text = refusal(entries, wanted);
    const std::string place = "c.tfrecord: byte 68: record 1: ";
    return text.starts_with(place) ? text.substr(place.size(), text.find('\n') - place.size())
                                   : text;
  };
  CHECK(says(count) == "the example has no feature 'x'");
  CHECK(says(count + test::entry("x", ints({1, 2}))) == "feature 'x' holds int64, not float32");
  CHECK(says(count + test::entry("x", test::floats({1, 2, 3}))) ==
        "feature 'x' holds 3 values, not 2 (2x1)");
  CHECK(says(test::entry("count", ints({})) + test::entry("x", test::floats({1, 2}))) ==
        "feature 'count' holds 0 values, not 1");
  CHECK(says({1, 2, 3}) == "not a tf.train.Example: malformed protocol buffer");
}

TEST_CASE("bytes are decoded to numbers", "[distribute]") {
  CHECK(decode_raw<std::uint8_t>("\x01\xFF") == Tensor<std::uint8_t>{1, 255});
  CHECK(decode_raw<std::int16_t>(std::string("\x02\0\xFF\xFF", 4)) == Tensor<std::int16_t>{2, -1});
  CHECK_THROWS_AS(decode_raw<std::int16_t>("abc"), DataError);
}

TEST_CASE("the command's formats are read by explicit paths", "[distribute]") {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    return data::RecordFiles{folder.write(name, Bytes(text.begin(), text.end())), {}};
  };
  const auto one = write("one.csv", "label,a,b\n1,0.5,2\n0,3,4\n");
  const auto two = write("two.csv", "label,a,b\n1,5,6\n");
  std::string all;
  for (const auto& [x, label] : from_record_files({two, one})) {
    all += to_text(x) + std::to_string(label) + " ";
  }
  CHECK(all == "[5.0, 6.0]1 [0.5, 2.0]1 [3.0, 4.0]0 ");
  CHECK(from_record_files({one, two}).facts().files == 2);
  CHECK_THROWS_WITH(from_record_files({one, write("wide.csv", "label,a,b,c\n1,2,3,4\n")}),
                    Contains("wide.csv: records are 3 (3 features), but those of"));
  CHECK_THROWS_WITH(from_record_files({one, write("other.csv", "label,b,a\n1,2,3\n")}),
                    Contains("other.csv:1: feature 0 is called 'b', but in"));
  data::ReadOptions first_two;
  first_two.limit = 2;
  CHECK(from_record_files({one, two}, first_two).facts().files == 1);
  CHECK(from_record_files({two, one}, first_two).facts().files == 2);
  CHECK_THROWS_WITH(
      from_record_files({write("readings.tfr", "")}),
      Contains("no known format") && Contains("*.tfrecord") && Contains("data::open_files"));
  CHECK_THROWS_AS(from_record_files({}), ConfigError);
}
