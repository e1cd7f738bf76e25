#include "lockstep/optim/optimizer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/numerics/threads.hpp"
#include "lockstep/optim/update_passes.hpp"
#include "tests/support/greatest_error.hpp"

using namespace lockstep::optim;

namespace {

/// The gradients of the whole block.
std::array<GradientSums, 1> whole(std::span<const float> sums) { return {{{sums}}}; }

/// Adam for a range of one tensor, step after step.
class Adam {
 public:
  Adam(std::size_t count, const OptimizerOptions& options) : optimizer_(count, options, {}) {}

  bool update(std::span<float> w, std::span<const float> sums, double weight) {
    return update(w, whole(sums), weight);
  }
  bool update(std::span<float> w, std::span<const GradientSums> sums, double weight) {
    return optimizer_.update(w, sums, weight, step_++, {});
  }
  const OptimizerScalars& scalars() const { return optimizer_.scalars(); }

 private:
  Optimizer optimizer_;
  std::uint64_t step_ = 0;
};

/// The formula of the header in double.
struct Reference {
  std::vector<double> w, m, v;
  int t = 0;

  void update(const std::vector<float>& sums, double examples) {
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = static_cast<double>(sums[i]) / examples;
      m[i] = 0.9 * m[i] + (1 - 0.9) * g;
      v[i] = 0.999 * v[i] + (1 - 0.999) * g * g;
      const double mean = m[i] / (1 - std::pow(0.9, t));
      const double square = v[i] / (1 - std::pow(0.999, t));
      w[i] -= 1e-3 * mean / (std::sqrt(square) + 1e-7);
    }
  }
};

std::vector<float> gradients(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::normal_distribution<float>()(random) *
            std::pow(10.0F, static_cast<float>(random() % 8) - 6);
  }
  if (count > 2) values[2] = 0;
  return values;
}

}  // namespace

TEST_CASE("the first step equals the formula in double", "[adam]") {
  const std::size_t count = GENERATE(1, 15, 16, 17, 1000);
  const auto sums = gradients(count, 1);
  std::vector<float> w(count);
  Adam adam(count, {});
  REQUIRE(adam.update(w, sums, 128));
  for (std::size_t i = 0; i < count; ++i) {
    const double g = std::abs(static_cast<double>(sums[i]) / 128);
    CHECK(std::abs(std::abs(static_cast<double>(w[i])) - 1e-3 * g / (g + 1e-7)) < 1e-7);
  }
}

TEST_CASE("a hundred steps stay with the formula in double", "[adam]") {
  const std::size_t count = 200;
  std::vector<float> w(count, 0.5F);
  Reference exact{std::vector<double>(count, 0.5), std::vector<double>(count),
                  std::vector<double>(count)};
  Adam adam(count, {});
  for (unsigned step = 0; step < 100; ++step) {
    const auto sums = gradients(count, step);
    REQUIRE(adam.update(w, sums, 100 + step));
    exact.update(sums, 100 + step);
  }
  CHECK(adam.scalars().steps == 100);
  for (std::size_t i = 0; i < count; ++i) CHECK(std::abs(w[i] - exact.w[i]) < 1e-5);
}

// std::pow() gives another float32 at steps 9 and 12 here, and no library promises its last bit.
TEST_CASE("bias correction takes the powers of beta as running products", "[adam]") {
  const OptimizerOptions options = {.beta1 = 0.999, .beta2 = 0.99999999};
  Adam adam(1, options);
  UpdatePasses passes(options, {});
  std::vector<float> w(1);
  double product1 = 1;
  double product2 = 1;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    REQUIRE(adam.update(w, std::vector<float>{1}, 1));
    product1 *= options.beta1;
    product2 *= options.beta2;
    const OptimizerScalars& state = adam.scalars();
    REQUIRE(state.steps == step);
    REQUIRE(state.beta1_power == product1);
    REQUIRE(state.beta2_power == product2);
    const PassFactors factors = passes.begin(1, 1, step - 1)[0].factors;
    REQUIRE(factors.corrected_rate == static_cast<float>(1e-3 / (1 - product1)));
    REQUIRE(factors.inverse_correction2 == static_cast<float>(1 / (1 - product2)));
  }
}

TEST_CASE("an update does not depend on how the block is divided", "[adam]") {
  const std::size_t count = 1003;
  std::vector<float> undivided(count, 0.25F);
  std::vector<float> parts(count, 0.25F);
  Adam one(count, {});
  Adam left(77 + 300, {});
  Adam right(count - 77 - 300, {});
  for (unsigned step = 0; step < 5; ++step) {
    const auto sums = gradients(count, step);
    REQUIRE(one.update(undivided, sums, 7));
    const auto range = [&](std::size_t first, std::size_t last) {
      return GradientSums{std::span(sums).subspan(first, last - first), first};
    };
    REQUIRE(left.update(parts, std::array{range(0, 77), range(500, 800)}, 7));
    REQUIRE(right.update(parts, std::array{range(77, 500), range(800, count)}, 7));
    CHECK_THROWS_AS(left.update(parts, std::array{range(0, 77)}, 7), std::invalid_argument);
  }
  CHECK(undivided == parts);
}

TEST_CASE("a gradient that is not finite is reported", "[adam]") {
  const std::size_t count = 70;
  const std::size_t place = GENERATE(0, 15, 63, 64, 69);
  auto sums = gradients(count, 1);
  sums[place] =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  std::vector<float> w(count);
  Adam adam(count, {});
  CHECK_FALSE(adam.update(w, sums, 1));
}

TEST_CASE("a gradient whose square is not finite is reported", "[adam]") {
  const std::size_t place = GENERATE(0, 15, 63, 64, 69);
  std::vector<float> sums(70, 1.0F);
  std::vector<float> w(70);
  Adam adam(70, {});
  sums[place] = 1.8e19F;  // the largest whose square is a float32 is 1.84e19
  CHECK(adam.update(w, sums, 1));
  sums[place] = 1.9e19F;
  CHECK_FALSE(adam.update(w, sums, 1));
  CHECK_FALSE(adam.update(w, std::vector<float>(70, 1.0F), 1));  // the moment stays infinite
}

TEST_CASE("what is next to nothing becomes zero and stays there", "[adam]") {
  std::vector<float> w(20, 0.0F);
  Adam adam(20, {});
  REQUIRE(adam.update(w, std::vector<float>(20, 1e-20F), 1));
  CHECK(w == std::vector<float>(20, 0.0F));  // the formula gives -1e-16
  REQUIRE(adam.update(w, std::vector<float>(20, 1e-9F), 1));
  for (int step = 0; step < 1000; ++step) {
    REQUIRE(adam.update(w, std::vector<float>(20, 0.0F), 1));
  }
  const auto settled = w;
  REQUIRE(adam.update(w, std::vector<float>(20, 0.0F), 1));
  CHECK(w == settled);  // the first moment is 0, not denormal
}

TEST_CASE("spans of another length are a caller's mistake", "[adam]") {
  Adam adam(4, {});
  std::vector<float> w(4);
  std::vector<float> sums(5);
  CHECK_THROWS_AS(adam.update(w, sums, 1), std::invalid_argument);
  CHECK_THROWS_AS(adam.update(w, std::span(sums).first(4), 0), std::invalid_argument);
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t matrix_size = 12;  // of scripts/peers/optimizers.py, before a vector of 4
constexpr std::size_t weights = 16;

OptimizerOptions options_in(const Json& figure) {
  OptimizerOptions options = {.kind = *optimizer_named(figure.at("kind").get<std::string>())};
  options.learning_rate = figure.at("learning_rate");
  options.momentum = figure.value("momentum", 0.0);
  options.nesterov = figure.value("nesterov", false);
  options.weight_decay = figure.value("weight_decay", 0.0);
  options.beta1 = figure.value("beta1", 0.9);
  options.beta2 = figure.value("beta2", 0.999);
  options.epsilon = figure.value("epsilon", 1e-7);
  options.trust = figure.value("trust", 1e-3);
  if (figure.contains("clip_norm")) options.clip_norm = figure.at("clip_norm").get<double>();
  if (figure.contains("clip_value")) options.clip_value = figure.at("clip_value").get<double>();
  if (!figure.contains("schedule")) return options;
  const Json& schedule = figure.at("schedule");
  options.schedule = {.kind = *schedule_named(schedule.at("kind").get<std::string>()),
                      .warmup = schedule.value("warmup", std::uint64_t{0}),
                      .steps = 100,
                      .last = schedule.value("last", 0.0),
                      .decay = schedule.value("decay", 0.1),
                      .every = schedule.value("every", std::uint64_t{1})};
  return options;
}

/// The problem of scripts/peers/optimizers.py.
std::vector<float> first_weights() {
  std::vector<float> w(weights);
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = static_cast<float>(static_cast<int>(3 * i % 7) - 3) / 8;
  }
  return w;
}

std::vector<float> gradient_at(const std::vector<float>& w, std::size_t step) {
  std::vector<float> gradient(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float a = 0.5F + 0.1F * static_cast<float>(i);
    const float b = static_cast<float>(static_cast<int>((7 * i + step) % 5) - 2) / 4;
    gradient[i] = a * (w[i] - b);
  }
  return gradient;
}

std::vector<UpdatedTensor> whole_tensors() {
  return {{.range = {0, matrix_size}}, {.range = {matrix_size, weights}, .vector = true}};
}

}  // namespace

TEST_CASE("optimizers follow PyTorch", "[optimizer]") {
  std::ifstream file(OPTIMIZER_FIGURES);
  const Json figures = Json::parse(file);
  REQUIRE(figures.size() >= 12);
  for (const Json& figure : figures) {
    INFO(figure.at("kind") << " at " << figure.at("learning_rate"));
    const OptimizerOptions options = options_in(figure);
    Optimizer optimizer(weights, options, whole_tensors());
    auto w = first_weights();
    std::size_t compared = 0;
    for (std::size_t step = 0; step < 100; ++step) {
      REQUIRE(optimizer.update(w, whole(gradient_at(w, step)), 1, step, {}));
      const auto expected = figure.at("weights").find(std::to_string(step + 1));
      if (expected == figure.at("weights").end()) continue;
      ++compared;
      const auto exact = expected->get<std::vector<double>>();
      const double norm = lockstep::test::greatest_error(exact, std::vector<double>(weights));
      INFO("step " << step + 1);
      CHECK(lockstep::test::greatest_error(w, exact) / norm < 1e-5);
    }
    CHECK(compared == 7);
    CHECK(optimizer.gradient_norm().has_value() == figure.contains("clip_norm"));
  }
}

TEST_CASE("an update does not depend on how ranks divide the tensors", "[optimizer]") {
  constexpr std::size_t count = 1024;
  std::atomic<bool> all_finite = true;
  const auto update = [&](const OptimizerOptions& options, std::size_t ranks) {
    // Three matrices and a vector, in slices of `ranks`, the last one padded.
    const std::vector<std::size_t> ends = {480, 496, 960, count};
    const std::size_t length = (count / 16 + ranks - 1) / ranks * 16;
    std::vector<float> w(length * ranks);
    for (std::size_t i = 0; i < count; ++i) w[i] = gradients(count, 9)[i];
    lockstep::comm::run_ranks(static_cast<int>(ranks), [&](lockstep::comm::Communicator& comm) {
      const std::size_t first = length * static_cast<std::size_t>(comm.rank());
      std::vector<UpdatedTensor> tensors;
      for (std::size_t t = 0, begin = 0; t < ends.size(); begin = ends[t++]) {
        const auto in_slice = [&](std::size_t at) {
          return std::clamp(at, first, first + length) - first;
        };
        tensors.push_back({.range = {in_slice(begin), in_slice(ends[t])}, .vector = t == 1});
      }
      Optimizer optimizer(length, options, tensors);
      const RankSums sums = {
          .over_batch = [&](std::span<std::uint64_t> words) { comm.all_reduce(words); },
          .over_model = {}};
      for (unsigned step = 0; step < 3; ++step) {
        auto all = gradients(count, step);
        all.resize(w.size());
        const bool ok =
            optimizer.update(std::span(w).subspan(first, length),
                             whole(std::span(all).subspan(first, length)), 7, step, sums);
        if (!ok) all_finite = false;
      }
    });
    w.resize(count);
    return w;
  };
  // The same on two ranks of "model", each with half of the third tensor, and all others.
  const auto update_cut = [&](const OptimizerOptions& options) {
    constexpr std::size_t begin = 496;
    constexpr std::size_t half = 232;
    std::vector<float> w = gradients(count, 9);
    lockstep::comm::run_ranks(2, [&](lockstep::comm::Communicator& comm) {
      const auto own = [&](std::vector<float> all) {
        const auto other = all.begin() + begin + (comm.rank() == 0 ? half : 0);
        all.erase(other, other + half);
        return all;
      };
      const std::vector<UpdatedTensor> tensors = {{.range = {0, 480}},
                                                  {.range = {480, begin}, .vector = true},
                                                  {.range = {begin, begin + half}, .cut = true},
                                                  {.range = {begin + half, count - half}}};
      auto mine = own(w);
      Optimizer optimizer(mine.size(), options, tensors);
      const RankSums sums = {.over_batch = {}, .over_model = [&](std::span<std::uint64_t> words) {
                               comm.all_reduce(words);
                             }};
      for (unsigned step = 0; step < 3; ++step) {
        const auto all = own(gradients(count, step));
        if (!optimizer.update(mine, whole(all), 7, step, sums)) all_finite = false;
      }
      comm.all_agree(true);  // both have copied w
      const auto part = static_cast<std::ptrdiff_t>(comm.rank() == 0 ? 0 : half);
      if (comm.rank() == 0) {
        std::copy_n(mine.begin(), begin, w.begin());
        std::copy_n(mine.end() - 64, 64, w.end() - 64);
      }
      std::copy_n(mine.begin() + begin, half, w.begin() + begin + part);
    });
    return w;
  };
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw,
                          OptimizerKind::lars, OptimizerKind::lamb}) {
    for (const bool clips : {false, true}) {
      OptimizerOptions options = {.kind = kind, .learning_rate = 0.1, .weight_decay = 0.01};
      if (clips) options.clip_norm = 0.01;
      INFO(name_of(kind) << (clips ? ", clipped" : ""));
      const auto one = update(options, 1);
      for (const std::size_t ranks : {2, 3, 5, 8}) CHECK(update(options, ranks) == one);
      CHECK(update_cut(options) == one);
      CHECK(all_finite);
    }
  }
}

TEST_CASE("an update does not depend on the number of threads", "[optimizer]") {
  constexpr std::size_t count = 30'011;  // enough for several
  constexpr std::size_t matrix = 25'000;
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::lamb}) {
    INFO(name_of(kind));
    const auto update = [&](int threads) {
      lockstep::set_product_threads(threads);
      Optimizer optimizer(count, {.kind = kind, .learning_rate = 0.1, .clip_norm = 0.01},
                          {{.range = {0, matrix}}, {.range = {matrix, count}, .vector = true}});
      std::vector<float> w = gradients(count, 9);
      for (unsigned step = 0; step < 3; ++step) {
        CHECK(optimizer.update(w, whole(gradients(count, step)), 7, step, {}));
      }
      lockstep::set_product_threads(1);
      return std::pair(w, optimizer.gradient_norm());
    };
    const auto one = update(1);
    for (const int threads : {2, 3}) CHECK((update(threads) == one));
  }
}

TEST_CASE("gradients that are not finite are reported by every optimizer", "[optimizer]") {
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw,
                          OptimizerKind::lars, OptimizerKind::lamb}) {
    for (const int clip : {0, 1, 2}) {
      OptimizerOptions options = {.kind = kind};
      if (clip == 1) options.clip_norm = 1.0;
      if (clip == 2) options.clip_value = 1.0;
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), 1.9e19F}) {
        INFO(name_of(kind) << " " << clip << " " << bad);
        Optimizer optimizer(weights, options, whole_tensors());
        auto w = first_weights();
        auto sums = gradient_at(w, 0);
        sums[5] = bad;
        CHECK_FALSE(optimizer.update(w, whole(sums), 1, 0, {}));
      }
    }
  }
}

TEST_CASE("a gradient whose square is not finite is reported though decay cancels it",
          "[optimizer]") {
  Optimizer optimizer(weights, {.kind = OptimizerKind::adam, .weight_decay = 0.125},
                      whole_tensors());
  auto w = first_weights();
  auto sums = gradient_at(w, 0);
  w[5] = -8 * 0x1p64F;
  sums[5] = 0x1p64F;
  CHECK_FALSE(optimizer.update(w, whole(sums), 1, 0, {}));
}

TEST_CASE("an updated weight that is not finite is reported", "[optimizer]") {
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw}) {
    INFO(name_of(kind));
    Optimizer optimizer(weights, {.kind = kind, .learning_rate = 3e37}, whole_tensors());
    auto w = first_weights();
    std::vector<float> sums(weights, 0);
    sums[5] = 1;
    w[5] = 3.4e38F;  // the step has the other sign
    CHECK(optimizer.update(w, whole(sums), 1, 0, {}));
    w[5] = -3.4e38F;
    CHECK_FALSE(optimizer.update(w, whole(sums), 1, 1, {}));
  }
}

TEST_CASE("options that do not fit an optimizer are refused", "[optimizer]") {
  const auto refusal = [](const OptimizerOptions& options) -> std::string {
    try {
      require_valid(options);
    } catch (const lockstep::ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  using Catch::Contains;
  CHECK(refusal({}) == "accepted");
  CHECK_THAT(refusal({.momentum = 0.9}), Contains("`optimizer=adam`") && Contains("`beta1`"));
  CHECK_THAT(refusal({.kind = OptimizerKind::sgd, .nesterov = true}), Contains("momentum"));
  CHECK_THAT(refusal({.beta2 = 1}), Contains("beta2"));
  CHECK_THAT(refusal({.kind = OptimizerKind::sgd, .beta1 = 0.5}),
             Contains("beta1") && Contains("sgd") && Contains("does not use it"));
  CHECK_THAT(refusal({.schedule = {.every = 3}}), Contains("decay_every"));
  CHECK_THAT(refusal({.weight_decay = -1}), Contains("weight_decay"));
  CHECK_THAT(refusal({.clip_norm = 0.0}), Contains("clip_norm"));
  CHECK_THAT(refusal({.clip_norm = 1.0, .clip_value = 1.0}), Contains("use one of them"));
  CHECK_THAT(refusal({.schedule = {.kind = ScheduleKind::cosine, .warmup = 10, .steps = 10}}),
             Contains("`warmup=10`") && Contains("none of 10 steps"));
  CHECK_THAT(refusal({.schedule = {.kind = ScheduleKind::step, .every = 0}}), Contains("every"));
  CHECK_THAT(refusal({.schedule = {.kind = ScheduleKind::exponential, .decay = 1e-310}}),
             Contains("decay=1e-310") && Contains("schedule=step"));
}

TEST_CASE("schedules have the factors of their formulas", "[optimizer]") {
  const double pi = std::acos(-1.0);
  const Schedule cosine = {.kind = ScheduleKind::cosine, .warmup = 10, .steps = 110, .last = 0.1};
  const Schedule powers = {
      .kind = ScheduleKind::exponential, .warmup = 0, .decay = 0.3, .every = 7};
  const Schedule stairs = {.kind = ScheduleKind::step, .warmup = 4, .decay = 0.3, .every = 7};
  const Schedule linear = {.kind = ScheduleKind::linear, .warmup = 0, .steps = 50, .last = 0.5};
  for (std::uint64_t step = 0; step < 200; ++step) {
    const auto t = static_cast<double>(step);
    const double done = std::clamp((t - 10) / 100, 0.0, 1.0);
    const double expected = step < 10 ? (t + 1) / 10 : 0.1 + 0.9 * (1 + std::cos(pi * done)) / 2;
    CHECK(std::abs(cosine.factor(step) - expected) < 1e-15);
    CHECK(std::abs(powers.factor(step) / std::pow(0.3, t / 7) - 1) < 1e-12);
    if (step >= 4) {
      CHECK(std::abs(stairs.factor(step) / std::pow(0.3, (step - 4) / 7) - 1) < 1e-12);
    }
    CHECK(linear.factor(step) == 1 - 0.5 * std::min(1.0, t / 50));
  }
  CHECK(stairs.factor(3) == 1);
  const Schedule constant = {.kind = ScheduleKind::exponential, .decay = 1};
  CHECK(constant.factor(1'000'000) == 1);
  const Schedule slow = {.kind = ScheduleKind::exponential, .decay = 0.9};
  CHECK(std::abs(slow.factor(3000) / std::pow(0.9, 3000) - 1) < 1e-13);
  CHECK(slow.factor(10'000) == 0);
  for (const double last : {0.0, 0.1}) {  // which the formulas give but for their last bits
    for (const auto kind : {ScheduleKind::linear, ScheduleKind::cosine}) {
      const Schedule schedule = {.kind = kind, .steps = 50, .last = last};
      CHECK(schedule.factor(49) > last);
      for (const std::uint64_t step : {50, 51, 1000}) CHECK(schedule.factor(step) == last);
    }
  }
}
