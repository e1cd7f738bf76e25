#include "lib/numerics/cuda/library_kernels.hpp"

namespace lockstep {
namespace {

__global__ void relu_mask(const float* x, float* dx, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && !(x[i] > 0)) dx[i] = 0;
}

constexpr unsigned columns = 32;
constexpr unsigned strands = 16;

/// A block sums 32 columns; a strand of threads every 16th row of them.
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

void enqueue_relu_mask(std::span<const float> x, std::span<float> dx, const cuda::Stream& stream) {
  cuda::launch("relu_mask", relu_mask, cuda::grid_of(dx.size()), stream, x.data(), dx.data(),
               dx.size());
}

void enqueue_column_sums(Matrix<const float> dz, std::span<float> sums,
                         const cuda::Stream& stream) {
  const cuda::Grid grid = {cuda::grid_of(dz.cols, columns).blocks, dim3(columns, strands)};
  cuda::launch("column_sums", column_sums, grid, stream, dz.data, dz.rows, dz.cols, sums.data());
}

}  // namespace lockstep
