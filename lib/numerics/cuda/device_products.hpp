// The three products of a dense layer on a device: products.hpp for device memory and streams.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/numerics/matrix.hpp"
#include "lockstep/numerics/products.hpp"

namespace lockstep {

/// Matrix products for one rank's replica on a device.
///
/// Spans and matrices are in the memory of the device that was current at construction. Weights
/// have the layout of the processor's products of the same name, so a block is copied unchanged.
/// Shapes as in Products; B may be 0. Every call only enqueues: results are complete when the
/// stream reaches them. Calls may be recorded in a graph. One thread calls; calls must run one
/// after the other, since they may share scratch memory, but weight_gradients() may run beside
/// backward_input().
/// Errors   throws cuda::DeviceError.
class DeviceProducts {
 public:
  DeviceProducts() = default;
  DeviceProducts(const DeviceProducts&) = delete;
  DeviceProducts& operator=(const DeviceProducts&) = delete;
  virtual ~DeviceProducts() = default;

  /// "library" or "strict".
  virtual const char* name() const noexcept = 0;

  /// Called once per layer size before the first product is recorded: allocates memory that makes
  /// products faster. Does not affect results.
  virtual void reserve(std::size_t /*inputs*/, std::size_t /*outputs*/) {}

  /// y = activation(x W + b).
  virtual void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
                       Matrix<float> y, const cuda::Stream& stream) = 0;

  /// dx = dz W^T, times the derivative of `below`, the activation that gave x.
  virtual void backward_input(Matrix<const float> dz, const LayerWeights<float>& w,
                              Matrix<const float> x, Activation below, Matrix<float> dx,
                              const cuda::Stream& stream) = 0;

  /// dW = x^T dz and db, with zero padding, summed over the rows in leaves of `leaf`; zero for B =
  /// 0. `dw` and `db` have the stored sizes.
  virtual void weight_gradients(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                                std::span<float> dw, std::span<float> db,
                                const cuda::Stream& stream) = 0;
};

/// Weights in panels; every element is the expression of numerics/strict.hpp, hence the same bits
/// as on the processor. For at most `rows` rows.
std::unique_ptr<DeviceProducts> make_strict_device_products(std::size_t rows);

/// Row-major weights; cuBLASLt with bias and activation in its epilogues. For at most `rows` rows.
/// Sums are in cuBLASLt's order and ignore `leaf`; relu may turn NaN into 0, as in cuBLASLt.
/// Errors   calls throw ConfigError (2) for shapes without an algorithm in cuBLASLt.
std::unique_ptr<DeviceProducts> make_library_device_products(std::size_t rows, Precision precision);

}  // namespace lockstep
