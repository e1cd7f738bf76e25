#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "lockstep/numerics/cuda/device_products.hpp"
#include "lockstep/numerics/cuda/strict_tile.cuh"

namespace lockstep::cuda {
/// y = act(x W + b) from x, panels and bias; y has `outputs` columns.
struct ForwardTask {
  Lines x;
  PanelLines w;
  const float* bias;
  bool relu;
  float* y;
  unsigned outputs;
};

/// dx = dz W^T from dz and panels, with `inputs` columns; 0 unless mask > 0, if mask is not null.
struct InputTask {
  Lines dz;
  PanelLines w;
  const float* mask;
  float* dx;
  unsigned inputs;
};

/// The first element of this block's tile: neighbouring blocks of the grid share weights.
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
    const float z = canonical(sum);
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
    const bool active = task.mask == nullptr || task.mask[at] > 0;
    task.dx[at] = active ? canonical(sum) : 0.0F;
  });
}

/// The leaf sums of every group from x and dz, in panels, one group of `size` floats after another.
struct WeightsTask {
  Lines x;
  Lines dz;
  unsigned leaf;
  unsigned group_rows;  ///< of all groups except the last
  float* out;
  std::size_t size;
};

/// The pending nodes of a thread's elements (without their right sibling yet): a binary counter.
/// Its lowest digit is kept in registers, the others in local memory. They are separate objects
/// because the compiler keeps no part of an object in registers if it is indexed dynamically.
template <class T>
struct LeafSums {
  Sums<T>* waiting;   ///< room for log2(leaves)
  Sums<T> sums = {};  ///< of the current leaf
  Sums<T> odd = {};   ///< the previous leaf, if the count is odd
  unsigned leaves = 0;
  unsigned top = 0;  ///< nodes in `waiting`

  __device__ __forceinline__ void add_left(const Sums<T>& left) {
    each([&](unsigned m, unsigned n) { sums[m][n] = left[m][n] + sums[m][n]; });
  }

  /// Ends a leaf; after the last one `sums` is the root.
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

/// Writes a thread's elements of the node, with zero padding.
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
          make_float2(j < task.dz.length ? canonical(sums[m][n]) : 0.0F,
                      j + 1 < task.dz.length ? canonical(sums[m][n + 1]) : 0.0F);
    }
  }
}

/// Leaves are a multiple of `step` rows, or end with a group; at most 2^depth per group.
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

/// Sets `out` to the root over `groups` nodes of `fours` float4 each.
static __global__ void strict_groups(const float4* nodes, unsigned groups, std::size_t fours,
                                     float4* out) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= fours) return;
  constexpr unsigned ahead = 8;  // nodes that are loaded together
  float4 waiting[32];
  unsigned top = 0;
  float4 node = {};
  for (unsigned first = 0; first < groups; first += ahead) {
    float4 next[ahead];
#pragma unroll
    for (unsigned n = 0; n < ahead; ++n) {
      if (first + n < groups) next[n] = nodes[(first + n) * fours + at];
    }
#pragma unroll
    for (unsigned n = 0; n < ahead; ++n) {
      const unsigned q = first + n;
      if (q >= groups) break;
      node = next[n];
      const bool last = q + 1 == groups;
      for (unsigned k = q; last ? top > 0 : k % 2 != 0; k >>= 1U) {
        const float4 left = waiting[--top];
        node = make_float4(left.x + node.x, left.y + node.y, left.z + node.z, left.w + node.w);
      }
      waiting[top++] = node;
    }
  }
  out[at] = make_float4(canonical(node.x), canonical(node.y), canonical(node.z), canonical(node.w));
}

/// The shape of a block that sums db: columns along x, groups of leaves along y. Eight columns are
/// the least that device memory reads at once; the more groups, the shorter each thread's sums.
inline constexpr unsigned bias_columns = 8;
inline constexpr unsigned bias_groups = 128;

/// The root over a thread's rows (at least one) of one column.
__device__ inline float bias_node(const Lines& dz, unsigned leaf, unsigned first, unsigned last,
                                  unsigned column) {
  float waiting[32];
  unsigned top = 0;
  float node = 0;
  const float* from = dz.data + column;
  for (unsigned row = first, q = 0; row < last; ++q) {
    const unsigned end = last - row < leaf ? last : row + leaf;
    node = 0;
#pragma unroll 16
    for (; row < end; ++row) node = node + from[row * dz.stride];
    for (unsigned n = q; row == last ? top > 0 : n % 2 != 0; n >>= 1U) {
      node = waiting[--top] + node;
    }
    waiting[top++] = node;
  }
  return node;
}

/// db of dz, with `outputs` columns including padding. Group g of the leaves begins at row g *
/// group_rows.
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
  db[column] = column < dz.length ? canonical(nodes[0][threadIdx.x]) : 0.0F;
}

}  // namespace lockstep::cuda

namespace lockstep {
namespace {

using cuda::Tile;

// For rows: the largest tiles that still give every multiprocessor one.
using LargeRows = Tile<128, 128, 8, 8, 8, 2, 1>;
using MediumRows = Tile<64, 64, 16, 4, 4, 3, 2>;
using SmallRows = Tile<32, 32, 32, 2, 2, 4, 3>;
// For weights: the same; with many rows, or where no tiles are enough, counting groups of leaves.
using LargeWeights = Tile<128, 64, 16, 8, 4, 2, 1>;
using MediumWeights = Tile<64, 64, 16, 4, 4, 2, 2>;
using SmallWeights = Tile<32, 32, 16, 2, 2, 4, 3>;

constexpr std::size_t max_groups = 64;
constexpr std::size_t waves = 4;  // of resident blocks, if groups have min_group_rows
constexpr std::size_t min_group_rows = 64;
constexpr std::size_t few_rows = 512;  // for which small tiles cost less than groups of leaves
// Local memory is allocated for all threads that a device can hold, so it is used only if needed.
constexpr unsigned shallow = 9;
constexpr unsigned deep = 30;
constexpr std::size_t common_leaf = 16;

/// The division of a batch's leaves: `groups` groups of `group_rows` rows, the last maybe fewer.
struct Groups {
  std::size_t groups = 1;
  std::size_t leaves = 1;  ///< per group; a power of two
  std::size_t group_rows = 0;
};

/// About `wanted` groups, a power of two.
Groups groups_of(std::size_t rows, std::size_t leaf, std::size_t wanted) {
  const std::size_t leaves = (rows + leaf - 1) / leaf;
  Groups cut;
  cut.leaves = std::max<std::size_t>(1, std::bit_ceil(leaves) / wanted);
  cut.groups = (leaves + cut.leaves - 1) / cut.leaves;
  cut.group_rows = std::min(rows, cut.leaves * leaf);
  return cut;
}

template <class T>
std::size_t tiles(std::size_t rows, std::size_t columns) {
  return T::down_of(rows) * T::across_of(columns);
}

template <class T>
cuda::Grid grid_for(std::size_t rows, std::size_t columns, std::size_t groups = 1) {
  return {dim3(static_cast<unsigned>(tiles<T>(rows, columns)), 1, static_cast<unsigned>(groups)),
          dim3(T::threads)};
}

template <class T>
void launch_weights(const cuda::WeightsTask& task, const Groups& cut, const cuda::Stream& stream) {
  const auto grid = grid_for<T>(task.x.length, task.dz.length, cut.groups);
  constexpr std::size_t most_shallow = std::size_t{1} << shallow;
  static_assert(few_rows <= most_shallow);  // MediumWeights has no more
  if constexpr (!std::is_same_v<T, MediumWeights>) {
    if (cut.leaves > most_shallow) {
      return cuda::launch("strict dW", cuda::strict_weights<T, 1, deep>, grid, stream, task);
    }
  }
  if (task.leaf % 8 == 0 || cut.leaves == 1) {
    cuda::launch("strict dW", cuda::strict_weights<T, 8, shallow>, grid, stream, task);
  } else {
    cuda::launch("strict dW", cuda::strict_weights<T, 1, shallow>, grid, stream, task);
  }
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
              "cudaDeviceGetAttribute");
  return count;
}

class StrictDeviceProducts final : public DeviceProducts {
 public:
  explicit StrictDeviceProducts(std::size_t rows)
      : rows_(rows), processors_(static_cast<std::size_t>(multiprocessors())) {}

  const char* name() const noexcept override { return "strict"; }

  void reserve(std::size_t inputs, std::size_t outputs) override;
  void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
               Matrix<float> y, const cuda::Stream& stream) override;
  void backward_input(Matrix<const float> dz, const LayerWeights<float>& w, Matrix<const float> x,
                      Activation below, Matrix<float> dx, const cuda::Stream& stream) override;
  void weight_gradients(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                        std::span<float> dw, std::span<float> db,
                        const cuda::Stream& stream) override;

 private:
  template <class T>
  std::size_t groups_for(std::size_t rows, std::size_t inputs, std::size_t outputs) const;
  void sum_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                   std::span<float> dw, const cuda::Stream& stream);
  void sum_bias(Matrix<const float> dz, std::size_t leaf, std::span<float> db,
                const cuda::Stream& stream) const;

  /// Calls run(tile) with the tile for a matrix of that many rows.
  template <class Run>
  void with_tile(std::size_t rows, std::size_t columns, const Run& run) const {
    if (tiles<LargeRows>(rows, columns) >= processors_) {
      run(LargeRows());
    } else if (tiles<MediumRows>(rows, columns) >= processors_) {
      run(MediumRows());
    } else {
      run(SmallRows());
    }
  }

  std::size_t rows_;
  std::size_t processors_;
  cuda::DeviceBuffer<float> nodes_;  ///< of groups of leaves
};

cuda::PanelLines panel_lines(const LayerWeights<float>& w) {
  return {w.weight.data(), static_cast<unsigned>(w.inputs),
          static_cast<unsigned>(round_to_unit(w.outputs))};
}

void StrictDeviceProducts::forward(Matrix<const float> x, const LayerWeights<float>& w,
                                   Activation activation, Matrix<float> y,
                                   const cuda::Stream& stream) {
  assert(x.rows <= rows_ && x.rows == y.rows && x.cols == w.inputs && y.cols == w.outputs);
  const cuda::ForwardTask task = {cuda::lines_of(x),
                                  panel_lines(w),
                                  w.bias.data(),
                                  activation == Activation::relu,
                                  y.data,
                                  static_cast<unsigned>(y.cols)};
  with_tile(y.rows, y.cols, [&]<class T>(T) {
    cuda::launch("strict forward", cuda::strict_forward<T>, grid_for<T>(y.rows, y.cols), stream,
                 task);
  });
}

void StrictDeviceProducts::backward_input(Matrix<const float> dz, const LayerWeights<float>& w,
                                          Matrix<const float> x, Activation below, Matrix<float> dx,
                                          const cuda::Stream& stream) {
  assert(dz.rows <= rows_ && dz.rows == dx.rows && dz.cols == w.outputs && dx.cols == w.inputs);
  const cuda::InputTask task = {cuda::lines_of(dz), panel_lines(w),
                                below == Activation::relu ? x.data : nullptr, dx.data,
                                static_cast<unsigned>(dx.cols)};
  with_tile(dx.rows, dx.cols, [&]<class T>(T) {
    cuda::launch("strict dX", cuda::strict_input<T>, grid_for<T>(dx.rows, dx.cols), stream, task);
  });
}

void StrictDeviceProducts::weight_gradients(Matrix<const float> x, Matrix<const float> dz,
                                            std::size_t leaf, std::span<float> dw,
                                            std::span<float> db, const cuda::Stream& stream) {
  assert(x.rows <= rows_ && x.rows == dz.rows && leaf > 0);
  assert(dw.size() == (Panels{x.cols, dz.cols}.size()) && db.size() == round_to_unit(dz.cols));
  if (x.rows == 0) {
    cuda::clear(dw, stream);
    cuda::clear(db, stream);
    return;
  }
  const std::size_t rows = std::min(leaf, x.rows);  // of the first leaf
  sum_weights(x, dz, rows, dw, stream);
  sum_bias(dz, rows, db, stream);
}

/// The number of groups of leaves with which the tiles give every multiprocessor one; and with many
/// rows several waves of blocks, of which the last, which may be partial, is a small part.
template <class T>
std::size_t StrictDeviceProducts::groups_for(std::size_t rows, std::size_t inputs,
                                             std::size_t outputs) const {
  const std::size_t each = tiles<T>(inputs, outputs);
  const auto for_blocks = [each](std::size_t blocks) {
    return std::bit_ceil((blocks + each - 1) / each);
  };
  const std::size_t of_many_rows = std::bit_floor(std::max<std::size_t>(1, rows / min_group_rows));
  const std::size_t several = for_blocks(waves * T::resident * processors_);
  return std::min(std::max(for_blocks(processors_), std::min(several, of_many_rows)), max_groups);
}

void StrictDeviceProducts::reserve(std::size_t inputs, std::size_t outputs) {
  const std::size_t leaves = std::bit_ceil(std::max<std::size_t>(rows_, 1));
  const std::size_t to_fill = std::max(groups_for<LargeWeights>(rows_, inputs, outputs),
                                       groups_for<SmallWeights>(rows_, inputs, outputs));
  const std::size_t to_be_shallow = leaves / common_leaf >> shallow;
  const std::size_t groups = std::min(leaves, std::max(to_fill, to_be_shallow));
  const std::size_t floats = groups > 1 ? groups * Panels{inputs, outputs}.size() : 0;
  if (floats > nodes_.size()) nodes_ = cuda::DeviceBuffer<float>(floats);
}

void StrictDeviceProducts::sum_weights(Matrix<const float> x, Matrix<const float> dz,
                                       std::size_t leaf, std::span<float> dw,
                                       const cuda::Stream& stream) {
  const std::size_t room = std::bit_floor(std::max<std::size_t>(1, nodes_.size() / dw.size()));
  const std::size_t leaves = std::bit_ceil((x.rows + leaf - 1) / leaf);
  const auto cut = [&](std::size_t to_fill) {
    const std::size_t to_be_shallow = leaves >> shallow;
    return groups_of(x.rows, leaf, std::min(room, std::max(to_fill, to_be_shallow)));
  };
  const auto sum = [&]<class T>(T, const Groups& groups) {
    const cuda::WeightsTask task = {cuda::lines_of(x),
                                    cuda::lines_of(dz),
                                    static_cast<unsigned>(leaf),
                                    static_cast<unsigned>(groups.group_rows),
                                    groups.groups > 1 ? nodes_.data() : dw.data(),
                                    dw.size()};
    launch_weights<T>(task, groups, stream);
    if (groups.groups == 1) return;
    cuda::launch("strict dW, the groups' tree", cuda::strict_groups, cuda::grid_of(dw.size() / 4),
                 stream, reinterpret_cast<const float4*>(nodes_.data()),
                 static_cast<unsigned>(groups.groups), dw.size() / 4,
                 reinterpret_cast<float4*>(dw.data()));
  };
  const auto enough = [&]<class T>(T, std::size_t groups) {
    return tiles<T>(x.cols, dz.cols) * groups >= processors_;
  };
  if (x.rows <= few_rows && !enough(LargeWeights(), 1)) {
    if (enough(MediumWeights(), 1)) return sum(MediumWeights(), cut(1));
    if (enough(SmallWeights(), 1)) return sum(SmallWeights(), cut(1));
  }
  const Groups large = cut(groups_for<LargeWeights>(x.rows, x.cols, dz.cols));
  if (enough(LargeWeights(), large.groups)) return sum(LargeWeights(), large);
  sum(SmallWeights(), cut(groups_for<SmallWeights>(x.rows, x.cols, dz.cols)));
}

void StrictDeviceProducts::sum_bias(Matrix<const float> dz, std::size_t leaf, std::span<float> db,
                                    const cuda::Stream& stream) const {
  const Groups cut = groups_of(dz.rows, leaf, cuda::bias_groups);
  const cuda::Grid grid = {
      dim3(static_cast<unsigned>((db.size() + cuda::bias_columns - 1) / cuda::bias_columns)),
      dim3(cuda::bias_columns, cuda::bias_groups)};
  cuda::launch("strict db", cuda::strict_bias, grid, stream, cuda::lines_of(dz),
               static_cast<unsigned>(leaf), static_cast<unsigned>(cut.group_rows), db.data(),
               static_cast<unsigned>(db.size()));
}

}  // namespace

std::unique_ptr<DeviceProducts> make_strict_device_products(std::size_t rows) {
  return std::make_unique<StrictDeviceProducts>(rows);
}

}  // namespace lockstep
