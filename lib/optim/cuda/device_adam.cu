#include <cassert>
#include <limits>

#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/optim/cuda/device_adam.hpp"

namespace lockstep::cuda {
namespace {

__device__ float4 sum_of(const float4& left, const float4& right) {
  return make_float4(left.x + right.x, left.y + right.y, left.z + right.z, left.w + right.w);
}

/// Four elements of the tree over the parts. The newest value stays in registers, so that one or
/// two parts need no local memory.
__device__ float4 sum_parts(const DeviceAdamSlice& s, std::size_t at) {
  float4 waiting[max_pending_parts];
  unsigned top = 0;
  float4 newest = *reinterpret_cast<const float4*>(s.parts + s.offsets[0] + at);
  for (std::size_t p = 1; p < s.part_count; ++p) {
    const float4 part = *reinterpret_cast<const float4*>(s.parts + s.offsets[p] + at);
    unsigned merges = s.merges[p];
    if (merges == 0) {
      waiting[top++] = newest;
      newest = part;
      continue;
    }
    newest = sum_of(newest, part);
    while (--merges > 0) newest = sum_of(waiting[--top], newest);
  }
  return newest;
}

/// Zero where |value| < limit.
__device__ float flush_small_to_zero(float value, float limit) {
  return fabsf(value) < limit ? 0 : value;
}

/// Updates one weight as adam.cpp does. Returns true if its second moment is finite.
__device__ bool update(const optim::AdamFactors& f, float sum, float& value, float& first,
                       float& second) {
  const float mean = sum * f.inverse_examples;
  const float g = flush_small_to_zero(mean, optim::min_gradient);
  first = flush_small_to_zero(f.beta1 * first + f.rest1 * g, optim::min_first_moment);
  second = flush_small_to_zero(f.beta2 * second + f.rest2 * (g * g), optim::min_second_moment);
  const float corrected_second = second * f.inverse_correction2;
  const float root = sqrtf(corrected_second);
  value = value - first * f.corrected_rate / (root + f.epsilon);
  return fabsf(corrected_second) <= std::numeric_limits<float>::max();
}

__global__ void sum_and_update_fours(DeviceAdamSlice s) {
  const std::size_t at = 4 * (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (at >= s.count) return;
  auto& values = *reinterpret_cast<float4*>(s.values + at);
  auto& firsts = *reinterpret_cast<float4*>(s.first + at);
  auto& seconds = *reinterpret_cast<float4*>(s.second + at);
  float4 value = values;
  float4 first = firsts;
  float4 second = seconds;
  const optim::AdamFactors f = *s.factors;
  const float4 sum = sum_parts(s, at);
  bool finite = update(f, sum.x, value.x, first.x, second.x);
  finite = update(f, sum.y, value.y, first.y, second.y) && finite;
  finite = update(f, sum.z, value.z, first.z, second.z) && finite;
  finite = update(f, sum.w, value.w, first.w, second.w) && finite;
  values = value;
  firsts = first;
  seconds = second;
  if (!finite) atomicOr(s.not_finite, 1);
}

/// True if the mean of a gradient and its square are finite, as optim::is_finite().
__device__ bool has_finite_square(float sum, float inverse_examples) {
  const float mean = sum * inverse_examples;
  return mean * mean <= std::numeric_limits<float>::max();
}

__global__ void check_fours(DeviceAdamSlice s) {
  const std::size_t at = 4 * (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (at >= s.count) return;
  const float factor = s.factors->inverse_examples;
  const float4 sum = sum_parts(s, at);
  const bool finite = has_finite_square(sum.x, factor) && has_finite_square(sum.y, factor) &&
                      has_finite_square(sum.z, factor) && has_finite_square(sum.w, factor);
  if (!finite) atomicOr(s.not_finite, 1);
}

}  // namespace

void check_sums(const DeviceAdamSlice& slice, const Stream& stream) {
  assert(slice.count % 4 == 0 && slice.part_count > 0);
  launch("check of sums", check_fours, grid_of(slice.count / 4), stream, slice);
}

void sum_and_update(const DeviceAdamSlice& slice, const Stream& stream) {
  assert(slice.count % 4 == 0 && slice.part_count > 0);
  launch("sum and Adam", sum_and_update_fours, grid_of(slice.count / 4), stream, slice);
}

}  // namespace lockstep::cuda
