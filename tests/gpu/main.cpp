// Catch2's main, where there is a device; elsewhere the tests are skipped with the reason.
#include <cuda_runtime.h>

#include <cstdio>

#include "tests/support/run_tests.hpp"

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::printf("SKIPPED: no CUDA device (%s): nothing was run\n", cudaGetErrorString(error));
    return skipped;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp about{};
    if (cudaGetDeviceProperties(&about, device) != cudaSuccess) continue;
    std::printf("device %d: %s, %d multiprocessors\n", device, about.name,
                about.multiProcessorCount);
  }
  return lockstep::test::run_tests(argc, argv);
}
