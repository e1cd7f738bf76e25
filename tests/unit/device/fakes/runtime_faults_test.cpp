// How the fake of CUDA's runtime shows mistakes of device code, and how failed calls are reported.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/support/device.hpp"
#include "tests/unit/device/neighbours.hpp"

using namespace lockstep;

namespace {

constexpr std::array few_seeds = {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U};

void idle(const int* /*in*/, int* /*out*/) {}

/// Wrong where a block runs before the one before it: nothing on a device says that it does not.
void count_blocks(const int* in, int* out) {
  out[blockIdx.x] = blockIdx.x == 0 ? in[0] : out[blockIdx.x - 1] + 1;
}

/// Wrong for lack of a barrier between the write and the read of a neighbour.
void next_thread(const int* in, int* out) {
  __shared__ int line[64];
  line[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = threadIdx.x == 0 ? 0 : line[threadIdx.x - 1];
}

/// What `kernel` makes of 1, 2, 3 ... 64.
std::vector<int> run(void (*kernel)(const int*, int*), unsigned blocks, unsigned threads) {
  const cuda::Stream stream;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  for (int i = 0; i < 64; ++i) host.span()[static_cast<std::size_t>(i)] = 1 + i;
  cuda::copy(host.span(), in.span(), stream);
  cuda::launch("planted", kernel, {dim3(blocks), dim3(threads)}, stream, in.data(), out.data());
  cuda::copy(out.span(), host.span(), stream);
  stream.synchronise();
  return {host.span().begin(), host.span().end()};
}

/// Sums neighbours of ones in one stream, while another clears them: at once, or after an event.
bool sums_before_clearing(bool waits) {
  const cuda::Stream stream;
  const cuda::Stream beside;
  const cuda::Event summed;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  for (int& value : host.span()) value = 1;
  cuda::copy(host.span(), in.span(), stream);
  stream.synchronise();
  test::add_neighbours(1, in.data(), out.data(), stream);
  summed.record(stream);
  if (waits) summed.block(beside);
  cuda::clear(in.span(), beside);
  cuda::copy(out.span(), host.span(), stream);
  stream.synchronise();
  beside.synchronise();
  return std::ranges::all_of(host.span(), [](int value) { return value == 2; });
}

/// The same in the branches of a graph.
bool sums_before_clearing_in_graph(bool waits) {
  const cuda::Stream stream;
  cuda::Branch branch;
  const cuda::PinnedBuffer<int> host(64);
  const cuda::DeviceBuffer<int> in(64);
  const cuda::DeviceBuffer<int> out(64);
  for (int& value : host.span()) value = 1;
  const auto graph = cuda::Graph::record(stream, [&] {
    cuda::copy(host.span(), in.span(), stream);
    const cuda::Stream& beside = branch.fork(stream);
    test::add_neighbours(1, in.data(), out.data(), stream);
    if (waits) branch.fork(stream);
    cuda::clear(in.span(), beside);
    branch.join(stream);
    cuda::copy(out.span(), host.span(), stream);
  });
  graph.enqueue(stream);
  stream.synchronise();
  return std::ranges::all_of(host.span(), [](int value) { return value == 2; });
}

/// The fake shows that it does not wait, by one of the seeds, and that it does, by none.
void require_shown(bool (*sums)(bool waits)) {
  const auto with_seed = [sums](bool waits) {
    return [sums, waits](unsigned seed) {
      const test::Seeded eager(seed);
      return sums(waits);
    };
  };
  REQUIRE_FALSE(std::ranges::all_of(few_seeds, with_seed(false)));
  REQUIRE(std::ranges::all_of(few_seeds, with_seed(true)));
}

/// Whether the host can read there: a system call says so without a crash.
bool readable(const void* memory) {
  std::array<int, 2> ends = {-1, -1};
  REQUIRE(pipe(ends.data()) == 0);
  const bool read = write(ends[1], memory, 4) == 4;
  REQUIRE((read || errno == EFAULT));
  for (const int end : ends) close(end);
  return read;
}

}  // namespace

TEST_CASE("device: the fake shows a write before the last read", "[device]") {
  const test::Seeded lazy(0);
  REQUIRE(sums_before_clearing(false));  // hidden: nobody waits for the stream that clears
  require_shown(sums_before_clearing);
}

TEST_CASE("device: the fake shows a branch of a graph that does not wait", "[device]") {
  require_shown(sums_before_clearing_in_graph);
}

TEST_CASE("device: the fake shows blocks that rely on their order", "[device]") {
  const test::Seeded ascending(0);
  const auto expected = run(count_blocks, 64, 1);
  REQUIRE(expected.back() == 64);
  const test::Seeded random(1);
  REQUIRE(run(count_blocks, 64, 1) != expected);
}

TEST_CASE("device: the fake shows a missing barrier", "[device]") {
  std::vector<int> expected(64);
  std::iota(expected.begin(), expected.end(), 0);
  const test::Seeded random(1);  // first: shared memory keeps what a kernel left there
  REQUIRE(run(next_thread, 1, 64) != expected);
  const test::Seeded ascending(0);
  REQUIRE(run(next_thread, 1, 64) == expected);
}

TEST_CASE("device: the host cannot read device memory", "[device]") {
  const cuda::DeviceBuffer<int> on_device(64);
  const cuda::PinnedBuffer<int> pinned(64);
  REQUIRE_FALSE(readable(on_device.data()));
  REQUIRE(readable(pinned.data()));
  REQUIRE(run([](const int*, int* out) { *out = 5; }, 1, 1)[0] == 5);
  REQUIRE_FALSE(readable(on_device.data()));
}

TEST_CASE("device: the fake's devices have as many multiprocessors as a test says", "[device]") {
  const auto multiprocessors = [] {
    int count = 0;
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
    return count;
  };
  REQUIRE(multiprocessors() == 132);
  test::set_multiprocessors(2);
  REQUIRE(multiprocessors() == 2);
  test::set_multiprocessors(132);
}

TEST_CASE("device: the fake runs nothing before it is waited for", "[device]") {
  const test::Seeded lazy(0);
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
