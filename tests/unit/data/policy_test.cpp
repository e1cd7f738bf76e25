#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/plan.hpp"
#include "tests/support/sharing_model.hpp"

using namespace lockstep;
using namespace lockstep::data;
using support::Dealt;
using support::dealt;
using support::Ids;

namespace {

/// The guide's 12 elements, 2 workers, batch 4.
PlanOptions guide(ShardPolicy policy, std::vector<std::uint64_t> files = {}) {
  return {.records = 12,
          .batch_size = 4,
          .ranks = 2,
          .policy = policy,
          .file_records = std::move(files)};
}

Dealt told(const PlanOptions& options) {
  return support::told({.files = options.file_records,
                        .batch = options.batch_size,
                        .ranks = options.ranks,
                        .drop_remainder = options.drop_remainder,
                        .policy = options.policy,
                        .rebatch = options.rebatch});
}

/// A random plan of FILE or OFF.
PlanOptions drawn(std::mt19937_64& random) {
  const auto draw = [&](std::uint64_t max) { return 1 + random() % max; };
  PlanOptions options{.batch_size = draw(40),
                      .ranks = draw(9),
                      .leaf = random() % 2 == 0 ? 0 : draw(10),
                      .max_leaf = draw(6),
                      .drop_remainder = random() % 4 == 0,
                      .seed = random(),
                      .policy = random() % 3 == 0 ? ShardPolicy::off : ShardPolicy::file};
  const std::uint64_t max = random() % 2 == 0 ? 12 : 90;
  const std::uint64_t files = options.ranks + random() % 12;
  for (std::uint64_t i = 0; i < files; ++i) options.file_records.push_back(random() % max);
  options.records =
      std::accumulate(options.file_records.begin(), options.file_records.end(), std::uint64_t{0});
  if (options.batch_size >= options.ranks && random() % 2 == 0) {
    options.rebatch = Rebatch::balanced;
  }
  return options;
}

void require_shapes(const Plan& plan, const Dealt& all) {
  const std::uint64_t ranks = plan.options().ranks;
  const std::uint64_t largest_leaf = plan.largest_leaf();
  for (std::uint64_t step = 0; step < all.size(); ++step) {
    std::uint64_t sum = 0;
    std::uint64_t largest = 0;
    for (const Ids& ids : all[step]) {
      sum += ids.size();
      largest = std::max<std::uint64_t>(largest, ids.size());
    }
    REQUIRE(sum > 0);
    REQUIRE(plan.examples(step) == sum);
    REQUIRE(plan.leaf(step) >= 1);
    REQUIRE(plan.leaf(step) <= largest_leaf);
    REQUIRE(plan.block(step) >= largest);
    REQUIRE(plan.block(step) < largest + plan.leaf(step));
    REQUIRE(plan.block(step) % plan.leaf(step) == 0);
    REQUIRE(plan.summed_rows(step) == plan.block(step) * ranks);
    REQUIRE(plan.summed_rows(step) <= plan.largest_gathered());
    REQUIRE(largest <= plan.largest_piece());
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(plan.rows(step, rank) ==
              Range{rank * plan.block(step), rank * plan.block(step) + all[step][rank].size()});
    }
  }
}

}  // namespace

TEST_CASE("the guide's policies, element by element", "[policy]") {
  const Dealt file = {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4}, {10}}, {{5}, {11}}};
  CHECK(dealt(guide(ShardPolicy::file, {6, 6})) == file);
  CHECK(dealt(guide(ShardPolicy::automatic, {6, 6})) == file);
  const Dealt data = {{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8, 9}, {10, 11}}};
  CHECK(dealt(guide(ShardPolicy::data, {12})) == data);
  CHECK(dealt(guide(ShardPolicy::automatic)) == data);
  Dealt off;
  for (std::uint64_t i = 0; i < 12; i += 2) off.push_back({{i, i + 1}, {i, i + 1}});
  CHECK(dealt(guide(ShardPolicy::off, {12})) == off);
  auto balanced = guide(ShardPolicy::file, {6, 6});
  balanced.rebatch = Rebatch::balanced;
  CHECK(dealt(balanced) == Dealt{{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {10, 11}}});
  CHECK(Plan(guide(ShardPolicy::file, {6, 6})).examples(2) == 2);
}

TEST_CASE("balanced pieces rotate by worker", "[rebatch]") {
  using Sizes = std::vector<std::uint64_t>;
  const BalancedPieces two(7, 2, 2);
  CHECK(two.sizes(0) == Sizes{2, 2, 2, 1});
  CHECK(two.sizes(1) == Sizes{2, 1, 2, 2});
  const BalancedPieces three(4, 3, 1);
  CHECK(three.sizes(0) == Sizes{2, 1, 1});
  CHECK(three.sizes(1) == Sizes{1, 1, 2});
  CHECK(three.sizes(2) == Sizes{1, 2, 1});
  CHECK_THROWS_AS(three.sizes(3), ConfigError);
  CHECK_THROWS_AS(BalancedPieces(0, 3), ConfigError);
  CHECK_THROWS_AS(BalancedPieces(4, 0), ConfigError);
  CHECK_THROWS_AS(BalancedPieces(4, 2, 0), ConfigError);
}

TEST_CASE("balanced pieces differ by one and add up to the batch", "[rebatch]") {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::uint64_t batch = 1 + random() % 60;
    const std::uint64_t workers = 1 + random() % 6;
    const std::uint64_t replicas = 1 + random() % 4;
    const BalancedPieces pieces(batch, workers, replicas);
    REQUIRE(pieces.pieces() == workers * replicas);
    for (std::uint64_t k = 0; k + replicas <= 3 * pieces.pieces(); k += replicas) {
      std::uint64_t step = 0;  // all replicas of all workers take their next pieces
      for (std::uint64_t worker = 0; worker < workers; ++worker) {
        for (std::uint64_t r = 0; r < replicas; ++r) {
          const Range piece = pieces.piece(worker, k + r);
          REQUIRE(piece.end == pieces.piece(worker, k + r + 1).begin);
          REQUIRE((piece.size() == batch / pieces.pieces() ||
                   piece.size() == ceil_divide(batch, pieces.pieces())));
          step += piece.size();
        }
      }
      REQUIRE(step == batch);
    }
  }
}

TEST_CASE("where a stream is empty, a later step may have the largest leaf", "[rebatch]") {
  const Plan plan({.records = 2100,
                   .batch_size = 191,
                   .ranks = 3,
                   .drop_remainder = true,
                   .policy = ShardPolicy::file,
                   .rebatch = Rebatch::balanced,
                   .file_records = {100, 1000, 1000}});
  CHECK(plan.leaf(0) == 8);   // of 127 examples
  CHECK(plan.leaf(2) == 16);  // of 128
  CHECK(plan.largest_leaf() == 16);
}

TEST_CASE("FILE and OFF deal as the guide tells, whatever the numbers", "[policy]") {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 4000; ++trial) {
    const PlanOptions options = drawn(random);
    const Plan plan(options);
    const Dealt all = dealt(options);
    REQUIRE(all == told(options));
    require_shapes(plan, all);
    const PlanFacts facts = facts_of(plan);
    std::uint64_t empty = 0;
    for (const auto& step : all) {
      for (const Ids& ids : step) empty += ids.empty() ? 1 : 0;
    }
    REQUIRE(facts.empty_batches == empty);
    REQUIRE(facts.idle_share >= 0);
    REQUIRE(facts.idle_share < 1);
    REQUIRE(prove(plan, facts).enumerated);  // sums and multiplicity, against the ids
    const std::uint64_t times = options.policy == ShardPolicy::off ? options.ranks : 1;
    if (!options.drop_remainder && options.records > 0) {
      REQUIRE(facts.multiplicity == Multiplicity{times, times, 0});
    }
  }
}

TEST_CASE("shuffled streams are permutations of their own", "[policy]") {
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 300; ++trial) {
    PlanOptions options = drawn(random);
    options.shuffle = Shuffle::global;
    const Plan plan(options);
    const std::uint64_t epoch = random() % 5;
    REQUIRE_NOTHROW(prove(plan, facts_of(plan), epoch));
    if (options.drop_remainder) continue;
    auto straight = options;
    straight.shuffle = Shuffle::none;
    const auto of_rank = [](const Dealt& steps, std::uint64_t rank) {
      Ids ids;
      for (const auto& step : steps) ids.insert(ids.end(), step[rank].begin(), step[rank].end());
      return ids;
    };
    const Dealt shuffled = dealt(options, epoch);
    const Dealt ordered = dealt(straight);
    for (std::uint64_t rank = 0; rank < options.ranks; ++rank) {
      Ids ids = of_rank(shuffled, rank);
      std::sort(ids.begin(), ids.end());
      REQUIRE(ids == of_rank(ordered, rank));
      if (options.policy == ShardPolicy::off)
        REQUIRE(of_rank(shuffled, rank) == of_rank(shuffled, 0));
    }
  }
  PlanOptions files{.records = 4000,
                    .ranks = 2,
                    .shuffle = Shuffle::global,
                    .policy = ShardPolicy::file,
                    .file_records = {2000, 2000}};
  const Dealt first = dealt(files);
  CHECK(first != dealt(files, 1));
  Ids second = first[0][1];
  for (std::uint64_t& id : second) id -= 2000;
  CHECK(first[0][0] != second);  // each worker has an order of its own
  files.seed = 23;
  CHECK(first != dealt(files));
}

TEST_CASE("one rank reads the same under every policy, and nothing is said", "[policy]") {
  PlanOptions options{.records = 100, .batch_size = 16, .shuffle = Shuffle::global};
  const Dealt expected = dealt(options);
  for (const auto policy :
       {ShardPolicy::automatic, ShardPolicy::file, ShardPolicy::off, ShardPolicy::data}) {
    for (const std::vector<std::uint64_t>& files :
         {std::vector<std::uint64_t>{}, {100}, {40, 0, 60}}) {
      CHECK(choose_policy(policy, files.size(), 1).warning.empty());
      options.policy = policy;
      options.file_records = files;
      CHECK(dealt(options) == expected);
    }
  }
}

TEST_CASE("which policy auto means, and what is refused", "[policy]") {
  using Catch::Contains;
  const auto automatic = ShardPolicy::automatic;
  CHECK(choose_policy(automatic, 3, 3).policy == ShardPolicy::file);
  CHECK(choose_policy(automatic, 3, 3).warning.empty());
  CHECK(choose_policy(automatic, 0, 3).policy == ShardPolicy::data);
  CHECK_THAT(choose_policy(automatic, 0, 3).warning,
             Contains("does not come from files") && Contains("use `policy=data`"));
  CHECK_THAT(choose_policy(ShardPolicy::off, 9, 3).warning, Contains("off"));
  CHECK(choose_policy(ShardPolicy::data, 1, 3).warning.empty());
  for (const auto asked : {automatic, ShardPolicy::file}) {
    CHECK_THROWS_AS(choose_policy(asked, 2, 3), ConfigError);
    CHECK_THROWS_WITH(choose_policy(asked, 2, 3),
                      Contains("2 files") && Contains("3 workers") && Contains("`policy=data`") &&
                          Contains("`policy=off`") && Contains("lockstep convert --files 3"));
  }
  CHECK_THROWS_WITH(choose_policy(ShardPolicy::file, 0, 3), Contains("does not come from files"));
  CHECK_THROWS_AS(choose_policy(ShardPolicy::data, 1, 0), ConfigError);
  CHECK_THROWS_AS(require_worker(3, 3), ConfigError);
  CHECK_THROWS_AS(require_worker(0, 0), ConfigError);
  CHECK_NOTHROW(require_worker(2, 3));
  CHECK_THROWS_WITH(policy_named("fil"), Contains("did you mean 'file'"));
  CHECK_THROWS_AS(rebatch_named("floor"), ConfigError);
  for (const auto policy : {automatic, ShardPolicy::file, ShardPolicy::data, ShardPolicy::off}) {
    CHECK(policy_named(name_of(policy)) == policy);
  }
}

TEST_CASE("plans that cannot be made are refused", "[policy]") {
  auto options = guide(ShardPolicy::data);
  options.rebatch = Rebatch::balanced;
  CHECK_THROWS_WITH(Plan(options), Catch::Contains("balanced"));
  options = guide(ShardPolicy::off);
  options.rebatch = Rebatch::balanced;
  options.ranks = 5;
  CHECK_THROWS_WITH(Plan(options), Catch::Contains("`batch_size` 4 for 5 ranks"));
  CHECK_THROWS_AS(Plan(guide(ShardPolicy::file, {6, 5})), std::invalid_argument);
  CHECK_THROWS_AS(Plan({.records = std::uint64_t{1} << 62, .ranks = 4}), ConfigError);
  const Plan plan(guide(ShardPolicy::file, {6, 6}));
  Ids ids;
  CHECK_THROWS_AS(plan.records(0, 0, 2, ids), ConfigError);
}

TEST_CASE("every option that shapes a plan is in its digest", "[plan]") {
  const PlanOptions base = guide(ShardPolicy::file, {6, 6});
  std::map<std::uint64_t, int> digests;
  const auto add = [&](const PlanOptions& options) { ++digests[Plan(options).digest()]; };
  add(base);
  for (const auto policy : {ShardPolicy::data, ShardPolicy::off}) {
    auto other = base;
    other.policy = policy;
    add(other);
  }
  auto other = base;
  other.file_records = {5, 7};
  add(other);
  other = base;
  other.rebatch = Rebatch::balanced;
  add(other);
  other = base;
  other.shuffle = Shuffle::global;
  add(other);
  other.seed = 23;
  add(other);
  other = base;
  other.drop_remainder = true;
  add(other);
  other = base;
  other.max_leaf = bf16_leaf;  // no other plan: so few examples have smaller leaves
  add(other);
  other.leaf = 3;
  add(other);
  other.max_leaf = float32_leaf;  // no other plan: its leaves are not automatic
  add(other);
  other = guide(ShardPolicy::data);
  other.records = 1200;
  other.batch_size = 512;
  add(other);
  other.max_leaf = bf16_leaf;
  add(other);
  CHECK(digests.size() == 11);
  CHECK(Plan(guide(ShardPolicy::automatic, {6, 6})).digest() == Plan(base).digest());
}

TEST_CASE("a million files and a billion records a rank are arithmetic too", "[policy]") {
  PlanOptions options{.batch_size = 1 << 20,
                      .ranks = 4096,
                      .shuffle = Shuffle::global,
                      .policy = ShardPolicy::file};
  for (std::uint64_t file = 0; file < 1'000'000; ++file) {
    options.file_records.push_back(1'000'000 + file % 17);
  }
  options.records =
      std::accumulate(options.file_records.begin(), options.file_records.end(), std::uint64_t{0});
  const Plan plan(options);
  const PlanFacts facts = facts_of(plan);
  CHECK(facts.examples == options.records);
  CHECK_FALSE(prove(plan, facts).enumerated);
  const std::uint64_t last = plan.steps() - 1;
  CHECK(plan.examples(0) == 1 << 20);
  CHECK(plan.examples(last) > 0);
  Ids ids;
  plan.records(3, last / 2, 4095, ids);
  CHECK(ids.size() == 256);
}
