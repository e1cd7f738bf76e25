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
using data::Part;
using data::SyntheticSource;

using Image = std::array<std::uint8_t, data::drawing_pixels>;

Image drawn(std::uint64_t seed, std::uint32_t part, std::uint64_t index) {
  Image image;
  data::draw({seed, part, index}, image);
  return image;
}

std::string golden(std::uint32_t part) {
  Hash hash;
  for (std::uint64_t index = 0; index < 100; ++index) {
    const Image image = drawn(data::synthetic_seed, part, index);
    hash.add_bytes(std::as_bytes(std::span(image)));
    const DrawingId id{data::synthetic_seed, part, index};
    hash.add(static_cast<std::uint64_t>(data::drawn_label(id)));
  }
  return to_hex(hash.value());
}

TEST_CASE("the first drawings are these, on every machine", "[data]") {
  CHECK(golden(0) == "ca8626bae7d54475");
  CHECK(golden(1) == "ff795925353dcb7e");
}

TEST_CASE("seed, part and index all make another image", "[data]") {
  const Image image = drawn(1, 0, 5);
  CHECK(image == drawn(1, 0, 5));
  CHECK(image != drawn(2, 0, 5));
  CHECK(image != drawn(1ULL << 32 | 1, 0, 5));
  CHECK(image != drawn(1, 1, 5));
  CHECK(image != drawn(1, 0, 6));
  CHECK(image != drawn(1, 0, 5 + (1ULL << 32)));
}

TEST_CASE("every drawing has ink, and ground around it", "[data]") {
  for (std::uint64_t index = 0; index < 2000; ++index) {
    const Image image = drawn(data::synthetic_seed, 0, index);
    const auto ink = std::count_if(image.begin(), image.end(), [](auto v) { return v > 100; });
    REQUIRE(ink >= 15);
    REQUIRE(ink <= 350);
  }
}

TEST_CASE("order and division into reads do not matter", "[data]") {
  SyntheticSource forwards(Part::train, {.limit = 700, .divide_by = {}});
  SyntheticSource backwards(Part::train, {.limit = 700, .divide_by = {}});
  const auto all = read_all(forwards);
  REQUIRE(all == read_all(forwards));  // from memory
  for (std::uint64_t index = 700; index-- > 0;) {
    const auto one = read(backwards, {index});
    REQUIRE(one.labels[0] == all.labels[index]);
    REQUIRE(std::equal(one.x.begin(), one.x.end(),
                       all.x.begin() + static_cast<std::ptrdiff_t>(index * 784)));
  }
}

TEST_CASE("features are the drawn bytes, divided", "[data]") {
  SyntheticSource source(Part::test, {.limit = {}, .divide_by = 3.0F});
  const auto got = read(source, {9999});
  const Image image = drawn(data::synthetic_seed, 1, 9999);
  for (std::size_t p = 0; p < image.size(); ++p) {
    REQUIRE(got.x[p] == static_cast<float>(image[p]) / 3.0F);
  }
  REQUIRE(got.labels[0] == data::drawn_label({data::synthetic_seed, 1, 9999}));
}

TEST_CASE("the built-in data set is as large as MNIST", "[data]") {
  const auto set = data::open_data_set("synthetic", {});
  CHECK(set.train->records() == 60000);
  CHECK(set.test->records() == 10000);
  CHECK(set.train->features() == 784);
  CHECK(set.test->features() == 784);
  CHECK(set.train->identity() != set.test->identity());
  const auto few = data::open_data_set(
      "synthetic", {.train_limit = 100, .test_limit = 1 << 30, .divide_by = {}});
  CHECK(few.train->records() == 100);
  CHECK(few.test->records() == 10000);
  CHECK(few.train->identity() != set.train->identity());
  CHECK_THROWS_AS(read(*few.train, {100}), std::out_of_range);
}

TEST_CASE("labels are uniform", "[data]") {
  for (const auto part : {Part::train, Part::test}) {
    const auto records = data::synthetic_records(part);
    std::array<double, 10> counts{};
    for (std::uint64_t index = 0; index < records; ++index) {
      const DrawingId id{data::synthetic_seed, static_cast<std::uint32_t>(part), index};
      counts.at(static_cast<std::size_t>(data::drawn_label(id))) += 1.0;
    }
    const double expected = static_cast<double>(records) / 10.0;
    double chi_square = 0.0;
    for (const double count : counts)
      chi_square += (count - expected) * (count - expected) / expected;
    CHECK(chi_square < 27.9);  // 9 degrees of freedom: once in a thousand seeds
  }
}

TEST_CASE("what the built-in data set cannot honour is refused", "[data]") {
  CHECK_THROWS_AS(
      data::open_data_set("synthetic", {.train_limit = 0, .test_limit = {}, .divide_by = {}}),
      ConfigError);
  CHECK_THROWS_AS(SyntheticSource(Part::train, {.limit = {}, .divide_by = {}, .classes = 9}),
                  ConfigError);
  CHECK(SyntheticSource(Part::train, {.limit = {}, .divide_by = {}, .classes = 12}).features() ==
        784);
}

}  // namespace
}  // namespace lockstep::test
