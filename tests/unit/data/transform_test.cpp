#include "lockstep/data/transform.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/data/batches.hpp"
#include "tests/support/toy_source.hpp"

using namespace lockstep;
using namespace lockstep::data;

namespace {

/// A smooth 9x9 picture that is far from symmetric.
std::vector<float> picture() {
  std::vector<float> x(81);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / 9;
    x[i] = static_cast<float>(i % 9) / 9 + static_cast<float>(row) / 31;
  }
  return x;
}

std::vector<float> changed(const Augmentation& augmentation, std::uint64_t id = 0,
                           std::uint64_t epoch = 0, std::uint64_t seed = 22) {
  auto x = picture();
  Transform transform(augmentation, seed, {9, 9});
  transform.apply(epoch, {&id, 1}, x);
  return x;
}

void require_refused(const std::string& text, const std::string& needle) {
  CHECK_THROWS_WITH(parse_augmentation(text), Catch::Contains(needle));
  CHECK_THROWS_AS(parse_augmentation(text), ConfigError);
}

}  // namespace

TEST_CASE("augmentations are read from words", "[transform]") {
  CHECK_FALSE(parse_augmentation("none").any());
  CHECK(parse_augmentation("shift=2,rotate=10,noise=0.05") == Augmentation{2, 10, 0.05});
  CHECK(parse_augmentation("noise=1e-3, shift=0.5") == Augmentation{0.5, 0, 0.001});
  CHECK_FALSE(parse_augmentation("shift=0").any());
  require_refused("shfit=2", "did you mean 'shift'");
  require_refused("", "empty");
  require_refused("shift", "no amount");
  require_refused("shift=", "not a number");
  require_refused("shift=2,shift=3", "twice");
  require_refused("rotate=181", "180");
  for (const char* bad :
       {"noise=-1", "noise=nan", "noise=inf", "noise=1x", "noise=0x1", "noise= "}) {
    require_refused(bad, "not a number");
  }
}

TEST_CASE("a change is a function of seed, epoch and record", "[transform]") {
  const Augmentation all = {2, 30, 0.1};
  CHECK(changed(all) == changed(all));
  CHECK(changed(all) != picture());
  CHECK(changed(all, 1) != changed(all));
  CHECK(changed(all, std::uint64_t{1} << 40) != changed(all));
  CHECK(changed(all, 0, 1) != changed(all));
  CHECK(changed(all, 0, 0, 23) != changed(all));
}

TEST_CASE("what a batch holds does not depend on ranks or steps", "[transform]") {
  ToySource source(60, 81, 3);
  const Augmentation all = {1, 20, 0.1};
  const auto epoch_of = [&](std::uint64_t ranks, std::uint64_t batch_size) {
    PlanOptions options;
    options.records = 60;
    options.batch_size = batch_size;
    options.ranks = ranks;
    options.shuffle = Shuffle::global;
    const Plan plan(options);
    std::vector<std::vector<float>> by_id(60);
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      Transform transform(all, 22, {9, 9});
      BatchReader reader(source, plan, static_cast<int>(rank), &transform);
      for (std::uint64_t step = 0; step < plan.steps(); ++step) {
        std::vector<float> x(reader.piece(step).size() * 81);
        const Batch batch = reader.read(3, step, x);
        for (std::size_t i = 0; i < batch.ids.size(); ++i) {
          const auto row = x.begin() + static_cast<std::ptrdiff_t>(81 * i);
          by_id[batch.ids[i]].assign(row, row + 81);
        }
      }
    }
    return by_id;
  };
  const auto alone = epoch_of(1, 60);
  CHECK(epoch_of(1, 7) == alone);
  CHECK(epoch_of(3, 7) == alone);
  CHECK(epoch_of(5, 60) == alone);
}

TEST_CASE("the bits of all changes stay", "[transform]") {
  // Whoever changes this changes what augmented runs learn.
  Hash hash;
  for (const Augmentation& one :
       {Augmentation{2, 0, 0}, Augmentation{0, 180, 0}, Augmentation{0, 0, 1}}) {
    for (std::uint64_t id = 0; id < 10; ++id) hash.add(changed(one, id));
  }
  CHECK(to_hex(hash.value()) == "0020fa2a5bb3af7e");
}

TEST_CASE("a shift moves by at most its pixels, both ways", "[transform]") {
  const auto centre_of = [](const std::vector<float>& x) {
    double mass = 0;
    double column = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      mass += static_cast<double>(x[i]);
      column += static_cast<double>(x[i]) * static_cast<double>(i % 9);
    }
    return column / mass;
  };
  double min = 9;
  double max = -9;
  for (std::uint64_t id = 0; id < 200; ++id) {
    std::vector<float> x(81);
    x[40] = 1;
    Transform transform({2, 0, 0}, 22, {9, 9});
    transform.apply(0, {&id, 1}, x);
    const double moved = centre_of(x) - 4;
    REQUIRE(std::accumulate(x.begin(), x.end(), 0.0) == Approx(1));
    min = std::min(min, moved);
    max = std::max(max, moved);
  }
  CHECK(min > -2.001);
  CHECK(min < -1.8);
  CHECK(max < 2.001);
  CHECK(max > 1.8);
}

TEST_CASE("a rotation turns about the middle", "[transform]") {
  bool turned = false;
  for (std::uint64_t id = 0; id < 50; ++id) {
    std::vector<float> x(81);
    x[40] = 1;
    x[40 + 3] = 1;
    Transform transform({0, 180, 0}, 22, {9, 9});
    transform.apply(0, {&id, 1}, x);
    REQUIRE(x[40] == Approx(1).margin(1e-6));
    double distance = 0;
    double mass = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t from_top = i / 9;
      const double row = static_cast<double>(from_top) - 4;
      const double column = static_cast<double>(i % 9) - 4;
      if (std::hypot(row, column) < 1.5) continue;  // the middle's own
      mass += static_cast<double>(x[i]);
      distance += static_cast<double>(x[i]) * std::hypot(row, column);
      turned = turned || (column < -2 && x[i] > 0.3F);
    }
    REQUIRE(distance / mass == Approx(3).margin(0.35));
  }
  CHECK(turned);
}

TEST_CASE("noise has its mean and deviation", "[transform]") {
  std::vector<float> x(100'001);  // odd: the last draw is half used
  const std::uint64_t id = 5;
  Transform transform({0, 0, 0.5}, 22, {x.size()});
  transform.apply(0, {&id, 1}, x);
  double sum = 0;
  double squares = 0;
  for (const float value : x) {
    REQUIRE(std::abs(value) <= 0.5F * 3.5F);
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto count = static_cast<double>(x.size());
  CHECK(sum / count == Approx(0).margin(0.01));
  CHECK(std::sqrt(squares / count) == Approx(0.5).epsilon(0.02));
}

TEST_CASE("channels move together; other records are refused", "[transform]") {
  const std::uint64_t id = 3;
  const auto plane = changed({2, 30, 0}, id);
  std::vector<float> x;
  for (const float value : picture()) x.insert(x.end(), {value, 2 * value});
  Transform transform({2, 30, 0}, 22, {9, 9, 2});
  transform.apply(0, {&id, 1}, x);
  for (std::size_t i = 0; i < plane.size(); ++i) {
    REQUIRE(x[2 * i] == plane[i]);
    REQUIRE(x[2 * i + 1] == 2 * plane[i]);
  }
  CHECK_THROWS_AS(Transform({2, 0, 0}, 22, {81}), ConfigError);
  CHECK_THROWS_AS(Transform({0, 1, 0}, 22, {3, 3, 3, 3}), ConfigError);
  CHECK_NOTHROW(Transform({0, 0, 1}, 22, {81}));
}
