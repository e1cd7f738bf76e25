#include "lockstep/data/synthetic.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using data::DrawingId;
using data::DrawnSet;
using data::Part;
using data::SyntheticSource;

using Image = std::vector<std::uint8_t>;

const DrawnSet& any_set() {
  const std::size_t number = GENERATE(0U, 1U);
  return *data::drawn_sets().at(number);
}

Image drawn(const DrawnSet& set, std::uint64_t seed, std::uint32_t part, std::uint64_t index) {
  Image image(set.features());
  set.draw({seed, part, index}, image);
  return image;
}

std::string golden(const DrawnSet& set, std::uint32_t part) {
  Hash hash;
  for (std::uint64_t index = 0; index < 100; ++index) {
    const Image image = drawn(set, data::synthetic_seed, part, index);
    hash.add_bytes(std::as_bytes(std::span(image)));
    const DrawingId id{data::synthetic_seed, part, index};
    hash.add(static_cast<std::uint64_t>(set.label_of(id)));
  }
  return to_hex(hash.value());
}

TEST_CASE("the first drawings are these, on every machine", "[data]") {
  CHECK(golden(data::drawn_digits, 0) == "ca8626bae7d54475");
  CHECK(golden(data::drawn_digits, 1) == "ff795925353dcb7e");
  CHECK(golden(data::drawn_objects, 0) == "b8112501a8d7f174");
  CHECK(golden(data::drawn_objects, 1) == "c5bd9fb5fbf29622");
}

TEST_CASE("seed, part and index all make another image", "[data]") {
  const DrawnSet& set = any_set();
  const Image image = drawn(set, 1, 0, 5);
  CHECK(image == drawn(set, 1, 0, 5));
  CHECK(image != drawn(set, 2, 0, 5));
  CHECK(image != drawn(set, 1ULL << 32 | 1, 0, 5));
  CHECK(image != drawn(set, 1, 1, 5));
  CHECK(image != drawn(set, 1, 0, 6));
  CHECK(image != drawn(set, 1, 0, 5 + (1ULL << 32)));
}

TEST_CASE("every digit has ink, and ground around it", "[data]") {
  for (std::uint64_t index = 0; index < 2000; ++index) {
    const Image image = drawn(data::drawn_digits, data::synthetic_seed, 0, index);
    const auto ink = std::count_if(image.begin(), image.end(), [](auto v) { return v > 100; });
    REQUIRE(ink >= 15);
    REQUIRE(ink <= 350);
  }
}

/// The mean of each channel over the images of a class.
std::array<std::array<double, 3>, 10> mean_colours(const DrawnSet& set, std::uint64_t images) {
  std::array<std::array<double, 3>, 10> means{};
  std::array<double, 10> values{};  // of a channel
  for (std::uint64_t index = 0; index < images; ++index) {
    const auto label = static_cast<std::size_t>(set.label_of({data::synthetic_seed, 0, index}));
    const Image image = drawn(set, data::synthetic_seed, 0, index);
    for (std::size_t i = 0; i < image.size(); ++i) means.at(label).at(i % 3) += image[i];
    values.at(label) += static_cast<double>(image.size()) / 3.0;
  }
  for (std::size_t label = 0; label < means.size(); ++label) {
    for (double& mean : means.at(label)) mean /= values.at(label);
  }
  return means;
}

TEST_CASE("the objects' colours do not tell their classes", "[data]") {
  for (const auto& colour : mean_colours(data::drawn_objects, 3000)) {
    for (const double mean : colour) CHECK(mean == Approx(127.0).margin(15.0));
  }
}

TEST_CASE("order and division into reads do not matter", "[data]") {
  const DrawnSet& set = any_set();
  SyntheticSource forwards(set, Part::train, {.limit = 700, .divide_by = {}});
  SyntheticSource backwards(set, Part::train, {.limit = 700, .divide_by = {}});
  const auto all = read_all(forwards);
  REQUIRE(all == read_all(forwards));  // from memory
  for (std::uint64_t index = 700; index-- > 0;) {
    const auto one = read(backwards, {index});
    REQUIRE(one.labels[0] == all.labels[index]);
    REQUIRE(std::equal(one.x.begin(), one.x.end(),
                       all.x.begin() + static_cast<std::ptrdiff_t>(index * set.features())));
  }
}

TEST_CASE("features are the drawn bytes, divided", "[data]") {
  const DrawnSet& set = any_set();
  SyntheticSource source(set, Part::test, {.limit = {}, .divide_by = 3.0F});
  const auto got = read(source, {9999});
  const Image image = drawn(set, data::synthetic_seed, 1, 9999);
  for (std::size_t p = 0; p < image.size(); ++p) {
    REQUIRE(got.x[p] == static_cast<float>(image[p]) / 3.0F);
  }
  REQUIRE(got.labels[0] == set.label_of({data::synthetic_seed, 1, 9999}));
}

TEST_CASE("the built-in data sets are as large as MNIST and CIFAR-10", "[data]") {
  const auto [name, train, shape] =
      GENERATE(std::tuple("synthetic", 60000U, std::vector<std::uint64_t>{28, 28}),
               std::tuple("synthetic-rgb", 50000U, std::vector<std::uint64_t>{32, 32, 3}));
  const auto set = data::open_data_set(name, {});
  CHECK(set.train->records() == train);
  CHECK(set.test->records() == 10000);
  CHECK(set.train->shape() == shape);
  CHECK(set.test->features() == data::drawn_set(name)->features());
  CHECK(set.train->identity() != set.test->identity());
  CHECK(data::open_data_part(name, Part::test, {})->identity() == set.test->identity());
  const auto few =
      data::open_data_set(name, {.train_limit = 100, .test_limit = 1 << 30, .divide_by = {}});
  CHECK(few.train->records() == 100);
  CHECK(few.test->records() == 10000);
  CHECK(few.train->identity() != set.train->identity());
  CHECK_THROWS_AS(read(*few.train, {100}), std::out_of_range);
}

TEST_CASE("what a resumed run compares of the built-in data", "[data]") {
  CHECK(SyntheticSource(data::drawn_digits, Part::train, {}).identity() ==
        "drawn digits, train, version 1, seed 1: 60000 records, 28x28 = 784 features");
  CHECK(SyntheticSource(data::drawn_objects, Part::test, {}).identity() ==
        "drawn objects, test, version 1, seed 1: 10000 records, 32x32x3 = 3072 features");
}

TEST_CASE("labels are uniform", "[data]") {
  const DrawnSet& set = any_set();
  for (const auto part : {Part::train, Part::test}) {
    std::array<double, 10> counts{};
    for (std::uint64_t index = 0; index < set.records(part); ++index) {
      const DrawingId id{data::synthetic_seed, static_cast<std::uint32_t>(part), index};
      counts.at(static_cast<std::size_t>(set.label_of(id))) += 1.0;
    }
    const double expected = static_cast<double>(set.records(part)) / 10.0;
    double chi_square = 0.0;
    for (const double count : counts)
      chi_square += (count - expected) * (count - expected) / expected;
    CHECK(chi_square < 27.9);  // 9 degrees of freedom: once in a thousand seeds
  }
}

TEST_CASE("what the built-in data set cannot honour is refused", "[data]") {
  const DrawnSet& set = any_set();
  CHECK_THROWS_AS(
      data::open_data_set(set.name, {.train_limit = 0, .test_limit = {}, .divide_by = {}}),
      ConfigError);
  CHECK_THROWS_AS(SyntheticSource(set, Part::train, {.limit = {}, .divide_by = {}, .classes = 9}),
                  ConfigError);
  CHECK(
      SyntheticSource(set, Part::train, {.limit = {}, .divide_by = {}, .classes = 12}).features() ==
      set.features());
}

}  // namespace
}  // namespace lockstep::test
