#include "lockstep/train/stragglers.hpp"

#include <catch2/catch.hpp>

using namespace lockstep;
using namespace lockstep::train;
using Catch::Matchers::Contains;

namespace {

constexpr double millisecond = 1e-3;

/// The times of all ranks in a step, in milliseconds.
using Times = std::function<std::vector<std::uint64_t>(std::uint64_t step)>;

/// A plan of one step an epoch.
data::Plan plan_of(std::uint64_t records, std::uint64_t ranks, std::uint64_t leaf) {
  return data::Plan({.records = records, .batch_size = records, .ranks = ranks, .leaf = leaf});
}

/// The warnings of a run of steps of `step_seconds`.
std::vector<std::string> warnings_of(const data::Plan& plan, std::uint64_t steps,
                                     double step_seconds, const Times& times) {
  std::vector<std::string> found;
  std::vector<std::string> names;
  for (std::uint64_t rank = 0; rank < plan.options().ranks; ++rank) {
    names.push_back("rank " + std::to_string(rank) + " on beta");
  }
  Stragglers stragglers(1.5, plan, names, [&](const std::string& text) { found.push_back(text); });
  for (std::uint64_t step = 1; step <= steps; ++step) {
    std::vector<RankMessage> messages;
    for (const auto time : times(step)) {
      messages.push_back({0, static_cast<double>(time) * millisecond});
    }
    StepReport report;
    report.step = step;
    report.seconds = step_seconds;
    report.messages = messages;
    stragglers.on_step(report);
  }
  return found;
}

std::vector<std::string> warnings_of(const data::Plan& plan, std::vector<std::uint64_t> times) {
  return warnings_of(plan, 1000, 0.02, [&](std::uint64_t) { return times; });
}

}  // namespace

TEST_CASE("a slow rank is named once", "[stragglers]") {
  const auto plan = plan_of(64, 4, 16);
  const auto found = warnings_of(plan, {5, 6, 5, 12});
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0], Contains("rank 3 on beta is slow: 12.0 ms before the exchange of a step, "
                                "where the median of 4 ranks is 5.0 ms") &&
                           Contains("\n  remedy: "));
  CHECK(warnings_of(plan, {9, 5, 5, 12}).size() == 2);
  CHECK(warnings_of(plan_of(32, 2, 16), {12, 5}).size() == 1);
}

TEST_CASE("what is not worth a warning", "[stragglers]") {
  const auto plan = plan_of(64, 4, 16);
  CHECK(warnings_of(plan, {5, 6, 5, 7}).empty());          // below the factor
  CHECK(warnings_of(plan, {500, 500, 500, 500}).empty());  // all as slow
  CHECK(warnings_of(plan_of(64, 1, 16), {5}).empty());     // alone
  CHECK(warnings_of(plan, 60, 0.02,
                    [](auto) {  // less than 5 s
                      return std::vector<std::uint64_t>{5, 6, 5, 12};
                    })
            .empty());
  CHECK(warnings_of(plan, 55, 1,
                    [](auto) {  // less than 50 steps
                      return std::vector<std::uint64_t>{5, 6, 5, 500};
                    })
            .empty());
  CHECK(warnings_of(plan, 1000, 0.1,
                    [](auto) {  // 7 % of a step
                      return std::vector<std::uint64_t>{5, 6, 5, 12};
                    })
            .empty());
  CHECK(warnings_of(plan, 300, 0.02,
                    [](std::uint64_t step) {  // the first steps
                      return std::vector<std::uint64_t>{5, 6, 5, step <= 10 ? 5000U : 5U};
                    })
            .empty());
  CHECK(warnings_of(plan, 1000, 0.02,
                    [](std::uint64_t step) {  // a few steps
                      return std::vector<std::uint64_t>{5, 6, 5, step % 10 == 0 ? 500U : 5U};
                    })
            .empty());
}

TEST_CASE("ranks with more examples may need more time", "[stragglers]") {
  const auto plan = plan_of(48, 2, 16);  // 32 and 16 examples
  REQUIRE(plan.piece_size(0, 0) == 32);
  REQUIRE(plan.piece_size(0, 1) == 16);
  CHECK(warnings_of(plan, {10, 5}).empty());
  CHECK(warnings_of(plan, {5, 10}).size() == 1);
  CHECK(warnings_of(plan, {20, 5}).size() == 1);
  const auto idle = plan_of(16, 3, 16);  // one rank has examples
  CHECK(warnings_of(idle, {10, 1, 1}).empty());
}
