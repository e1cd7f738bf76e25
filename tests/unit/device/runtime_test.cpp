#include "lib/base/cuda/runtime.hpp"

#include <catch2/catch.hpp>
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
  fake_cuda::fail("kernel", cudaErrorIllegalAddress);
  const cuda::Stream stream;
  REQUIRE_THROWS_WITH(
      cuda::launch("forward", add_neighbour, {dim3(1), dim3(64)}, stream, nullptr, nullptr),
      Catch::Contains("forward on device 0: an illegal memory access"));
  cudaGetLastError();
}
