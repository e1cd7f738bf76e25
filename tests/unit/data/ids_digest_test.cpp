#include "lockstep/data/ids_digest.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

using namespace lockstep::data;

namespace {

std::vector<std::uint64_t> all(std::uint64_t n) {
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

TEST_CASE("a digest does not depend on order or division", "[ids]") {
  auto ids = all(1000);
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

TEST_CASE("a digest tells a missing, a doubled and another's id", "[ids]") {
  const IdsDigest expected = digest_of_all(100);
  for (const std::uint64_t at : {0, 1, 50, 99}) {
    auto ids = all(100);
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
