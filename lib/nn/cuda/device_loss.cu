#include <cassert>
#include <cstddef>
#include <limits>

#include "lockstep/nn/cuda/device_network.hpp"
#include "lockstep/numerics/strict_math.hpp"

namespace lockstep::cuda {
namespace {

constexpr unsigned few_classes = 64;
constexpr unsigned few_threads = 32;
constexpr unsigned max_threads = 256;
constexpr unsigned chunk = 1024;  // exponentials that one thread adds, in order

struct Loss {
  const float* z;
  const std::int32_t* labels;
  const float* weights;
  nn::ExampleResult* results;
  float* dz;  // or null
  unsigned rows;
  unsigned classes;
};

/// A logit and its class.
struct Candidate {
  float value;
  unsigned index;
};

/// True if std::max_element, which returns the first of equal maxima, would prefer `other`.
__device__ bool is_better(const Candidate& other, const Candidate& best) {
  return other.value > best.value || (other.value == best.value && other.index < best.index);
}

/// The first maximum over all threads, in candidates[0]. As in std::max_element, a NaN is never
/// chosen unless it comes first, and is then always chosen.
__device__ void find_max(const float* z, unsigned classes, Candidate* candidates) {
  Candidate best = {z[0], 0};
  for (unsigned j = threadIdx.x; j < classes; j += blockDim.x) {
    if (best.value < z[j]) best = {z[j], j};
  }
  candidates[threadIdx.x] = best;
  for (unsigned apart = blockDim.x / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (threadIdx.x >= apart) continue;
    const Candidate other = candidates[threadIdx.x + apart];
    if (is_better(other, candidates[threadIdx.x])) candidates[threadIdx.x] = other;
  }
  __syncthreads();
}

/// The sum of exponentials in the order of classes; valid on thread 0.
__device__ float sum_exp(const float* z, unsigned classes, float greatest, float* terms) {
  float sum = 0;
  for (unsigned first = 0; first < classes; first += chunk) {
    const unsigned count = classes - first < chunk ? classes - first : chunk;
    for (unsigned j = threadIdx.x; j < count; j += blockDim.x) {
      terms[j] = strict_exp(z[first + j] - greatest);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned j = 0; j < count; ++j) sum += terms[j];
    }
    __syncthreads();
  }
  return sum;
}

/// One block per row.
__global__ void __launch_bounds__(max_threads) cross_entropy(Loss task) {
  __shared__ Candidate candidates[max_threads];
  __shared__ float terms[chunk];
  __shared__ float shared_normaliser;
  const std::size_t begin = std::size_t{blockIdx.x} * task.classes;
  const float* z = task.z + begin;
  const auto label = static_cast<unsigned>(task.labels[blockIdx.x]);
  const float weight = task.weights[blockIdx.x];
  find_max(z, task.classes, candidates);
  const Candidate greatest = candidates[0];
  const float sum = sum_exp(z, task.classes, greatest.value, terms);
  if (threadIdx.x == 0) {
    shared_normaliser = greatest.value + strict_log(sum);
    const auto loss = static_cast<double>(shared_normaliser - z[label]);
    task.results[blockIdx.x] = {loss * static_cast<double>(weight),
                                greatest.index == label ? 1.0 : 0.0, static_cast<double>(weight)};
  }
  if (task.dz == nullptr) return;
  __syncthreads();
  const float normaliser = shared_normaliser;
  for (unsigned j = threadIdx.x; j < task.classes; j += blockDim.x) {
    float p = strict_exp(z[j] - normaliser);
    if (j == label) p -= 1;
    p *= weight;
    task.dz[begin + j] = p != p ? std::numeric_limits<float>::quiet_NaN() : p;
  }
}

}  // namespace

void softmax_cross_entropy(Matrix<const float> z, std::span<const std::int32_t> labels,
                           std::span<const float> weights, std::span<nn::ExampleResult> results,
                           Matrix<float> dz, const Stream& stream) {
  assert(labels.size() == z.rows && weights.size() == z.rows && results.size() == z.rows);
  assert(dz.rows == 0 || (dz.rows == z.rows && dz.cols == z.cols));
  const Loss task = {z.data,
                     labels.data(),
                     weights.data(),
                     results.data(),
                     dz.rows > 0 ? dz.data : nullptr,
                     static_cast<unsigned>(z.rows),
                     static_cast<unsigned>(z.cols)};
  const unsigned threads = z.cols <= few_classes ? few_threads : max_threads;
  launch("softmax cross-entropy", cross_entropy, {dim3(task.rows), dim3(threads)}, stream, task);
}

}  // namespace lockstep::cuda
