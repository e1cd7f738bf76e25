#include "lockstep/base/cuda/runtime.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/support/device.hpp"
#include "tests/unit/device/neighbours.hpp"

using namespace lockstep;

TEST_CASE("device: copies and kernels run in stream order", "[device]") {
  const test::Seeded seeded(GENERATE(from_range(test::seeds())));
  const auto objects = test::live_objects();
  {
    const cuda::Stream stream;
    const cuda::PinnedBuffer<int> host(128);
    const cuda::DeviceBuffer<int> in(128);
    const cuda::DeviceBuffer<int> out(128);
    for (int i = 0; i < 128; ++i) host.span()[static_cast<std::size_t>(i)] = i;
    cuda::copy(host.span(), in.span(), stream);
    test::add_neighbours(2, in.data(), out.data(), stream);
    cuda::copy(out.span(), host.span(), stream);
    stream.synchronise();
    REQUIRE(host.span()[5] == 11);
    REQUIRE(host.span()[63] == 63);
    REQUIRE(host.span()[127] == 127 + 64);
  }
  REQUIRE(test::live_objects() == objects);
}

TEST_CASE("device: a stream waits for another's event", "[device]") {
  const cuda::Stream first;
  const cuda::Stream second;
  const cuda::Event event;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  for (int& value : host.span()) value = 3;
  cuda::copy(host.span(), in.span(), first);
  event.record(first);
  event.block(second);
  test::add_neighbours(1, in.data(), out.data(), second);
  cuda::copy(out.span(), host.span(), second);
  second.synchronise();
  REQUIRE(event.reached());
  for (const int value : host.span()) REQUIRE(value == 6);
}

TEST_CASE("device: a graph repeats what was recorded", "[device]") {
  const cuda::Stream stream;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  const auto graph = cuda::Graph::record(stream, [&] {
    cuda::copy(host.span(), in.span(), stream);
    test::add_neighbours(1, in.data(), out.data(), stream);
    cuda::copy(out.span(), host.span(), stream);
  });
  for (int& value : host.span()) value = 1;
  stream.synchronise();
  REQUIRE(host.span()[0] == 1);
  for (int i = 0; i < 3; ++i) graph.enqueue(stream);
  stream.synchronise();
  REQUIRE(host.span()[0] == 8);
}
