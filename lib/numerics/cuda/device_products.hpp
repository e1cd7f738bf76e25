// The three products of a dense layer on a device: products.hpp, on device memory and in a stream.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/base/cuda/runtime.hpp"
#include "lib/numerics/matrix.hpp"
#include "lib/numerics/products.hpp"

namespace lockstep {

/// Multiplies for one rank's replica on a device.
///
/// Spans and matrices lie in the memory of the device that was current when the object was made;
/// weights are stored there as by the products of the same name on the processor, so that a block
/// is copied unchanged. Shapes as in Products; B may be 0. Every call only enqueues: results are
/// complete when the stream reaches them. Calls may be recorded in a graph. One thread calls, and
/// the work of one call ends before that of the next begins: they may share scratch memory. Errors
/// throws cuda::DeviceError.
class DeviceProducts {
 public:
  DeviceProducts() = default;
  DeviceProducts(const DeviceProducts&) = delete;
  DeviceProducts& operator=(const DeviceProducts&) = delete;
  virtual ~DeviceProducts() = default;

  /// "library" or "strict".
  virtual const char* name() const noexcept = 0;

  /// Called once for each layer's sizes before the first product is recorded: allocates memory
  /// that makes them faster. Results do not depend on it.
  virtual void reserve(std::size_t /*inputs*/, std::size_t /*outputs*/) {}

  /// y = activation(x W + b).
  virtual void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
                       Matrix<float> y, const cuda::Stream& stream) = 0;

  /// dx = dz W^T, times the derivative of `below`, the activation that gave x.
  virtual void backward_input(Matrix<const float> dz, const LayerWeights<float>& w,
                              Matrix<const float> x, Activation below, Matrix<float> dx,
                              const cuda::Stream& stream) = 0;

  /// dW = x^T dz and db, its padding zero, summed over the rows in leaves of `leaf`; zero for
  /// B = 0. `dw` and `db` are of the stored sizes.
  virtual void weight_gradients(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                                std::span<float> dw, std::span<float> db,
                                const cuda::Stream& stream) = 0;
};

/// Weights in panels; every element is the expression of numerics/strict.hpp, hence the same bits
/// as on the processor. For at most `rows` rows.
std::unique_ptr<DeviceProducts> make_strict_device_products(std::size_t rows);

/// Row-major weights; cuBLASLt with bias and activation in its epilogues. For at most `rows` rows.
/// Sums run in the library's order, whatever `leaf` is; relu may turn NaN into 0, as the library's
/// does.
/// Errors   calls throw ConfigError (2) for shapes that the library has no algorithm for.
std::unique_ptr<DeviceProducts> make_library_device_products(std::size_t rows, Precision precision);

}  // namespace lockstep
