#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "lockstep/data/stored_source.hpp"

namespace lockstep::test {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

TEST_CASE("bytes and numbers are divided as one by one, whatever their number", "[data]") {
  const float divisor = GENERATE(255.0F, 1.0F, 3.0F, 0.7F, 1e-38F, 3e38F);
  const data::ByteScale scale(divisor);
  for (std::size_t size = 0; size <= 256; ++size) {
    std::vector<std::uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(256 - size));
    std::vector<float> expected;
    for (const int byte : bytes) {
      volatile auto value = static_cast<float>(byte);  // one division at a time
      expected.push_back(value / divisor);
    }
    std::vector<float> scaled(size, -1.0F);
    scale.apply(bytes, scaled);
    REQUIRE(same_bits(scaled, expected));
    std::vector<float> divided(bytes.begin(), bytes.end());
    data::divide(divided, divisor);
    REQUIRE(same_bits(divided, expected));
  }
}

}  // namespace
}  // namespace lockstep::test
