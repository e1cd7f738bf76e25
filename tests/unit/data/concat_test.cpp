#include <catch2/catch.hpp>
#include <stdexcept>
#include <utility>

#include "lockstep/data/stored_source.hpp"
#include "tests/support/toy_source.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using data::ConcatSource;

/// Record i has two features, both first + i, and that label; counts how often it is read.
class Counting final : public data::Source {
 public:
  Counting(std::uint64_t first, std::uint64_t records, std::size_t features = 2)
      : first_(first), records_(records), features_(features) {}

  std::uint64_t records() const noexcept override { return records_; }
  std::size_t features() const noexcept override { return features_; }
  float divisor() const noexcept override { return 1; }
  std::string identity() const override { return "counting from " + std::to_string(first_); }
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override {
    ++reads;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= records_) throw std::out_of_range("Counting");
      labels[i] = static_cast<std::int32_t>(first_ + ids[i]);
      for (std::size_t f = 0; f < features_; ++f) {
        x[i * features_ + f] = static_cast<float>(labels[i]);
      }
    }
  }

  int reads = 0;

 private:
  std::uint64_t first_;
  std::uint64_t records_;
  std::size_t features_;
};

std::vector<std::unique_ptr<data::Source>> parts_of(const std::vector<std::uint64_t>& sizes) {
  std::vector<std::unique_ptr<data::Source>> parts;
  std::uint64_t first = 0;
  for (const std::uint64_t size : sizes) {
    parts.push_back(std::make_unique<Counting>(first, size));
    first += size;
  }
  return parts;
}

TEST_CASE("parts follow one another", "[data]") {
  const auto sizes = GENERATE(std::vector<std::uint64_t>{7}, std::vector<std::uint64_t>{1, 1, 5},
                              std::vector<std::uint64_t>{3, 2, 2});
  ConcatSource source(parts_of(sizes));
  REQUIRE(source.records() == 7);
  REQUIRE(source.features() == 2);
  REQUIRE(source.file_records() == sizes);
  const auto forwards = read_all(source);
  REQUIRE(forwards.labels == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6});
  const auto mixed = read(source, {6, 0, 3, 3, 2, 5});
  REQUIRE(mixed.labels == std::vector<std::int32_t>{6, 0, 3, 3, 2, 5});
  REQUIRE(mixed.x == std::vector<float>{6, 6, 0, 0, 3, 3, 3, 3, 2, 2, 5, 5});
  REQUIRE(read(source, {}).labels.empty());
  REQUIRE_THROWS_AS(read(source, {0, 7}), std::out_of_range);
}

TEST_CASE("a run inside one part is one read", "[data]") {
  auto parts = parts_of({4, 4});
  auto& first = dynamic_cast<Counting&>(*parts[0]);
  auto& second = dynamic_cast<Counting&>(*parts[1]);
  ConcatSource source(std::move(parts));
  read(source, {3, 0, 1, 4, 7});
  REQUIRE(first.reads == 1);
  REQUIRE(second.reads == 1);
}

TEST_CASE("the parts and their order are the identity", "[data]") {
  const auto identity = [](const std::vector<std::uint64_t>& sizes) {
    return ConcatSource(parts_of(sizes)).identity();
  };
  REQUIRE(identity({3, 4}) == identity({3, 4}));
  REQUIRE(identity({3, 4}) != identity({4, 3}));
}

TEST_CASE("parts with weights and without follow one another", "[data]") {
  std::vector<std::unique_ptr<data::Source>> parts = parts_of({2});
  auto weighted = std::make_unique<ToySource>(2, 2, 2);
  weighted->set_weights([](std::uint64_t record) { return 3 + static_cast<float>(record); });
  parts.push_back(std::move(weighted));
  const ConcatSource source(std::move(parts));
  REQUIRE(source.has_weights());
  std::vector<float> weights;
  for (std::uint64_t id = 0; id < 4; ++id) weights.push_back(source.weight(id));
  REQUIRE(weights == std::vector<float>{1, 1, 3, 4});
  REQUIRE_FALSE(ConcatSource(parts_of({2, 1})).has_weights());
}

TEST_CASE("parts that do not fit together are refused", "[data]") {
  REQUIRE_THROWS_AS(ConcatSource({}), std::invalid_argument);
  auto parts = parts_of({2});
  parts.push_back(std::make_unique<Counting>(0, 2, 3));
  REQUIRE_THROWS_AS(ConcatSource(std::move(parts)), std::invalid_argument);
  auto with_values = std::make_unique<ToySource>(2, 2, 2);
  with_values->set_values(1, [](std::uint64_t, std::size_t) { return 0.5F; });
  parts = parts_of({2});
  parts.push_back(std::move(with_values));
  REQUIRE_THROWS_AS(ConcatSource(std::move(parts)), std::invalid_argument);
}

}  // namespace
}  // namespace lockstep::test
