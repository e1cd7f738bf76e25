#include "lockstep/numerics/leaf_tree.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <string>

using namespace lockstep;

namespace {

/// The tree over leaves [first, first + size) of `leaves`, written out.
std::string expression(std::uint64_t first, std::uint64_t size, std::uint64_t leaves) {
  if (first >= leaves) return "";
  if (size == 1) return std::to_string(first);
  const auto left = expression(first, size / 2, leaves);
  const auto right = expression(first + size / 2, size / 2, leaves);
  return right.empty() ? left : "(" + left + "+" + right + ")";
}

/// What is left of parts that come one after another.
std::string one_by_one(const std::vector<std::string>& parts,
                       const std::vector<std::uint8_t>& merges) {
  std::vector<std::string> waiting;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    std::string value = parts[part];
    for (int n = 0; n < merges[part]; ++n) {
      value = "(" + waiting.back() + "+" + value + ")";
      waiting.pop_back();
    }
    waiting.push_back(value);
    REQUIRE(waiting.size() <= max_pending_parts);
  }
  REQUIRE(waiting.size() == 1);
  return waiting.front();
}

/// The same, from the parts of ranks that hold `each` leaves.
std::string in_parts(std::uint64_t leaves, std::uint64_t each) {
  std::vector<Subtree> parts;
  std::vector<std::string> texts;
  for (std::uint64_t begin = 0; begin < leaves; begin += each) {
    for (const Subtree& part : aligned_subtrees(begin, std::min(leaves, begin + each), leaves)) {
      parts.push_back(part);
      texts.push_back(expression(part.first, part.size, leaves));
    }
  }
  const auto sums = sums_of(parts);
  REQUIRE(one_by_one(texts, merges_of(parts.size(), sums)) ==
          expression(0, std::bit_ceil(leaves), leaves));
  for (const TreeSum& sum : sums) {
    texts[sum.left] = "(" + texts[sum.left] + "+" + texts[sum.right] + ")";
  }
  return texts[0];
}

}  // namespace

TEST_CASE("parts of any ranks sum to the expression of the whole tree", "[leaf-tree]") {
  for (std::uint64_t leaves = 1; leaves <= 70; ++leaves) {
    const auto whole = expression(0, std::bit_ceil(leaves), leaves);
    for (std::uint64_t each = 1; each <= leaves; ++each) {
      INFO(leaves << " leaves, " << each << " a rank");
      REQUIRE(in_parts(leaves, each) == whole);
    }
  }
}

TEST_CASE("a rank with a power of two of leaves has one part", "[leaf-tree]") {
  for (const std::uint64_t each : {1, 2, 8, 64}) {
    for (std::uint64_t rank = 0; rank < 5; ++rank) {
      REQUIRE(aligned_subtrees(rank * each, (rank + 1) * each, 5 * each).size() == 1);
    }
  }
  CHECK(aligned_subtrees(8, 13, 13) == std::vector<Subtree>{{8, 8}});  // the rest is missing
  CHECK(aligned_subtrees(3, 6, 8) == std::vector<Subtree>{{3, 1}, {4, 2}});
  CHECK(aligned_subtrees(0, 3, 8) == std::vector<Subtree>{{0, 2}, {2, 1}});
  CHECK(aligned_subtrees(5, 5, 13).empty());
  CHECK(aligned_subtrees(16, 16, 13).empty());
}

TEST_CASE("parts that leave a gap are refused", "[leaf-tree]") {
  CHECK_THROWS_AS(sums_of(std::vector<Subtree>{{0, 2}, {3, 1}}), std::invalid_argument);
  CHECK_THROWS_AS(sums_of(std::vector<Subtree>{{0, 1}, {1, 2}}), std::invalid_argument);
  CHECK(sums_of(std::vector<Subtree>{{0, 16}}).empty());
}

TEST_CASE("sums of other parts have no merges", "[leaf-tree]") {
  const std::vector<TreeSum> sums = {{0, 1}, {0, 2}};
  CHECK(merges_of(3, sums) == std::vector<std::uint8_t>{0, 1, 1});
  CHECK(merges_of(1, {}) == std::vector<std::uint8_t>{0});
  CHECK_THROWS_AS(merges_of(2, sums), std::invalid_argument);
  CHECK_THROWS_AS(merges_of(4, sums), std::invalid_argument);
}

TEST_CASE("the most subtrees of consecutive leaves", "[leaf-tree]") {
  constexpr std::uint64_t all = 1024;
  std::size_t most = 0;
  for (std::uint64_t leaves = 0; leaves <= 64; ++leaves) {
    for (std::uint64_t begin = 0; begin + leaves < all; ++begin) {
      most = std::max(most, aligned_subtrees(begin, begin + leaves, all).size());
    }
    INFO(leaves << " leaves");
    CHECK(parts_at_most(leaves) == most);
  }
}
