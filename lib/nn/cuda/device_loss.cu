#include <cassert>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <variant>

#include "lockstep/nn/cuda/device_network.hpp"
#include "lockstep/nn/loss_formula.hpp"

namespace lockstep::cuda {
namespace {

using nn::TargetKind;

constexpr unsigned few_outputs = 64;
constexpr unsigned few_threads = 32;
constexpr unsigned max_threads = 256;
constexpr unsigned chunk = 1024;  // numbers that one thread adds, in order

/// The arrays of a loss; one block of threads per row.
struct Task {
  const float* z;
  const std::int32_t* labels;
  const float* values;
  const float* weights;
  nn::ExampleResult* results;
  float* dz;  // or null
  unsigned rows;
  unsigned outputs;
};

/// An output and its index.
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
__device__ void find_max(const float* z, unsigned outputs, Candidate* candidates) {
  Candidate best = {z[0], 0};
  for (unsigned j = threadIdx.x; j < outputs; j += blockDim.x) {
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

/// The sum of number(0), number(1), ... in this order; valid on thread 0.
template <class Number>
__device__ float ordered_sum(unsigned count, Number number, float* numbers) {
  float sum = 0;
  for (unsigned first = 0; first < count; first += chunk) {
    const unsigned size = count - first < chunk ? count - first : chunk;
    for (unsigned j = threadIdx.x; j < size; j += blockDim.x) numbers[j] = number(first + j);
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned j = 0; j < size; ++j) sum = sum + numbers[j];
    }
    __syncthreads();
  }
  return sum;
}

__device__ void put_result(const Task& task, float loss, bool is_correct) {
  const auto weight = static_cast<double>(task.weights[blockIdx.x]);
  task.results[blockIdx.x] = {nn::weighted(static_cast<double>(loss), weight),
                              is_correct ? 1.0 : 0.0, weight};
}

__device__ void put_gradient(const Task& task, std::size_t at, float gradient) {
  const float weighted = nn::weighted(gradient, task.weights[blockIdx.x]);
  task.dz[at] = weighted != weighted ? std::numeric_limits<float>::quiet_NaN() : weighted;
}

__global__ void __launch_bounds__(max_threads)
    cross_entropy(Task task, nn::CrossEntropy<float> loss) {
  __shared__ Candidate candidates[max_threads];
  __shared__ float numbers[chunk];
  __shared__ float shared_normaliser;
  const std::size_t begin = std::size_t{blockIdx.x} * task.outputs;
  const float* z = task.z + begin;
  const auto label = static_cast<unsigned>(task.labels[blockIdx.x]);
  const float each = loss.each(task.outputs);
  find_max(z, task.outputs, candidates);
  const Candidate greatest = candidates[0];
  const float sum = ordered_sum(
      task.outputs, [&](unsigned j) { return strict_exp(z[j] - greatest.value); }, numbers);
  if (threadIdx.x == 0) shared_normaliser = greatest.value + strict_log(sum);
  __syncthreads();
  const float normaliser = shared_normaliser;
  float all = 0;
  if (loss.smoothing != 0) {
    all = ordered_sum(
        task.outputs, [&](unsigned j) { return normaliser - z[j]; }, numbers);
  }
  if (threadIdx.x == 0) {
    put_result(task, loss.loss(normaliser - z[label], all, each), greatest.index == label);
  }
  if (task.dz == nullptr) return;
  for (unsigned j = threadIdx.x; j < task.outputs; j += blockDim.x) {
    put_gradient(task, begin + j, loss.gradient(strict_exp(z[j] - normaliser), j == label, each));
  }
}

/// True if the outputs of a row predict its flags.
__device__ bool predicts_flags(const float* z, const float* flags, unsigned outputs) {
  for (unsigned j = 0; j < outputs; ++j) {
    if ((z[j] > 0) != (flags[j] != 0)) return false;
  }
  return true;
}

/// The loss that is the mean of term(output, target).
template <class Function>
__global__ void __launch_bounds__(max_threads)
    mean_of_terms(Task task, TargetKind kind, Function term) {
  __shared__ Candidate candidates[max_threads];
  __shared__ float numbers[chunk];
  const std::size_t begin = std::size_t{blockIdx.x} * task.outputs;
  const float* z = task.z + begin;
  const bool has_label = kind == TargetKind::label;
  const auto label = has_label ? static_cast<unsigned>(task.labels[blockIdx.x]) : 0U;
  const float* values = has_label ? nullptr : task.values + begin;
  const auto term_of = [&](unsigned j) {
    const float target = has_label ? (j == label ? 1.0F : 0.0F) : values[j];
    return term(z[j], target);
  };
  if (has_label) find_max(z, task.outputs, candidates);
  const float sum = ordered_sum(
      task.outputs, [&](unsigned j) { return term_of(j).value; }, numbers);
  const auto outputs = static_cast<float>(task.outputs);
  if (threadIdx.x == 0) {
    const bool is_correct =
        has_label ? candidates[0].index == label
                  : kind == TargetKind::flags && predicts_flags(z, values, task.outputs);
    put_result(task, sum / outputs, is_correct);
  }
  if (task.dz == nullptr) return;
  for (unsigned j = threadIdx.x; j < task.outputs; j += blockDim.x) {
    put_gradient(task, begin + j, term_of(j).derivative / outputs);
  }
}

}  // namespace

void run_loss(const nn::LossFormula<float>& loss, Matrix<const float> z, const nn::Targets& targets,
              std::span<nn::ExampleResult> results, Matrix<float> dz, const Stream& stream) {
  assert(targets.weights.size() == z.rows && results.size() == z.rows);
  assert(loss.target == TargetKind::label ? targets.labels.size() == z.rows
                                          : targets.values.size() == z.rows * z.cols);
  assert(dz.rows == 0 || (dz.rows == z.rows && dz.cols == z.cols));
  const Task task = {z.data,
                     targets.labels.data(),
                     targets.values.data(),
                     targets.weights.data(),
                     results.data(),
                     dz.rows > 0 ? dz.data : nullptr,
                     static_cast<unsigned>(z.rows),
                     static_cast<unsigned>(z.cols)};
  const Grid grid = {dim3(task.rows), dim3(z.cols <= few_outputs ? few_threads : max_threads)};
  std::visit(
      [&](const auto& function) {
        using Function = std::decay_t<decltype(function)>;
        if constexpr (std::is_same_v<Function, nn::CrossEntropy<float>>) {
          launch("cross-entropy", cross_entropy, grid, stream, task, function);
        } else {
          launch("loss", mean_of_terms<Function>, grid, stream, task, loss.target, function);
        }
      },
      loss.function);
}

}  // namespace lockstep::cuda
