#include <algorithm>
#include <bit>
#include <cstddef>

#include "lib/numerics/cuda/device_hash.hpp"

namespace lockstep::cuda {
namespace {

constexpr unsigned block_threads = 256;
constexpr unsigned most_blocks = 1024;

__device__ unsigned long long mixed(std::size_t place, float value) {
  unsigned long long z =
      static_cast<unsigned long long>(place) << 32 | std::bit_cast<unsigned>(value);
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
  return z ^ z >> 31;
}

__global__ void sum_mixes(const float* values, std::size_t count, unsigned long long* hash) {
  __shared__ unsigned long long sums[block_threads];
  const std::size_t step = std::size_t{gridDim.x} * block_threads;
  unsigned long long sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * block_threads + threadIdx.x; i < count;
       i += step) {
    sum += mixed(i, values[i]);
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) atomicAdd(hash, sums[0]);
}

}  // namespace

void hash_values(std::span<const float> values, unsigned long long* hash, const Stream& stream) {
  clear_bytes(hash, sizeof *hash, stream);
  Grid grid = grid_of(values.size(), block_threads);
  grid.blocks.x = std::min(grid.blocks.x, most_blocks);
  launch("hash of weights", sum_mixes, grid, stream, values.data(), values.size(), hash);
}

}  // namespace lockstep::cuda
