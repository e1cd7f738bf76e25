#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>

#include "lockstep/numerics/cuda/elementwise.hpp"

namespace lockstep::cuda {
namespace {

__device__ float quotient(std::uint32_t four, unsigned byte, float divisor) {
  return static_cast<float>(four >> (8 * byte) & 0xffU) / divisor;
}

__global__ void divide_fours(const std::uint32_t* bytes, float divisor, float4* values,
                             std::size_t fours) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= fours) return;
  const std::uint32_t four = bytes[i];
  values[i] = make_float4(quotient(four, 0, divisor), quotient(four, 1, divisor),
                          quotient(four, 2, divisor), quotient(four, 3, divisor));
}

__global__ void divide_each(const std::uint8_t* bytes, float divisor, float* values,
                            std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] = static_cast<float>(bytes[i]) / divisor;
}

bool is_aligned(const void* memory, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0;
}

}  // namespace

void divide_bytes(std::span<const std::uint8_t> bytes, float divisor, std::span<float> values,
                  const Stream& stream) {
  assert(values.size() == bytes.size());
  const bool by_four = is_aligned(bytes.data(), 4) && is_aligned(values.data(), sizeof(float4));
  const std::size_t fours = by_four ? bytes.size() / 4 : 0;
  const std::size_t rest = bytes.size() - 4 * fours;
  launch("bytes to floats", divide_fours, grid_of(fours), stream,
         reinterpret_cast<const std::uint32_t*>(bytes.data()), divisor,
         reinterpret_cast<float4*>(values.data()), fours);
  launch("bytes to floats, the rest", divide_each, grid_of(rest), stream, bytes.data() + 4 * fours,
         divisor, values.data() + 4 * fours, rest);
}

namespace {

__global__ void relu_mask(const float* x, float* dx, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && !(x[i] > 0)) dx[i] = 0;
}

constexpr unsigned columns = 32;
constexpr unsigned strands = 16;

/// A block sums 32 columns; each thread of a column sums every 16th row.
__global__ void column_sums(const float* dz, std::size_t rows, std::size_t cols, float* sums) {
  __shared__ float partial[strands][columns];
  const std::size_t col = std::size_t{blockIdx.x} * columns + threadIdx.x;
  float sum = 0;
  for (std::size_t row = threadIdx.y; row < rows && col < cols; row += strands) {
    sum += dz[row * cols + col];
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (unsigned strand = 1; strand < strands; ++strand) sum += partial[strand][threadIdx.x];
  sums[col] = sum;
}

}  // namespace

void apply_relu_gradient(std::span<const float> x, std::span<float> dx, const Stream& stream) {
  launch("relu_mask", relu_mask, grid_of(dx.size()), stream, x.data(), dx.data(), dx.size());
}

void sum_columns(Matrix<const float> dz, std::span<float> sums, const Stream& stream) {
  const Grid grid = {grid_of(dz.cols, columns).blocks, dim3(columns, strands)};
  launch("column_sums", column_sums, grid, stream, dz.data, dz.rows, dz.cols, sums.data());
}

namespace {

constexpr unsigned block_threads = 256;
constexpr unsigned max_blocks = 1024;

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
  grid.blocks.x = std::min(grid.blocks.x, max_blocks);
  launch("hash of weights", sum_mixes, grid, stream, values.data(), values.size(), hash);
}

}  // namespace lockstep::cuda
