#include <cassert>
#include <cstddef>

#include "lib/numerics/cuda/elementwise.hpp"

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

}  // namespace lockstep::cuda
