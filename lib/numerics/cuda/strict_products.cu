#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>

#include "lib/numerics/cuda/device_products.hpp"
#include "lib/numerics/cuda/strict_rows.cuh"
#include "lib/numerics/cuda/strict_weights.cuh"

namespace lockstep {
namespace {

using cuda::Tile;

// For rows: the greatest tiles that give every multiprocessor one.
using GreatRows = Tile<128, 128, 8, 8, 8, 2>;
using MiddleRows = Tile<64, 64, 16, 4, 4, 3>;
using SmallRows = Tile<32, 32, 32, 2, 2, 4>;
// For weights: the same, where the leaves' groups count as well.
using GreatWeights = Tile<128, 64, 16, 8, 4, 2>;
using SmallWeights = Tile<32, 32, 16, 2, 2, 4>;

constexpr std::size_t most_groups = 64;
// Local memory is taken for all threads that a device can hold: so only where it is needed.
constexpr unsigned shallow = 9;
constexpr unsigned deep = 30;
constexpr std::size_t common_leaf = 16;

/// How the leaves of a batch are cut: `groups` groups of `group_rows` rows, the last maybe fewer.
struct Groups {
  std::size_t groups = 1;
  std::size_t leaves = 1;  ///< of a group; a power of two
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
  if (cut.leaves > std::size_t{1} << shallow) {
    cuda::launch("strict dW", cuda::strict_weights<T, 1, deep>, grid, stream, task);
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
  template <class T>
  std::size_t groups_for(std::size_t inputs, std::size_t outputs) const;
  void sum_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                   std::span<float> dw, const cuda::Stream& stream);
  void sum_bias(Matrix<const float> dz, std::size_t leaf, std::span<float> db,
                const cuda::Stream& stream) const;

  /// Calls run(tile) with the tile for a matrix of rows.
  template <class Run>
  void with_tile(std::size_t rows, std::size_t columns, const Run& run) const {
    if (tiles<GreatRows>(rows, columns) >= processors_) {
      run(GreatRows());
    } else if (tiles<MiddleRows>(rows, columns) >= processors_) {
      run(MiddleRows());
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

/// Groups of leaves with which the tiles give every multiprocessor one.
template <class T>
std::size_t StrictDeviceProducts::groups_for(std::size_t inputs, std::size_t outputs) const {
  const std::size_t each = tiles<T>(inputs, outputs);
  return std::min(std::bit_ceil((processors_ + each - 1) / each), most_groups);
}

void StrictDeviceProducts::reserve(std::size_t inputs, std::size_t outputs) {
  const std::size_t leaves = std::bit_ceil(std::max<std::size_t>(rows_, 1));
  const std::size_t to_fill = std::max(groups_for<GreatWeights>(inputs, outputs),
                                       groups_for<SmallWeights>(inputs, outputs));
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
  const Groups great = cut(groups_for<GreatWeights>(x.cols, dz.cols));
  const Groups small = cut(groups_for<SmallWeights>(x.cols, dz.cols));
  const bool fills = tiles<GreatWeights>(x.cols, dz.cols) * great.groups >= processors_;
  const Groups& groups = fills ? great : small;
  const cuda::WeightsTask task = {cuda::lines_of(x),
                                  cuda::lines_of(dz),
                                  static_cast<unsigned>(leaf),
                                  static_cast<unsigned>(groups.group_rows),
                                  groups.groups > 1 ? nodes_.data() : dw.data(),
                                  dw.size()};
  if (fills) {
    launch_weights<GreatWeights>(task, groups, stream);
  } else {
    launch_weights<SmallWeights>(task, groups, stream);
  }
  if (groups.groups == 1) return;
  cuda::launch("strict dW, the groups' tree", cuda::strict_groups, cuda::grid_of(dw.size() / 4),
               stream, reinterpret_cast<const float4*>(nodes_.data()),
               static_cast<unsigned>(groups.groups), dw.size() / 4,
               reinterpret_cast<float4*>(dw.data()));
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
