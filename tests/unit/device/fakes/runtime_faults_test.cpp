#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/cuda/runtime.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/unit/device/neighbours.hpp"

using namespace lockstep;

namespace {

void idle(const int* /*in*/, int* /*out*/) {}

}  // namespace

TEST_CASE("device: the fake runs nothing before it is waited for", "[device]") {
  const cuda::Stream stream;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  for (int& value : host.span()) value = 1;
  cuda::copy(host.span(), in.span(), stream);
  test::add_neighbours(1, in.data(), out.data(), stream);
  cuda::copy(out.span(), host.span(), stream);
  REQUIRE(host.span()[5] == 1);
  stream.synchronise();
  REQUIRE(host.span()[5] == 2);
}

TEST_CASE("device: failures name the call and the device", "[device]") {
  fake_cuda::fail("cudaMalloc", cudaErrorMemoryAllocation);
  REQUIRE_THROWS_WITH(cuda::DeviceBuffer<int>(5),
                      Catch::Contains("cudaMalloc on device 0: the device's memory is used up"));
  fake_cuda::fail("cudaMallocHost", cudaErrorMemoryAllocation);
  REQUIRE_THROWS_WITH(cuda::PinnedBuffer<int>(5), Catch::Contains("the host's memory"));
  fake_cuda::fail("kernel", cudaErrorIllegalAddress);
  const cuda::Stream stream;
  REQUIRE_THROWS_WITH(cuda::launch("forward", idle, {dim3(1), dim3(64)}, stream, nullptr, nullptr),
                      Catch::Contains("forward on device 0: an illegal memory access"));
  fake_cuda::fail("kernel", cudaErrorNoKernelImageForDevice);
  REQUIRE_THROWS_AS(cuda::launch("forward", idle, {dim3(1), dim3(64)}, stream, nullptr, nullptr),
                    ConfigError);
  cudaGetLastError();
}

TEST_CASE("device: what may not be recorded is an error, and the stream goes on", "[device]") {
  const cuda::Stream stream;
  const cuda::Stream other;
  const cuda::Event event;
  const cuda::DeviceBuffer<int> values(1);
  const cuda::PinnedBuffer<int> host(1);
  int pageable = 0;
  event.record(other);
  const auto recorded = cuda::Graph::record(other, [] {});
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"cudaMalloc", [] { const cuda::DeviceBuffer<int> more(1); }},
      {"cudaMallocHost", [] { const cuda::PinnedBuffer<int> more(1); }},
      {"cudaStreamSynchronize", [&] { stream.synchronise(); }},
      {"cudaMemcpyAsync", [&] { cuda::copy_bytes(&pageable, values.data(), 4, stream); }},
      {"cudaStreamWaitEvent", [&] { event.block(stream); }},
      {"cudaGraphLaunch", [&] { recorded.enqueue(stream); }},
      {"cudaEventQuery", [&] { event.record(stream), event.reached(); }},
      {"cudaStreamEndCapture", [&] { event.record(stream), event.block(other); }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    REQUIRE_THROWS_WITH(cuda::Graph::record(stream, call), Catch::Contains(name));
    cudaGetLastError();
    *host.data() = 1;
    cuda::clear(values.span(), stream);
    cuda::copy(values.span(), host.span(), stream);
    stream.synchronise();
    REQUIRE(*host.data() == 0);
  }
}

TEST_CASE("device: work that joins again is recorded", "[device]") {
  const cuda::Stream stream;
  const cuda::Stream beside;
  const cuda::Event forked;
  const cuda::Event joined;
  const cuda::DeviceBuffer<int> values(1);
  const cuda::PinnedBuffer<int> host(1);
  const auto graph = cuda::Graph::record(stream, [&] {
    forked.record(stream);
    forked.block(beside);
    cuda::clear(values.span(), beside);
    joined.record(beside);
    joined.block(stream);
    cuda::copy(values.span(), host.span(), stream);
  });
  *host.data() = 1;
  graph.enqueue(stream);
  stream.synchronise();
  REQUIRE(*host.data() == 0);
  beside.synchronise();
}

TEST_CASE("device: launches that no device takes fail", "[device]") {
  const cuda::Stream stream;
  const auto launch = [&](const cuda::Grid& grid) {
    cuda::launch("add_neighbour", idle, grid, stream, nullptr, nullptr);
  };
  REQUIRE_THROWS_AS(launch({dim3(1), dim3(1025)}), cuda::DeviceError);
  REQUIRE_THROWS_AS(launch({dim3(1, 65536), dim3(1)}), cuda::DeviceError);
  REQUIRE_THROWS_AS(launch({dim3(1, 1, 65536), dim3(1)}), cuda::DeviceError);
  fake_cuda::set_devices(2);
  cuda::select_device(1);
  REQUIRE_THROWS_AS(launch({dim3(1), dim3(1)}), cuda::DeviceError);
  cuda::select_device(0);
  cudaGetLastError();
}
