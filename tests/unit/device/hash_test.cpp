#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "lockstep/numerics/cuda/elementwise.hpp"
#include "tests/support/device.hpp"

using namespace lockstep;

namespace {

unsigned long long hash_of(const std::vector<float>& values) {
  const cuda::Stream stream;
  const cuda::DeviceBuffer<float> device(values.size());
  const cuda::DeviceBuffer<unsigned long long> hash(1);
  const cuda::PinnedBuffer<unsigned long long> host(1);
  cuda::copy(std::span<const float>(values), device.span(), stream);
  cuda::hash_values(device.span(), hash.data(), stream);
  cuda::copy(hash.span(), host.span(), stream);
  stream.synchronise();
  return *host.data();
}

std::vector<float> numbered(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 0.25F * static_cast<float>(i);
  return values;
}

}  // namespace

TEST_CASE("device: a hash of weights sees every bit and every place", "[device][hash]") {
  const std::size_t count = GENERATE(1, 255, 256, 1000, 300000);
  const auto values = numbered(count);
  const auto expected = hash_of(values);
  for (const unsigned seed : test::seeds()) {
    const test::Seeded seeded(seed);
    REQUIRE(hash_of(values) == expected);
  }
  for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
    for (const int bit : {0, 17, 31}) {
      auto flipped = values;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &flipped[at], sizeof bits);
      bits ^= std::uint32_t{1} << bit;
      std::memcpy(&flipped[at], &bits, sizeof bits);
      REQUIRE(hash_of(flipped) != expected);
    }
  }
  if (count > 1) {
    auto swapped = values;
    std::swap(swapped.front(), swapped.back());
    REQUIRE(hash_of(swapped) != expected);
  }
}

TEST_CASE("device: nothing has a hash of its own", "[device][hash]") { REQUIRE(hash_of({}) == 0); }
