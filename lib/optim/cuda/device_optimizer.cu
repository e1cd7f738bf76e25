#include <cassert>
#include <limits>

#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/optim/cuda/device_optimizer.hpp"

namespace lockstep::cuda {
namespace {

using optim::Pass;
using optim::PassFactors;
using Squared = optim::UpdateKernels::Squared;

__device__ float4 sum_of(const float4& left, const float4& right) {
  return make_float4(left.x + right.x, left.y + right.y, left.z + right.z, left.w + right.w);
}

/// Four elements of the tree over the parts. The newest value stays in registers, so that one or
/// two parts need no local memory.
__device__ float4 sum_parts(const DeviceUpdateSlice& s, std::size_t at) {
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

__device__ bool is_finite(float value) { return fabsf(value) <= std::numeric_limits<float>::max(); }

/// The mean gradient, before it is clipped.
__device__ float mean_of(const PassFactors& f, float sum) {
  return flush_small_to_zero(sum * f.inverse_weight, optim::min_gradient);
}

__device__ float clipped(const PassFactors& f, float mean) {
  if (!f.clips) return mean;
  return fminf(fmaxf(mean * f.clip_scale, -f.clip_value), f.clip_value);
}

/// lamb's r.
__device__ float direction_of(const PassFactors& f, float value, float first, float second) {
  const float m = first * f.inverse_correction1;
  const float v = second * f.inverse_correction2;
  return m / (sqrtf(v) + f.epsilon) + f.decay * value;
}

/// Does `pass` to one weight, as optimizer.cpp. Returns true if the gradient, its square, the
/// second moment and the new weight are finite.
template <Pass pass>
__device__ bool update(const PassFactors& f, float sum, float& value, float& first, float& second) {
  if constexpr (pass == Pass::lamb_weights) {
    value = value - f.scale * direction_of(f, value, first, second);
    return is_finite(value);
  } else {
    const float mean = mean_of(f, sum);
    float g = clipped(f, mean);
    const bool finite = is_finite(mean * mean);
    if constexpr (pass == Pass::sgd) {
      if (f.decay != 0) g = g + f.decay * value;
      if (f.momentum != 0) {
        first = flush_small_to_zero(f.momentum * first + g, optim::min_first_moment);
        g = f.nesterov ? g + f.momentum * first : first;
      }
      value = value - f.rate * g;
      return finite && is_finite(value);
    } else if constexpr (pass == Pass::lars) {
      const float step = f.scale * (g + f.decay * value);
      first = flush_small_to_zero(f.momentum * first + step, optim::min_first_moment);
      value = value - first;
      return finite && is_finite(value);
    } else {
      if constexpr (pass == Pass::adam) {
        if (f.decay != 0) g = g + f.decay * value;
      }
      first = flush_small_to_zero(f.beta1 * first + f.rest1 * g, optim::min_first_moment);
      second = flush_small_to_zero(f.beta2 * second + f.rest2 * (g * g), optim::min_second_moment);
      const float corrected_second = second * f.inverse_correction2;
      if constexpr (pass != Pass::lamb_moments) {
        if constexpr (pass == Pass::adamw) value = value * f.kept;
        const float root = sqrtf(corrected_second);
        value = value - first * f.corrected_rate / (root + f.epsilon);
      }
      return finite && is_finite(corrected_second) && is_finite(value);
    }
  }
}

/// Four floats from `at` on; zeros where there is no array.
__device__ float4 load(const float* array, std::size_t at) {
  if (array == nullptr) return make_float4(0, 0, 0, 0);
  return *reinterpret_cast<const float4*>(array + at);
}

__device__ void store(float* array, std::size_t at, const float4& four) {
  if (array != nullptr) *reinterpret_cast<float4*>(array + at) = four;
}

template <Pass pass>
__global__ void update_fours(DeviceUpdateSlice s, Range range, const PassFactors* factors) {
  const std::size_t at = range.begin + 4 * (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (at >= range.end) return;
  const PassFactors f = *factors;
  float4 value = load(s.values, at);
  float4 first = load(s.first, at);
  float4 second = load(s.second, at);
  const float4 sum = sum_parts(s, at);
  bool finite = update<pass>(f, sum.x, value.x, first.x, second.x);
  finite = update<pass>(f, sum.y, value.y, first.y, second.y) && finite;
  finite = update<pass>(f, sum.z, value.z, first.z, second.z) && finite;
  finite = update<pass>(f, sum.w, value.w, first.w, second.w) && finite;
  store(s.values, at, value);
  if (pass != Pass::lamb_weights) {
    store(s.first, at, first);
    store(s.second, at, second);
  }
  if (!finite) atomicOr(s.not_finite, 1);
}

/// True if the mean of a gradient and its square are finite, as optim::is_finite().
__device__ bool has_finite_square(float sum, float inverse_weight) {
  const float mean = sum * inverse_weight;
  return is_finite(mean * mean);
}

__global__ void check_fours(DeviceUpdateSlice s, const PassFactors* factors) {
  const std::size_t at = 4 * (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (at >= s.count) return;
  const float factor = factors->inverse_weight;
  const float4 sum = sum_parts(s, at);
  const bool finite = has_finite_square(sum.x, factor) && has_finite_square(sum.y, factor) &&
                      has_finite_square(sum.z, factor) && has_finite_square(sum.w, factor);
  if (!finite) atomicOr(s.not_finite, 1);
}

/// The four numbers from `at` on whose squares are summed.
template <Squared what>
__device__ float4 squared_fours(const DeviceUpdateSlice& s, const PassFactors& f, std::size_t at) {
  if constexpr (what == Squared::gradients) {
    const float4 sum = sum_parts(s, at);
    return make_float4(clipped(f, mean_of(f, sum.x)), clipped(f, mean_of(f, sum.y)),
                       clipped(f, mean_of(f, sum.z)), clipped(f, mean_of(f, sum.w)));
  } else {
    const float4 w = load(s.values, at);
    if constexpr (what == Squared::weights) return w;
    const float4 m = load(s.first, at);
    const float4 v = load(s.second, at);
    return make_float4(direction_of(f, w.x, m.x, v.x), direction_of(f, w.y, m.y, v.y),
                       direction_of(f, w.z, m.z, v.z), direction_of(f, w.w, m.w, v.w));
  }
}

constexpr unsigned square_threads = ExactSquares::exponents;
constexpr std::size_t block_squares = 8192;
static_assert(block_squares <= ExactSquares::max_squares);

/// A block sums the squares of block_squares numbers by exponent, as integers; then each thread
/// adds the sum of one exponent to the words.
template <Squared what>
__global__ void __launch_bounds__(square_threads)
    add_squares_of(DeviceUpdateSlice s, Range range, const PassFactors* factors,
                   unsigned long long* words) {
  __shared__ unsigned long long bins[ExactSquares::exponents];
  bins[threadIdx.x] = 0;
  __syncthreads();
  const PassFactors f = *factors;
  const std::size_t begin = range.begin + block_squares * std::size_t{blockIdx.x};
  const std::size_t end = begin + block_squares < range.end ? begin + block_squares : range.end;
  for (std::size_t at = begin + 4 * std::size_t{threadIdx.x}; at < end;
       at += 4 * std::size_t{square_threads}) {
    const float4 four = squared_fours<what>(s, f, at);
    for (const float number : {four.x, four.y, four.z, four.w}) {
      const ExactSquares::Square square = ExactSquares::square_of(number);
      atomicAdd(&bins[square.exponent], static_cast<unsigned long long>(square.mantissa_square));
    }
  }
  __syncthreads();
  if (bins[threadIdx.x] == 0) return;
  ExactSquares::add_to_words(threadIdx.x, bins[threadIdx.x],
                             [&](std::size_t word, std::uint64_t number) {
                               atomicAdd(&words[word], static_cast<unsigned long long>(number));
                             });
}

template <Pass pass>
void launch_pass(const DeviceUpdateSlice& slice, Range range, const PassFactors* factors,
                 const Stream& stream) {
  launch("sum and update", update_fours<pass>, grid_of(ceil_divide(range.size(), 4)), stream, slice,
         range, factors);
}

template <Squared what>
void launch_squares(const DeviceUpdateSlice& slice, Range range, const PassFactors* factors,
                    unsigned long long* words, const Stream& stream) {
  const auto blocks = static_cast<unsigned>(ceil_divide(range.size(), block_squares));
  launch("squares", add_squares_of<what>, {dim3(blocks), dim3(square_threads)}, stream, slice,
         range, factors, words);
}

void require_fours([[maybe_unused]] const DeviceUpdateSlice& slice) {
  assert(slice.count % 4 == 0 && slice.part_count > 0);
}

}  // namespace

void check_sums(const DeviceUpdateSlice& slice, const PassFactors* factors, const Stream& stream) {
  require_fours(slice);
  launch("check of sums", check_fours, grid_of(slice.count / 4), stream, slice, factors);
}

void run_pass(Pass pass, const DeviceUpdateSlice& slice, Range range, const PassFactors* factors,
              const Stream& stream) {
  require_fours(slice);
  assert(range.begin % 4 == 0 && range.end <= slice.count);
  switch (pass) {
    case Pass::sgd: return launch_pass<Pass::sgd>(slice, range, factors, stream);
    case Pass::adam: return launch_pass<Pass::adam>(slice, range, factors, stream);
    case Pass::adamw: return launch_pass<Pass::adamw>(slice, range, factors, stream);
    case Pass::lars: return launch_pass<Pass::lars>(slice, range, factors, stream);
    case Pass::lamb_moments: return launch_pass<Pass::lamb_moments>(slice, range, factors, stream);
    case Pass::lamb_weights: return launch_pass<Pass::lamb_weights>(slice, range, factors, stream);
  }
}

void add_squares(Squared what, const DeviceUpdateSlice& slice, Range range,
                 const PassFactors* factors, unsigned long long* words, const Stream& stream) {
  require_fours(slice);
  assert(range.begin % 4 == 0 && range.end <= slice.count);
  switch (what) {
    case Squared::weights:
      return launch_squares<Squared::weights>(slice, range, factors, words, stream);
    case Squared::gradients:
      return launch_squares<Squared::gradients>(slice, range, factors, words, stream);
    case Squared::directions:
      return launch_squares<Squared::directions>(slice, range, factors, words, stream);
  }
}

}  // namespace lockstep::cuda
