// The strict products that are sums over the batch, by leaves and their tree: dW and db.
//
// The leaves are cut into groups of a power of two, which blocks sum side by side; a group's sum is
// a node of the tree, so that nodes in order, summed as leaves are, give the root.
#pragma once

#include "lib/numerics/cuda/strict_tile.cuh"

namespace lockstep::cuda {

/// x and dz to the sums of every group's leaves, in panels, one group `size` after the other.
struct WeightsTask {
  Lines x;
  Lines dz;
  unsigned leaf;
  unsigned group_rows;  ///< of all groups but the last
  float* out;
  std::size_t size;
};

/// The nodes of a thread's elements that wait for their right sibling: a binary counter, whose
/// lowest digit stays in registers, and the others in local memory. That is another object, since
/// the compiler keeps none of an object in registers of which some is chosen by an index.
template <class T>
struct LeafSums {
  Sums<T>* waiting;   ///< room for log2(leaves)
  Sums<T> sums = {};  ///< of the leaf so far
  Sums<T> odd = {};   ///< the leaf before it, where the count is odd
  unsigned leaves = 0;
  unsigned top = 0;  ///< nodes in `waiting`

  __device__ __forceinline__ void add_left(const Sums<T>& left) {
    each([&](unsigned m, unsigned n) { sums[m][n] = left[m][n] + sums[m][n]; });
  }

  /// The leaf is complete; after the last one `sums` is the root.
  __device__ __forceinline__ void end_leaf(bool last) {
    const bool is_odd = leaves % 2 != 0;
    if (is_odd) add_left(odd);
    if (last) {
      while (top > 0) add_left(waiting[--top]);
      return;
    }
    if (is_odd) {
      for (unsigned n = leaves >> 1U; n % 2 != 0; n >>= 1U) add_left(waiting[--top]);
      each([&](unsigned m, unsigned n) { waiting[top][m][n] = sums[m][n]; });
      ++top;
    } else {
      each([&](unsigned m, unsigned n) { odd[m][n] = sums[m][n]; });
    }
    each([&](unsigned m, unsigned n) { sums[m][n] = 0; });
    ++leaves;
  }

 private:
  template <class Do>
  __device__ __forceinline__ static void each(const Do& run) {
#pragma unroll
    for (unsigned m = 0; m < T::thread_rows; ++m) {
#pragma unroll
      for (unsigned n = 0; n < T::thread_columns; ++n) run(m, n);
    }
  }
};

/// Writes a thread's elements of the node; padding becomes zero.
template <class T>
__device__ __forceinline__ void store_weights(const WeightsTask& task, const Place& place,
                                              const Sums<T>& sums) {
  constexpr auto unit = static_cast<unsigned>(panel_unit);
  const unsigned inputs = task.x.length;
  const unsigned outputs = (task.dz.length + unit - 1) / unit * unit;
  float* out = task.out + blockIdx.z * task.size;
#pragma unroll
  for (unsigned m = 0; m < T::thread_rows; ++m) {
    const unsigned k = place.row + element_of<T::rows, T::thread_rows>(threadIdx.x / T::across, m);
#pragma unroll
    for (unsigned n = 0; n < T::thread_columns; n += 2) {
      const unsigned j =
          place.column + element_of<T::columns, T::thread_columns>(threadIdx.x % T::across, n);
      if (k >= inputs || j >= outputs) continue;
      *reinterpret_cast<float2*>(out + panel_at(k, j, inputs, outputs)) =
          make_float2(j < task.dz.length ? one_nan(sums[m][n]) : 0.0F,
                      j + 1 < task.dz.length ? one_nan(sums[m][n + 1]) : 0.0F);
    }
  }
}

/// Leaves are a multiple of `step` rows, or end with a group; at most 2^depth in a group.
template <class T, unsigned step, unsigned depth>
__global__ void __launch_bounds__(T::threads, T::resident) strict_weights(WeightsTask task) {
  __shared__ Shared<T> shared;
  const unsigned first = blockIdx.z * task.group_rows;
  if (task.x.lines - first > task.group_rows) task.x.lines = first + task.group_rows;
  const unsigned last = task.dz.lines = task.x.lines;
  const unsigned down = (task.x.length + T::rows - 1) / T::rows;
  const Place place = {blockIdx.x % down * T::rows, blockIdx.x / down * T::columns, first, last};
  Sums<T> waiting[depth];
  LeafSums<T> tree = {waiting};
  unsigned in_leaf = 0;
  for_each_stage<T, Along::elements, Along::elements>(
      shared, task.x, task.dz, place, [&](auto a, auto b, unsigned row) {
#pragma unroll 1
        for (unsigned t = 0; t < T::terms && row + t < last; t += step) {
          multiply<T, step>(a, b, t, tree.sums);
          in_leaf += step;
          const bool ends = last - row - t <= step;
          if (!ends && in_leaf < task.leaf) continue;
          tree.end_leaf(ends);
          in_leaf = 0;
        }
      });
  store_weights<T>(task, place, tree.sums);
}

/// `out` becomes the root over `groups` nodes, each `fours` times four floats.
static __global__ void strict_groups(const float4* nodes, unsigned groups, std::size_t fours,
                                     float4* out) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= fours) return;
  float4 waiting[32];
  unsigned top = 0;
  float4 node = {};
  for (unsigned q = 0; q < groups; ++q) {
    node = nodes[q * fours + at];
    const bool last = q + 1 == groups;
    for (unsigned n = q; last ? top > 0 : n % 2 != 0; n >>= 1U) {
      const float4 left = waiting[--top];
      node = make_float4(left.x + node.x, left.y + node.y, left.z + node.z, left.w + node.w);
    }
    waiting[top++] = node;
  }
  out[at] = make_float4(one_nan(node.x), one_nan(node.y), one_nan(node.z), one_nan(node.w));
}

/// The shape of a block that sums db: columns side by side, groups of leaves one below the other.
inline constexpr unsigned bias_columns = 32;
inline constexpr unsigned bias_groups = 32;

/// The root over a thread's rows of one column, of which there is at least one.
__device__ inline float bias_node(const Lines& dz, unsigned leaf, unsigned first, unsigned last,
                                  unsigned column) {
  float waiting[32];
  unsigned top = 0;
  float node = 0;
  const float* from = dz.data + column;
  for (unsigned row = first, q = 0; row < last; ++q) {
    const unsigned end = last - row < leaf ? last : row + leaf;
    node = 0;
#pragma unroll 8
    for (; row < end; ++row) node = node + from[row * dz.stride];
    for (unsigned n = q; row == last ? top > 0 : n % 2 != 0; n >>= 1U) {
      node = waiting[--top] + node;
    }
    waiting[top++] = node;
  }
  return node;
}

/// db of dz, `outputs` wide with its padding. Group g of the leaves is the rows from
/// g * group_rows on.
static __global__ void __launch_bounds__(bias_columns* bias_groups)
    strict_bias(Lines dz, unsigned leaf, unsigned group_rows, float* db, unsigned outputs) {
  __shared__ float nodes[bias_groups][bias_columns];
  const unsigned column = blockIdx.x * bias_columns + threadIdx.x;
  const std::size_t begin = std::size_t{threadIdx.y} * group_rows;
  const bool has_rows = begin < dz.lines;
  if (has_rows && column < dz.length) {
    const auto first = static_cast<unsigned>(begin);
    const unsigned last = dz.lines - first < group_rows ? dz.lines : first + group_rows;
    nodes[threadIdx.y][threadIdx.x] = bias_node(dz, leaf, first, last, column);
  }
  const unsigned groups = (dz.lines + group_rows - 1) / group_rows;
  for (unsigned apart = 1; apart < bias_groups; apart *= 2) {
    __syncthreads();
    if (threadIdx.y % (2 * apart) != 0 || threadIdx.y + apart >= groups) continue;
    nodes[threadIdx.y][threadIdx.x] += nodes[threadIdx.y + apart][threadIdx.x];
  }
  if (threadIdx.y != 0 || column >= outputs) return;
  db[column] = column < dz.length ? one_nan(nodes[0][threadIdx.x]) : 0.0F;
}

}  // namespace lockstep::cuda
