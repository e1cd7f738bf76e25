// The `library` products on the fake of cuBLASLt, against plain loops in double.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/errors.hpp"
#include "lib/numerics/cuda/device_products.hpp"
#include "tests/fakes/cuda/fake.hpp"

using namespace lockstep;

namespace {

constexpr std::size_t guard = 16;  // floats around a matrix, which stay NaN

/// Values in [-1, 1) that repeat nowhere soon.
std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1U << 23) - 1;
  }
  return values;
}

/// Device memory between guards. `shift` floats off the alignment that buffers have.
class Memory {
 public:
  explicit Memory(std::size_t count, std::size_t shift = 0)
      : buffer_(count + shift + 2 * guard), first_(guard + shift), count_(count) {}
  explicit Memory(const std::vector<float>& values, std::size_t shift = 0)
      : Memory(values.size(), shift) {
    write(values);
  }

  std::span<float> span() const { return buffer_.span().subspan(first_, count_); }
  Matrix<float> matrix(std::size_t rows, std::size_t cols) const {
    return {span().data(), rows, cols};
  }
  void write(const std::vector<float>& values) const { std::ranges::copy(values, span().begin()); }

  /// What lies there, once nothing around it was written to.
  std::vector<float> read() const {
    const auto all = buffer_.span();
    const auto untouched = [](float value) { return std::isnan(value); };
    REQUIRE(std::ranges::all_of(all.first(first_), untouched));
    REQUIRE(std::ranges::all_of(all.subspan(first_ + count_), untouched));
    const auto mine = span();
    return {mine.begin(), mine.end()};
  }

 private:
  cuda::DeviceBuffer<float> buffer_;
  std::size_t first_;
  std::size_t count_;
};

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

/// The layer in device memory.
struct OnDevice {
  explicit OnDevice(const Layer& layer, std::size_t shift = 0)
      : sizes(layer),
        x(layer.x, shift),
        w(layer.w, shift),
        bias(layer.bias, shift),
        dz(layer.dz, shift),
        y(layer.rows * layer.outputs, shift),
        dx(layer.rows * layer.inputs, shift),
        dw(layer.inputs * layer.outputs, shift),
        db(layer.outputs, shift) {}

  LayerWeights<float> weights() const {
    return {sizes.inputs, sizes.outputs, w.span(), bias.span()};
  }
  void forward(DeviceProducts& products, Activation activation) const {
    products.forward(x.matrix(sizes.rows, sizes.inputs), weights(), activation,
                     y.matrix(sizes.rows, sizes.outputs), stream);
  }
  void backward(DeviceProducts& products, Activation below) const {
    const auto in = x.matrix(sizes.rows, sizes.inputs);
    const auto out = dz.matrix(sizes.rows, sizes.outputs);
    products.backward_input(out, weights(), in, below, dx.matrix(sizes.rows, sizes.inputs), stream);
    products.weight_gradients(in, out, 16, dw.span(), db.span(), stream);
  }

  const Layer& sizes;
  cuda::Stream stream;
  Memory x, w, bias, dz, y, dx, dw, db;
};

/// Sums of at most a few hundred products of numbers below 1.
void require_close(const std::vector<float>& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double distance = std::abs(values[i] - expected[i]);
    worst = distance <= worst ? worst : distance;  // keeps NaN
  }
  REQUIRE(worst < 2e-5);
}

void require_all(const Layer& layer, DeviceProducts& products, Activation activation,
                 std::size_t shift = 0) {
  const OnDevice device(layer, shift);
  device.forward(products, activation);
  device.backward(products, activation);
  device.stream.synchronise();
  require_close(device.y.read(), layer.y(activation));
  require_close(device.dx.read(), layer.dx(activation));
  require_close(device.dw.read(), layer.dw());
  require_close(device.db.read(), layer.db());
}

std::ptrdiff_t times(const std::vector<std::string>& log, const std::string& name) {
  return std::ranges::count(log, name);
}

}  // namespace

TEST_CASE("library products on a device: every product of many shapes", "[device][products]") {
  fake_cuda::set_order(GENERATE(fake_cuda::Order::ascending, fake_cuda::Order::descending));
  const auto activation = GENERATE(Activation::identity, Activation::relu);
  const auto objects = fake_cuda::live_objects();
  {
    const auto products = make_library_device_products(128, Precision::float32);
    REQUIRE(products->name() == std::string("library"));
    for (const std::size_t rows : {0, 1, 7, 128}) {
      require_all({rows, 1, 1}, *products, activation);
      require_all({rows, 3, 5}, *products, activation);
      require_all({rows, 33, 65}, *products, activation);
      require_all({rows, 64, 10}, *products, activation);
      require_all({rows, 17, 9}, *products, activation, 1);  // aligned to nothing but a float
    }
  }
  REQUIRE(fake_cuda::live_objects() == objects);
}

TEST_CASE("library products on a device: relu's gradient is zero where its result is not positive",
          "[device][products]") {
  Layer layer{1, 5, 3};
  layer.x = {0.0F, -0.0F, -1.0F, NAN, 1e-30F};
  const auto products = make_library_device_products(1, Precision::float32);
  const OnDevice device(layer);
  device.backward(*products, Activation::relu);
  device.stream.synchronise();
  const auto dx = device.dx.read();
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(dx[i] == 0);
  REQUIRE(dx[4] == Approx(layer.dx(Activation::identity)[4]));
}

TEST_CASE("library products on a device: what the precision drops", "[device][products]") {
  Layer layer{1, 1, 1};
  layer.w = {1};
  layer.bias = {0};
  const auto seen = [&](Precision precision, float value) {
    layer.x = {value};
    const auto products = make_library_device_products(1, precision);
    const OnDevice device(layer);
    device.forward(*products, Activation::identity);
    device.stream.synchronise();
    return device.y.read()[0];
  };
  const float fine = 1 + std::ldexp(1.0F, -12);
  const float coarse = 1 + std::ldexp(1.0F, -9);
  REQUIRE(seen(Precision::float32, fine) == fine);
  REQUIRE(seen(Precision::tf32, fine) == 1);
  REQUIRE(seen(Precision::tf32, coarse) == coarse);
  REQUIRE(seen(Precision::bf16, coarse) == 1);
}

TEST_CASE("library products on a device: bias gradients where the library has none fused",
          "[device][products]") {
  fake_cuda::set_order(GENERATE(fake_cuda::Order::ascending, fake_cuda::Order::descending));
  Layer layer{70, 9, 37};
  const auto products = make_library_device_products(70, Precision::float32);
  const OnDevice device(layer);
  fake_cuda::take_log();
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", cudaErrorNotSupported);
  for (const std::uint32_t seed : {8, 9}) {
    layer.dz = numbers(layer.dz.size(), seed);
    device.dz.write(layer.dz);
    products->weight_gradients(device.x.matrix(70, 9), device.dz.matrix(70, 37), 16,
                               device.dw.span(), device.db.span(), device.stream);
    cudaGetLastError();
    device.stream.synchronise();
    require_close(device.dw.read(), layer.dw());
    require_close(device.db.read(), layer.db());
  }
  const auto log = fake_cuda::take_log();
  REQUIRE(times(log, "kernel") == 2);
  REQUIRE(times(log, "cublasLtMatmulAlgoGetHeuristic") == 2);  // both answers are remembered
}

TEST_CASE("library products on a device: a graph repeats them on what its memory holds then",
          "[device][products]") {
  const Layer first{7, 33, 10};
  Layer second = first;
  second.x = numbers(first.x.size(), 5);
  second.w = numbers(first.w.size(), 6);
  second.bias = numbers(first.bias.size(), 7);
  const auto products = make_library_device_products(7, Precision::float32);
  products->reserve(33, 10);
  const OnDevice device(first);
  fake_cuda::take_log();
  const auto graph = cuda::Graph::record(device.stream, [&] {
    device.forward(*products, Activation::relu);
    device.backward(*products, Activation::relu);
  });
  const auto log = fake_cuda::take_log();
  REQUIRE(times(log, "cublasLtMatmul") == 3);
  REQUIRE(times(log, "cublasLtMatmulAlgoGetHeuristic") == 0);
  REQUIRE(times(log, "cudaMalloc") == 0);
  for (const auto* layer : std::array<const Layer*, 2>{&first, &second}) {
    device.x.write(layer->x);
    device.w.write(layer->w);
    device.bias.write(layer->bias);
    graph.enqueue(device.stream);
    device.stream.synchronise();
    require_close(device.y.read(), layer->y(Activation::relu));
    require_close(device.dx.read(), layer->dx(Activation::relu));
    require_close(device.dw.read(), layer->dw());
    require_close(device.db.read(), layer->db());
  }
}

TEST_CASE("library products on a device: an algorithm is chosen once", "[device][products]") {
  const Layer layer{5, 4, 8};
  const auto products = make_library_device_products(5, Precision::tf32);
  const OnDevice device(layer);
  fake_cuda::take_log();
  for (int i = 0; i < 3; ++i) device.forward(*products, Activation::relu);
  REQUIRE(times(fake_cuda::take_log(), "cublasLtMatmulAlgoGetHeuristic") == 1);
}

TEST_CASE("library products on a device: no rows, no work", "[device][products]") {
  const Layer layer{0, 4, 8};
  const auto products = make_library_device_products(0, Precision::float32);
  products->reserve(4, 8);
  const OnDevice device(layer);
  fake_cuda::take_log();
  device.forward(*products, Activation::relu);
  device.backward(*products, Activation::relu);
  const auto log = fake_cuda::take_log();
  REQUIRE(times(log, "cublasLtMatmul") + times(log, "kernel") == 0);
  device.stream.synchronise();
  REQUIRE(device.dw.read() == std::vector<float>(32));
  REQUIRE(device.db.read() == std::vector<float>(8));
}

TEST_CASE("library products on a device: failures name the call, the device and the sizes",
          "[device][products]") {
  const Layer layer{5, 4, 8};
  const auto products = make_library_device_products(5, Precision::bf16);
  const OnDevice device(layer);
  const auto forward = [&] { device.forward(*products, Activation::relu); };

  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", cudaErrorNotSupported);
  REQUIRE_THROWS_AS(forward(), ConfigError);
  REQUIRE_THROWS_WITH(forward(), Catch::Contains("cuBLASLt has no algorithm on device 0 for "
                                                 "[8, 4] x [4, 5], epilogue 6 in bf16"));
  const auto backward = [&] { device.backward(*products, Activation::identity); };
  fake_cuda::fail("cublasLtMatmul", cudaErrorLaunchFailure);
  REQUIRE_THROWS_AS(backward(), cuda::DeviceError);
  fake_cuda::fail("cublasLtMatmul", cudaErrorLaunchFailure);
  REQUIRE_THROWS_WITH(backward(), Catch::Contains("cublasLtMatmul on device 0: ") &&
                                      Catch::Contains("(CUBLAS_STATUS_EXECUTION_FAILED)"));

  fake_cuda::fail("cublasLtCreate", cudaErrorMemoryAllocation);
  REQUIRE_THROWS_WITH(
      make_library_device_products(5, Precision::float32),
      Catch::Contains("cublasLtCreate on device 0: the device's memory is used up"));
  for (const char* call :
       {"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic"}) {
    const auto fresh = make_library_device_products(5, Precision::float32);
    fake_cuda::fail(call, cudaErrorInvalidValue);
    REQUIRE_THROWS_WITH(device.forward(*fresh, Activation::relu),
                        Catch::Contains(std::string(call) + " on device 0: ") &&
                            Catch::Contains("(CUBLAS_STATUS_INVALID_VALUE)"));
  }
  cudaGetLastError();
}
