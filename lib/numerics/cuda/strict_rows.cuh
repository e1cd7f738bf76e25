// The strict products whose elements belong to a row of the batch: forward, and dX.
#pragma once

#include "lib/numerics/cuda/strict_tile.cuh"

namespace lockstep::cuda {

/// x, panels and bias to y = act(x W + b), `outputs` wide.
struct ForwardTask {
  Lines x;
  PanelLines w;
  const float* bias;
  bool relu;
  float* y;
  unsigned outputs;
};

/// dz and panels to dx = dz W^T, `inputs` wide; 0 where not mask > 0, unless mask is null.
struct InputTask {
  Lines dz;
  PanelLines w;
  const float* mask;
  float* dx;
  unsigned inputs;
};

/// Where this block's tile begins: blocks side by side in the grid share weights.
template <class T>
__device__ __forceinline__ Place place_of(unsigned rows, unsigned terms) {
  const unsigned down = (rows + T::rows - 1) / T::rows;
  return {blockIdx.x % down * T::rows, blockIdx.x / down * T::columns, 0, terms};
}

/// Calls put(row, column, sum) for the calling thread's elements.
template <class T, class Put>
__device__ __forceinline__ void for_each_sum(const Place& place, const Sums<T>& sums,
                                             const Put& put) {
#pragma unroll
  for (unsigned m = 0; m < T::thread_rows; ++m) {
    const unsigned row =
        place.row + element_of<T::rows, T::thread_rows>(threadIdx.x / T::across, m);
#pragma unroll
    for (unsigned n = 0; n < T::thread_columns; ++n) {
      put(row, place.column + element_of<T::columns, T::thread_columns>(threadIdx.x % T::across, n),
          sums[m][n]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident) strict_forward(ForwardTask task) {
  __shared__ Shared<T> shared;
  const Place place = place_of<T>(task.x.lines, task.x.length);
  Sums<T> sums;
#pragma unroll
  for (unsigned n = 0; n < T::thread_columns; n += 2) {  // the bias is padded to 16, too
    const unsigned j =
        place.column + element_of<T::columns, T::thread_columns>(threadIdx.x % T::across, n);
    const float2 start =
        j < task.w.outputs ? *reinterpret_cast<const float2*>(task.bias + j) : make_float2(0, 0);
#pragma unroll
    for (unsigned m = 0; m < T::thread_rows; ++m) {
      sums[m][n] = start.x;
      sums[m][n + 1] = start.y;
    }
  }
  for_each_stage<T, Along::terms, Along::elements>(
      shared, task.x, task.w, place,
      [&](auto a, auto b, unsigned) { multiply<T, T::terms>(a, b, 0, sums); });
  for_each_sum<T>(place, sums, [&](unsigned i, unsigned j, float sum) {
    if (i >= task.x.lines || j >= task.outputs) return;
    const float z = one_nan(sum);
    task.y[std::size_t{i} * task.outputs + j] = task.relu && z < 0 ? 0.0F : z;
  });
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident) strict_input(InputTask task) {
  __shared__ Shared<T> shared;
  const Place place = place_of<T>(task.dz.lines, task.dz.length);
  Sums<T> sums = {};
  for_each_stage<T, Along::terms, Along::terms>(
      shared, task.dz, task.w, place,
      [&](auto a, auto b, unsigned) { multiply<T, T::terms>(a, b, 0, sums); });
  for_each_sum<T>(place, sums, [&](unsigned i, unsigned k, float sum) {
    if (i >= task.dz.lines || k >= task.inputs) return;
    const std::size_t at = std::size_t{i} * task.inputs + k;
    const bool open = task.mask == nullptr || task.mask[at] > 0;
    task.dx[at] = open ? one_nan(sum) : 0.0F;
  });
}

}  // namespace lockstep::cuda
