#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <optional>

#include "lockstep/base/range.hpp"
#include "lockstep/numerics/cuda/device_products.hpp"
#include "lockstep/numerics/cuda/strict_tile.cuh"
#include "lockstep/numerics/leaf_tree.hpp"

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
      [&](auto, auto a, auto b, unsigned) { multiply<T, T::terms>(a, b, 0, sums); });
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
      [&](auto, auto a, auto b, unsigned) { multiply<T, T::terms>(a, b, 0, sums); });
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

/// Calls run(m, n) for a thread's elements.
template <class T, class Run>
__device__ __forceinline__ void for_each_element(const Run& run) {
#pragma unroll
  for (unsigned m = 0; m < T::thread_rows; ++m) {
#pragma unroll
    for (unsigned n = 0; n < T::thread_columns; ++n) run(m, n);
  }
}

/// The pending nodes of a thread's elements (without their right sibling yet): a binary counter, in
/// local memory.
template <class T>
struct PendingNodes {
  Sums<T>* waiting;    ///< room for log2(nodes)
  unsigned nodes = 0;  ///< added so far
  unsigned top = 0;    ///< nodes in `waiting`

  /// Adds the next node. After the last one `node` is the root.
  __device__ __forceinline__ void add(Sums<T>& node, bool last) {
    const auto add_sibling = [&] {
      --top;
      for_each_element<T>(
          [&](unsigned m, unsigned n) { node[m][n] = waiting[top][m][n] + node[m][n]; });
    };
    if (last) {
      while (top > 0) add_sibling();
      return;
    }
    for (unsigned q = nodes; q % 2 != 0; q >>= 1U) add_sibling();
    for_each_element<T>([&](unsigned m, unsigned n) { waiting[top][m][n] = node[m][n]; });
    ++top;
    ++nodes;
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

/// Limits the task to this block's group of rows.
template <class T>
__device__ __forceinline__ Place limit_to_group(WeightsTask& task) {
  const unsigned first = blockIdx.z * task.group_rows;
  if (task.x.lines - first > task.group_rows) task.x.lines = first + task.group_rows;
  task.dz.lines = task.x.lines;
  const unsigned down = (task.x.length + T::rows - 1) / T::rows;
  return {blockIdx.x % down * T::rows, blockIdx.x / down * T::columns, first, task.x.lines};
}

/// For leaves of a stage each: pairs of them are added in registers. At most 2^depth pairs a group.
template <class T, unsigned depth>
__global__ void __launch_bounds__(T::threads, T::resident) strict_weights_pairs(WeightsTask task) {
  __shared__ Shared<T> shared;
  const Place place = limit_to_group<T>(task);
  Sums<T> waiting[depth];
  PendingNodes<T> pending = {waiting};
  Sums<T> even;
  Sums<T> odd;
  constexpr unsigned cycle = T::ahead % 2 == 0 ? T::ahead : 2 * T::ahead;
  for_each_stage<T, Along::elements, Along::elements, cycle>(
      shared, task.x, task.dz, place, [&](auto stage, auto a, auto b, unsigned row) {
        const bool last = place.last_term - row <= T::terms;
        if constexpr (stage % 2 == 0) {
          multiply<T, T::terms, Chains::begin>(a, b, 0, even);
          if (last) pending.add(even, true);
        } else {
          multiply<T, T::terms, Chains::begin>(a, b, 0, odd);
          for_each_element<T>([&](unsigned m, unsigned n) { even[m][n] = even[m][n] + odd[m][n]; });
          pending.add(even, last);
        }
      });
  store_weights<T>(task, place, even);
}

/// For other leaves: a multiple of `step` rows, or they end with a group; at most 2^depth a group.
template <class T, unsigned step, unsigned depth>
__global__ void __launch_bounds__(T::threads, T::resident) strict_weights(WeightsTask task) {
  __shared__ Shared<T> shared;
  const Place place = limit_to_group<T>(task);
  const unsigned last = place.last_term;
  Sums<T> waiting[depth];
  PendingNodes<T> pending = {waiting};
  Sums<T> sums = {};
  unsigned in_leaf = 0;
  for_each_stage<T, Along::elements, Along::elements>(
      shared, task.x, task.dz, place, [&](auto, auto a, auto b, unsigned row) {
#pragma unroll 1
        for (unsigned t = 0; t < T::terms && row + t < last; t += step) {
          multiply<T, step>(a, b, t, sums);
          in_leaf += step;
          const bool ends = last - row - t <= step;
          if (!ends && in_leaf < task.leaf) continue;
          pending.add(sums, ends);
          if (ends) return;
          for_each_element<T>([&](unsigned m, unsigned n) { sums[m][n] = 0; });
          in_leaf = 0;
        }
      });
  store_weights<T>(task, place, sums);
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

/// Parts of its peak that a multiprocessor computes of tiles: of one at a time, and of several.
/// Measured on an H200.
struct Rate {
  double alone;
  double several;
};

struct LargeRows : Tile<128, 128, 8, 8, 8, 2, 1> {
  static constexpr Rate rate = {0.57, 0.63};
};
struct MediumRows : Tile<64, 64, 16, 8, 4, 4, 1> {
  static constexpr Rate rate = {0.39, 0.55};
};
struct FlatRows : Tile<32, 64, 16, 4, 4, 4, 2> {
  static constexpr Rate rate = {0.31, 0.42};
};
struct SmallRows : Tile<32, 32, 16, 4, 2, 4, 3> {
  static constexpr Rate rate = {0.22, 0.31};
};
struct TinyRows : Tile<16, 32, 32, 2, 2, 4, 2> {
  static constexpr Rate rate = {0.17, 0.21};
};
struct LargeWeights : Tile<64, 64, 16, 8, 4, 4, 1> {
  static constexpr Rate rate = {0.29, 0.40};
};
struct SmallWeights : Tile<32, 32, 16, 4, 2, 5, 2> {
  static constexpr Rate rate = {0.18, 0.29};
};

constexpr std::size_t max_groups = 64;
// The time of the groups' tree, in multiply-adds of a multiprocessor at its peak: its launch, the
// wait for a group's nodes, and a node. Measured on an H200.
constexpr double tree_launch = 300'000;
constexpr double tree_group = 30'000;
constexpr double tree_node = 0.38;
// Local memory is allocated for all threads that a device can hold, so it is used only if needed.
constexpr unsigned shallow = 9;
constexpr unsigned deep = 30;
constexpr std::size_t most_shallow = std::size_t{1} << shallow;
constexpr std::size_t common_leaf = 16;

/// The division of a batch's leaves: `groups` groups of `group_rows` rows, the last maybe fewer.
struct Groups {
  std::size_t groups = 1;
  std::size_t leaves = 1;  ///< per group; a power of two
  std::size_t group_rows = 0;
};

/// About `wanted` groups, a power of two.
Groups groups_of(std::size_t rows, std::size_t leaf, std::size_t wanted) {
  const std::size_t leaves = leaves_of(rows, leaf);
  Groups cut;
  cut.leaves = std::max<std::size_t>(1, std::bit_ceil(leaves) / wanted);
  cut.groups = ceil_divide(leaves, cut.leaves);
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
  if (task.leaf == T::terms) {
    cuda::launch("strict dW", cuda::strict_weights_pairs<T, shallow>, grid, stream, task);
  } else if (task.leaf % 8 == 0 || cut.leaves == 1) {
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
  /// The time of tiles, in multiply-adds of a multiprocessor at its peak, for each of their terms.
  template <class T>
  double cost(std::size_t rows, std::size_t columns, std::size_t groups = 1) const {
    const std::size_t blocks = ceil_divide(tiles<T>(rows, columns) * groups, processors_);
    return T::rows * T::columns *
           std::max(1 / T::rate.alone, static_cast<double>(blocks) / T::rate.several);
  }

  /// Calls run(tile) with the tile that takes the least time for a matrix of rows.
  template <class Run>
  void with_rows_tile(std::size_t rows, std::size_t columns, const Run& run) const {
    const auto pick = [&]<class... T>(T...) {
      const double least = std::min({cost<T>(rows, columns)...});
      (void)((cost<T>(rows, columns) == least && (run(T()), true)) || ...);
    };
    pick(LargeRows(), MediumRows(), FlatRows(), SmallRows(), TinyRows());
  }

  struct Choice {
    Groups cut;
    double cost;  ///< as cost(), for all terms
  };
  template <class T>
  Choice cheapest_groups(const Panels& weights, std::size_t rows, std::size_t leaf,
                         std::size_t room) const;
  void sum_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                   std::span<float> dw, const cuda::Stream& stream);
  void sum_bias(Matrix<const float> dz, std::size_t leaf, std::span<float> db,
                const cuda::Stream& stream) const;

  std::size_t rows_;
  std::size_t processors_;
  cuda::DeviceBuffer<float> nodes_;  ///< of groups of leaves
  cuda::Branch bias_branch_;         ///< sums of biases fill few multiprocessors
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
  with_rows_tile(y.rows, y.cols, [&]<class T>(T) {
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
  with_rows_tile(dx.rows, dx.cols, [&]<class T>(T) {
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
  sum_bias(dz, rows, db, bias_branch_.fork(stream));
  sum_weights(x, dz, rows, dw, stream);
  bias_branch_.join(stream);
}

/// The number of groups that takes the least time, of those with room for their nodes; with more
/// than `most_shallow` leaves a group only where there is no room for more groups.
template <class T>
StrictDeviceProducts::Choice StrictDeviceProducts::cheapest_groups(const Panels& weights,
                                                                   std::size_t rows,
                                                                   std::size_t leaf,
                                                                   std::size_t room) const {
  const std::size_t leaves = std::bit_ceil(leaves_of(rows, leaf));
  const std::size_t fewest = std::clamp<std::size_t>(leaves / most_shallow, 1, room);
  const std::size_t most = std::max(fewest, std::min({leaves, room, max_groups}));
  std::optional<Choice> best;
  for (std::size_t wanted = fewest; wanted <= most; wanted *= 2) {
    const Groups cut = groups_of(rows, leaf, wanted);
    const auto groups = static_cast<double>(cut.groups);
    double time =
        static_cast<double>(cut.group_rows) * cost<T>(weights.inputs, weights.outputs, cut.groups);
    if (cut.groups > 1) {
      time += tree_launch + groups * (tree_group + tree_node * static_cast<double>(weights.size()));
    }
    if (!best || time < best->cost) best = {cut, time};
  }
  return *best;
}

void StrictDeviceProducts::reserve(std::size_t inputs, std::size_t outputs) {
  const Panels weights{inputs, outputs};
  const std::size_t rows = std::max<std::size_t>(rows_, 1);
  const std::size_t groups =
      std::max(cheapest_groups<LargeWeights>(weights, rows, common_leaf, rows).cut.groups,
               cheapest_groups<SmallWeights>(weights, rows, common_leaf, rows).cut.groups);
  const std::size_t floats = groups > 1 ? std::bit_ceil(groups) * weights.size() : 0;
  if (floats <= nodes_.size()) return;
  nodes_ = {};  // before the larger one is allocated
  nodes_ = cuda::DeviceBuffer<float>(floats);
}

void StrictDeviceProducts::sum_weights(Matrix<const float> x, Matrix<const float> dz,
                                       std::size_t leaf, std::span<float> dw,
                                       const cuda::Stream& stream) {
  const std::size_t room = std::bit_floor(std::max<std::size_t>(1, nodes_.size() / dw.size()));
  const Panels weights{x.cols, dz.cols};
  const auto large = cheapest_groups<LargeWeights>(weights, x.rows, leaf, room);
  const auto small = cheapest_groups<SmallWeights>(weights, x.rows, leaf, room);
  const bool is_large = large.cost < small.cost;
  const Groups cut = is_large ? large.cut : small.cut;
  const cuda::WeightsTask task = {cuda::lines_of(x),
                                  cuda::lines_of(dz),
                                  static_cast<unsigned>(leaf),
                                  static_cast<unsigned>(cut.group_rows),
                                  cut.groups > 1 ? nodes_.data() : dw.data(),
                                  dw.size()};
  if (cut.leaves > most_shallow) {
    cuda::launch("strict dW", cuda::strict_weights<SmallWeights, 1, deep>,
                 grid_for<SmallWeights>(x.cols, dz.cols, cut.groups), stream, task);
  } else if (is_large) {
    launch_weights<LargeWeights>(task, cut, stream);
  } else {
    launch_weights<SmallWeights>(task, cut, stream);
  }
  if (cut.groups == 1) return;
  cuda::launch("strict dW, the groups' tree", cuda::strict_groups, cuda::grid_of(dw.size() / 4),
               stream, reinterpret_cast<const float4*>(nodes_.data()),
               static_cast<unsigned>(cut.groups), dw.size() / 4,
               reinterpret_cast<float4*>(dw.data()));
}

void StrictDeviceProducts::sum_bias(Matrix<const float> dz, std::size_t leaf, std::span<float> db,
                                    const cuda::Stream& stream) const {
  const Groups cut = groups_of(dz.rows, leaf, cuda::bias_groups);
  const cuda::Grid grid = {dim3(static_cast<unsigned>(ceil_divide(db.size(), cuda::bias_columns))),
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
