#include "lib/base/cuda/runtime.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/fake.hpp"

using namespace lockstep;

namespace {

void add_neighbour(const int* in, int* out) {
  __shared__ int line[64];
  line[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      line[threadIdx.x] + line[(threadIdx.x + 1) % blockDim.x];
}

}  // namespace

TEST_CASE("device: kernels run in stream order, and only once they are waited for", "[device]") {
  const auto order = GENERATE(fake_cuda::Order::ascending, fake_cuda::Order::descending);
  fake_cuda::set_order(order);
  const auto objects = fake_cuda::live_objects();
  {
    const cuda::Stream stream;
    const cuda::PinnedBuffer<int> host(128);
    const cuda::DeviceBuffer<int> in(128);
    const cuda::DeviceBuffer<int> out(128);
    for (int i = 0; i < 128; ++i) host.span()[static_cast<std::size_t>(i)] = i;
    cuda::copy(host.span(), in.span(), stream);
    cuda::launch("add_neighbour", add_neighbour, {dim3(2), dim3(64)}, stream, in.data(),
                 out.data());
    cuda::copy(out.span(), host.span(), stream);
    REQUIRE(host.span()[5] == 5);
    stream.synchronise();
    REQUIRE(host.span()[5] == 11);
    REQUIRE(host.span()[63] == 63);
    REQUIRE(host.span()[127] == 127 + 64);
  }
  REQUIRE(fake_cuda::live_objects() == objects);
}

TEST_CASE("device: a graph repeats what was recorded", "[device]") {
  const cuda::Stream stream;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  const auto graph = cuda::Graph::record(stream, [&] {
    cuda::copy(host.span(), in.span(), stream);
    cuda::launch("add_neighbour", add_neighbour, {dim3(1), dim3(64)}, stream, in.data(),
                 out.data());
    cuda::copy(out.span(), host.span(), stream);
  });
  for (int& value : host.span()) value = 1;
  stream.synchronise();
  REQUIRE(host.span()[0] == 1);
  for (int i = 0; i < 3; ++i) graph.enqueue(stream);
  stream.synchronise();
  REQUIRE(host.span()[0] == 8);
}

TEST_CASE("device: failures name the call and the device", "[device]") {
  fake_cuda::fail("cudaMalloc", cudaErrorMemoryAllocation);
  REQUIRE_THROWS_WITH(cuda::DeviceBuffer<int>(5),
                      Catch::Contains("cudaMalloc on device 0: the device's memory is used up"));
  fake_cuda::fail("cudaMallocHost", cudaErrorMemoryAllocation);
  REQUIRE_THROWS_WITH(cuda::PinnedBuffer<int>(5), Catch::Contains("the host's memory"));
  fake_cuda::fail("kernel", cudaErrorIllegalAddress);
  const cuda::Stream stream;
  REQUIRE_THROWS_WITH(
      cuda::launch("forward", add_neighbour, {dim3(1), dim3(64)}, stream, nullptr, nullptr),
      Catch::Contains("forward on device 0: an illegal memory access"));
  fake_cuda::fail("kernel", cudaErrorNoKernelImageForDevice);
  REQUIRE_THROWS_AS(
      cuda::launch("forward", add_neighbour, {dim3(1), dim3(64)}, stream, nullptr, nullptr),
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
    cuda::launch("add_neighbour", add_neighbour, grid, stream, nullptr, nullptr);
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
