// One layer's library products on a device, and what they should give, by plain loops in double.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/numerics/cuda/device_products.hpp"
#include "tests/support/greatest_error.hpp"
#include "tests/unit/device/device_memory.hpp"

namespace lockstep::test {

/// Values in [-1, 1) that repeat nowhere soon.
inline std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1U << 23) - 1;
  }
  return values;
}

/// A layer's matrices and vectors on the host, and all that its products should give in double.
struct Layer {
  std::size_t rows, inputs, outputs;
  std::vector<float> x = numbers(rows * inputs, 1);
  std::vector<float> w = numbers(inputs * outputs, 2);
  std::vector<float> bias = numbers(outputs, 3);
  std::vector<float> dz = numbers(rows * outputs, 4);

  std::vector<double> y(Activation activation) const {
    std::vector<double> result;
    for (std::size_t b = 0; b < rows; ++b) {
      for (std::size_t o = 0; o < outputs; ++o) {
        double sum = bias[o];
        for (std::size_t i = 0; i < inputs; ++i) {
          sum += double{x[b * inputs + i]} * w[i * outputs + o];
        }
        result.push_back(activation == Activation::relu ? std::max(sum, 0.0) : sum);
      }
    }
    return result;
  }
  std::vector<double> dx(Activation below) const {
    std::vector<double> result;
    for (std::size_t b = 0; b < rows; ++b) {
      for (std::size_t i = 0; i < inputs; ++i) {
        double sum = 0;
        for (std::size_t o = 0; o < outputs; ++o) {
          sum += double{dz[b * outputs + o]} * w[i * outputs + o];
        }
        result.push_back(below == Activation::identity || x[b * inputs + i] > 0 ? sum : 0);
      }
    }
    return result;
  }
  std::vector<double> dw() const {
    std::vector<double> result(inputs * outputs);
    for (std::size_t b = 0; b < rows; ++b) {
      for (std::size_t i = 0; i < inputs; ++i) {
        for (std::size_t o = 0; o < outputs; ++o) {
          result[i * outputs + o] += double{x[b * inputs + i]} * dz[b * outputs + o];
        }
      }
    }
    return result;
  }
  std::vector<double> db() const {
    std::vector<double> result(outputs);
    for (std::size_t b = 0; b < rows; ++b) {
      for (std::size_t o = 0; o < outputs; ++o) result[o] += dz[b * outputs + o];
    }
    return result;
  }
};

inline std::vector<float> unset(std::size_t count) {
  return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
}

/// The layer in device memory.
struct LayerOnDevice {
  explicit LayerOnDevice(const Layer& layer, std::size_t shift = 0)
      : sizes(layer),
        x(layer.x, shift),
        w(layer.w, shift),
        bias(layer.bias, shift),
        dz(layer.dz, shift),
        y(unset(layer.rows * layer.outputs), shift),
        dx(unset(layer.rows * layer.inputs), shift),
        dw(unset(layer.inputs * layer.outputs), shift),
        db(unset(layer.outputs), shift) {}

  LayerWeights<float> weights() const {
    return {sizes.inputs, sizes.outputs, w.span(), bias.span()};
  }
  Matrix<const float> inputs() const { return {x.data(), sizes.rows, sizes.inputs}; }
  Matrix<const float> gradients() const { return {dz.data(), sizes.rows, sizes.outputs}; }
  void forward(DeviceProducts& products, Activation activation) const {
    products.forward(inputs(), weights(), activation, {y.data(), sizes.rows, sizes.outputs},
                     stream);
  }
  void backward(DeviceProducts& products, Activation below) const {
    products.backward_input(gradients(), weights(), inputs(), below,
                            {dx.data(), sizes.rows, sizes.inputs}, stream);
    weight_gradients(products);
  }
  void weight_gradients(DeviceProducts& products) const {
    products.weight_gradients(inputs(), gradients(), 16, dw.span(), db.span(), stream);
  }

  const Layer& sizes;
  cuda::Stream stream;
  Guarded<float> x, w, bias, dz, y, dx, dw, db;
};

/// Sums of at most a few hundred products of numbers below 1, in float32.
constexpr double float32_error = 2e-5;

inline void require_close(const std::vector<float>& values, const std::vector<double>& expected,
                          double error) {
  REQUIRE(values.size() == expected.size());
  REQUIRE(greatest_error(values, expected) < error);
}

/// What the device has computed, with nothing around it written to.
inline void require_results(LayerOnDevice& device, const Layer& layer, Activation activation,
                            double error = float32_error) {
  require_close(device.y.read(device.stream), layer.y(activation), error);
  require_close(device.dx.read(device.stream), layer.dx(activation), error);
  require_close(device.dw.read(device.stream), layer.dw(), error);
  require_close(device.db.read(device.stream), layer.db(), error);
  REQUIRE((device.y.intact() && device.dx.intact()));
  REQUIRE((device.dw.intact() && device.db.intact()));
}

inline void require_all(const Layer& layer, DeviceProducts& products, Activation activation,
                        std::size_t shift = 0, double error = float32_error) {
  LayerOnDevice device(layer, shift);
  device.forward(products, activation);
  device.backward(products, activation);
  require_results(device, layer, activation, error);
}

}  // namespace lockstep::test
