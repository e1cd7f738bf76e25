#include "lockstep/data/plan.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "tests/support/sharing_model.hpp"

using namespace lockstep;
using namespace lockstep::data;

using support::dealt;
using support::Ids;

TEST_CASE("the guide's examples of rebatching", "[plan]") {
  using Steps = std::vector<std::vector<Ids>>;
  const auto example = [](std::uint64_t records, std::uint64_t ranks) {
    return dealt({.records = records, .batch_size = 4, .ranks = ranks});
  };
  CHECK(example(6, 2) == Steps{{{0, 1}, {2, 3}}, {{4}, {5}}});
  CHECK(example(4, 5) == Steps{{{0}, {1}, {2}, {3}, {}}});
  CHECK(example(8, 3) == Steps{{{0, 1}, {2, 3}, {}}, {{4, 5}, {6, 7}, {}}});
  CHECK(example(9, 2) == Steps{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8}, {}}});
  CHECK(example(12, 2) == Steps{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8, 9}, {10, 11}}});
  const auto alone = dealt({.records = 100, .batch_size = 16, .ranks = 1});
  REQUIRE(alone.size() == 7);
  for (std::size_t step = 0; step < 7; ++step) CHECK(alone[step][0].size() == (step < 6 ? 16 : 4));
}

TEST_CASE("epochs that drop a remainder drop different records", "[plan]") {
  const Plan plan({.records = 10,
                   .batch_size = 4,
                   .ranks = 2,
                   .drop_remainder = true,
                   .shuffle = Shuffle::global});
  std::set<std::uint64_t> read;
  std::vector<std::uint64_t> ids;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      for (std::uint64_t rank = 0; rank < 2; ++rank) {
        plan.records(epoch, step, rank, ids);
        read.insert(ids.begin(), ids.end());
      }
    }
  }
  CHECK(read.size() == 10);
}

TEST_CASE("a proof finds wrong facts", "[plan]") {
  const Plan plan({.records = 10, .batch_size = 4, .ranks = 2});
  auto facts = facts_of(plan);
  facts.multiplicity.omitted = 1;
  CHECK_THROWS_AS(prove(plan, facts, 0), std::logic_error);
  facts = facts_of(plan);
  ++facts.records_per_rank[0];
  CHECK_THROWS_AS(prove(plan, facts, 0), std::logic_error);
}

TEST_CASE("workers that shuffle files have seeds of their own", "[plan]") {
  CHECK(worker_seed(1, 1) != worker_seed(1, 2));
}

TEST_CASE("the automatic leaf", "[plan]") {
  for (const std::uint64_t most : {float32_leaf, bf16_leaf}) {
    CHECK(automatic_leaf(0, most) == 1);
    CHECK(automatic_leaf(8, most) == 1);
    CHECK(automatic_leaf(15, most) == 1);
    CHECK(automatic_leaf(16, most) == 2);
    CHECK(automatic_leaf(32, most) == 4);
    CHECK(automatic_leaf(127, most) == 8);
    CHECK(automatic_leaf(128, most) == 16);
    CHECK(automatic_leaf(255, most) == 16);
    CHECK(automatic_leaf(256, most) == most);
    CHECK(automatic_leaf(1 << 20, most) == most);
  }
  const Plan plan({.records = 600, .batch_size = 512, .max_leaf = bf16_leaf});
  CHECK(plan.leaf(0) == 32);
  CHECK(plan.leaf(1) == 8);
  CHECK(Plan({.records = 600, .batch_size = 512}).leaf(0) == 16);
  const std::uint64_t longest = std::numeric_limits<std::int64_t>::max();
  const Plan one_leaf({.records = 600, .batch_size = 512, .leaf = longest});
  CHECK(one_leaf.leaf(0) == 512);
  CHECK(one_leaf.leaf(1) == 88);
}

TEST_CASE("the tutorial's last batch of 8 goes to 8 ranks one by one", "[plan]") {
  const Plan plan({.records = 5000, .batch_size = 128, .ranks = 8});
  REQUIRE(plan.steps() == 40);
  CHECK(plan.examples(39) == 8);
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    CHECK(plan.positions(39, rank) == Range{4992 + rank, 4993 + rank});
    CHECK(plan.positions(0, rank) == Range{16 * rank, 16 * rank + 16});
  }
}

TEST_CASE("pieces are disjoint, complete, in whole leaves, for any number of ranks", "[plan]") {
  std::mt19937_64 random(1);
  const auto draw = [&](std::uint64_t max) { return 1 + random() % max; };
  for (int trial = 0; trial < 3000; ++trial) {
    PlanOptions options{.records = draw(400),
                        .batch_size = draw(300),
                        .ranks = draw(20),
                        .leaf = random() % 3 == 0 ? 0 : draw(40),
                        .max_leaf = random() % 2 == 0 ? float32_leaf : bf16_leaf,
                        .drop_remainder = random() % 4 == 0,
                        .shuffle = random() % 2 == 0 ? Shuffle::global : Shuffle::none,
                        .seed = random()};
    const Plan plan(options);
    const auto all = dealt(options);
    if (options.leaf > 0 && options.shuffle == Shuffle::none) {
      REQUIRE(all == support::told({.files = {options.records},
                                    .batch = options.batch_size,
                                    .ranks = options.ranks,
                                    .leaf = options.leaf,
                                    .drop_remainder = options.drop_remainder}));
    }
    Ids seen;
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      std::uint64_t next = step * options.batch_size;
      for (std::uint64_t rank = 0; rank < options.ranks; ++rank) {
        const Range piece = plan.positions(step, rank);
        REQUIRE(piece.size() <= plan.largest_piece());
        REQUIRE(piece.begin == next);
        next = piece.end;
        const bool last = piece.end == step * options.batch_size + plan.examples(step);
        REQUIRE((last || piece.size() % plan.leaf(step) == 0));
        seen.insert(seen.end(), all[step][rank].begin(), all[step][rank].end());
      }
      REQUIRE(next == step * options.batch_size + plan.examples(step));
    }
    const std::set<std::uint64_t> distinct(seen.begin(), seen.end());
    REQUIRE(distinct.size() == seen.size());
    REQUIRE(seen.size() == plan.examples_per_epoch());
    if (!options.drop_remainder) REQUIRE(seen.size() == options.records);

    options.ranks = draw(20);  // the same global batches, in the same order, on any other number
    Ids other;
    for (const auto& step : dealt(options)) {
      for (const auto& ids : step) other.insert(other.end(), ids.begin(), ids.end());
    }
    REQUIRE(other == seen);
  }
}

TEST_CASE("shares change pieces, not batches and leaves", "[plan]") {
  std::mt19937_64 random(2);
  const auto draw = [&](std::uint64_t max) { return 1 + random() % max; };
  for (int trial = 0; trial < 2000; ++trial) {
    const PlanOptions options{.records = draw(400),
                              .batch_size = draw(150),
                              .ranks = draw(20),
                              .leaf = random() % 3 == 0 ? 0 : draw(40),
                              .balance = true};
    Plan plan(options);
    auto shares = plan.shares();
    REQUIRE(*std::max_element(shares.begin(), shares.end()) -
                *std::min_element(shares.begin(), shares.end()) <=
            1);
    for (int move = 0; move < 40; ++move) {
      auto& from = shares[random() % shares.size()];
      auto& to = shares[random() % shares.size()];
      if (from == 0 || to == plan.largest_share()) continue;
      --from;
      ++to;
    }
    plan.set_shares(shares);
    std::uint64_t reads = 0;
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      std::uint64_t next = 0;
      for (std::uint64_t rank = 0; rank < options.ranks; ++rank) {
        const Range rows = plan.rows(step, rank);
        REQUIRE(rows.begin == next);
        REQUIRE(rows.size() <= plan.block(step));
        REQUIRE((rows.end == plan.examples(step) || rows.end % plan.leaf(step) == 0));
        if (step == 0) REQUIRE(ceil_divide(rows.size(), plan.leaf(0)) == shares[rank]);
        next = rows.end;
      }
      REQUIRE(next == plan.examples(step));
      reads += next;
    }
    REQUIRE(reads == options.records);
    REQUIRE(facts_of(plan).multiplicity.disjoint());
    REQUIRE_NOTHROW(prove(plan, facts_of(plan)));
    REQUIRE(plan.digest() == Plan(options).digest());
  }
}

TEST_CASE("shares that a plan cannot have", "[plan]") {
  Plan plan({.records = 100, .batch_size = 16, .ranks = 2, .leaf = 2, .balance = true});
  CHECK(plan.shares() == std::vector<std::uint64_t>{4, 4});
  CHECK(plan.largest_share() == 8);
  for (const auto& shares : {Ids{4, 3}, Ids{4, 5}, Ids{8}, Ids{4, 4, 0}, Ids{}}) {
    CHECK_THROWS_AS(plan.set_shares(shares), std::invalid_argument);
  }
  Plan fixed({.records = 100, .batch_size = 16, .ranks = 2, .leaf = 2});
  CHECK(fixed.shares().empty());
  CHECK_THROWS_AS(fixed.set_shares({4, 4}), std::invalid_argument);
  Plan wide({.records = 100, .batch_size = 100, .ranks = 5, .leaf = 10, .balance = true});
  CHECK_THROWS_AS(wide.set_shares({5, 5, 0, 0, 0}), std::invalid_argument);  // 4 at most
  CHECK_THROWS_AS(Plan({.records = 9, .ranks = 2, .policy = ShardPolicy::off, .balance = true}),
                  ConfigError);
  CHECK(Plan({.records = 5, .batch_size = 6, .drop_remainder = true, .balance = true}).steps() ==
        0);
}

TEST_CASE("huge plans are arithmetic too", "[plan]") {
  const Plan plan({.records = 1'000'000'000'000,
                   .batch_size = 1 << 20,
                   .ranks = 65536,
                   .shuffle = Shuffle::global});
  CHECK(plan.steps() == 953675);
  CHECK(plan.positions(953674, 0).begin == 953674ULL << 20);
  CHECK(plan.positions(0, 65535).end == 1 << 20);
  Ids ids;
  plan.records(5, 1234, 4321, ids);
  CHECK(ids.size() == 16);
  const auto max = ~std::uint64_t{0};
  CHECK(piece_of(max, 1, 2, 3).end == max);
  CHECK(piece_of(10, 16, max - 1, max).size() == 0);
}

TEST_CASE("idle ranks and digests", "[plan]") {
  const auto plan = [](std::uint64_t batch, std::uint64_t ranks) {
    return Plan({.records = 1000, .batch_size = batch, .ranks = ranks});
  };
  CHECK(plan(128, 8).idle_ranks() == 0);
  CHECK(plan(128, 16).idle_ranks() == 8);
  CHECK(plan(128, 5).idle_ranks() == 1);  // 2 + 2 + 2 + 2 leaves
  CHECK(plan(4, 5).idle_ranks() == 1);
  CHECK(plan(128, 8).digest() == plan(128, 8).digest());
  CHECK(plan(128, 8).digest() != plan(128, 4).digest());
  CHECK(plan(128, 8).digest() != plan(64, 8).digest());
  const Plan empty({.records = 0, .batch_size = 1});
  CHECK_THAT(prove(empty, facts_of(empty), 0).text, Catch::StartsWith("0 reads of 0 records"));
}

TEST_CASE("a plan needs a batch and a rank", "[plan]") {
  CHECK_THROWS_AS(Plan({.records = 1, .batch_size = 0}), ConfigError);
  CHECK_THROWS_AS(Plan({.records = 1, .ranks = 0}), ConfigError);
  CHECK(Plan({.records = 5, .batch_size = 6, .drop_remainder = true}).steps() == 0);
  Ids ids;
  CHECK_THROWS_AS(Plan({.records = 10, .batch_size = 4}).records(0, 3, 0, ids), ConfigError);
}

namespace {

std::vector<std::uint64_t> all_ids(std::uint64_t n) {
  std::vector<std::uint64_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0U);
  return ids;
}

IdsDigest digest_of(const std::vector<std::uint64_t>& ids) {
  IdsDigest digest;
  digest.add(ids);
  return digest;
}

}  // namespace

TEST_CASE("a digest does not depend on order or division", "[plan]") {
  auto ids = all_ids(1000);
  const IdsDigest expected = digest_of_all(1000);
  CHECK(digest_of(ids) == expected);
  std::reverse(ids.begin(), ids.end());
  CHECK(digest_of(ids) == expected);

  IdsDigest first = digest_of({ids.begin(), ids.begin() + 300});
  IdsDigest second = digest_of({ids.begin() + 300, ids.end()});
  for (std::size_t i = 0; i < 2; ++i) first.parts()[i] += second.parts()[i];  // as ranks do
  CHECK(first == expected);
  CHECK(first.value() == expected.value());
  CHECK(first.count() == 1000);
}

TEST_CASE("a digest tells a missing, a doubled and another's id", "[plan]") {
  const IdsDigest expected = digest_of_all(100);
  for (const std::uint64_t at : {0, 1, 50, 99}) {
    auto ids = all_ids(100);
    ids[at] = ids[(at + 1) % 100];
    CHECK(digest_of(ids) != expected);
    CHECK(digest_of(ids).value() != expected.value());
    ids[at] = 100;
    CHECK(digest_of(ids) != expected);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at));
    CHECK(digest_of(ids) != expected);
  }
  CHECK(digest_of_all(0) == IdsDigest());
  CHECK(digest_of_all(99).value() != digest_of_all(100).value());
}
