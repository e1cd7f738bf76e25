// What the library products ask of cuBLASLt, how they fail, and what a precision drops.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/support/device.hpp"
#include "tests/unit/device/layer_case.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::ptrdiff_t times(const std::vector<std::string>& log, const std::string& name) {
  return std::ranges::count(log, name);
}

}  // namespace

TEST_CASE("library products on a device: what the precision drops", "[device][products]") {
  Layer layer{1, 1, 1};
  layer.w = {1};
  layer.bias = {0};
  const auto seen = [&](Precision precision, float value) {
    layer.x = {value};
    const auto products = make_library_device_products(1, precision);
    LayerOnDevice device(layer);
    device.forward(*products, Activation::identity);
    return device.y.read(device.stream)[0];
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
  const Seeded seeded(GENERATE(from_range(seeds())));
  Layer layer{70, 9, 37};
  const auto products = make_library_device_products(70, Precision::float32);
  LayerOnDevice device(layer);
  fake_cuda::take_log();
  fake_cuda::fail("cublasLtMatmulAlgoGetHeuristic", cudaErrorNotSupported);
  for (const std::uint32_t seed : {8, 9}) {
    layer.dz = numbers(layer.dz.size(), seed);
    device.dz.write(layer.dz, device.stream);
    device.weight_gradients(*products);
    cudaGetLastError();
    require_close(device.dw.read(device.stream), layer.dw(), float32_error);
    require_close(device.db.read(device.stream), layer.db(), float32_error);
  }
  const auto log = fake_cuda::take_log();
  REQUIRE(times(log, "kernel") == 2);
  REQUIRE(times(log, "cublasLtMatmulAlgoGetHeuristic") == 2);  // both answers are remembered
}

TEST_CASE("library products on a device: recording takes no memory and asks for no algorithm",
          "[device][products]") {
  const Layer layer{7, 33, 10};
  const auto products = make_library_device_products(7, Precision::float32);
  products->reserve(33, 10);
  const LayerOnDevice device(layer);
  fake_cuda::take_log();
  const auto graph = cuda::Graph::record(device.stream, [&] {
    device.forward(*products, Activation::relu);
    device.backward(*products, Activation::relu);
  });
  const auto log = fake_cuda::take_log();
  REQUIRE(times(log, "cublasLtMatmul") == 3);
  REQUIRE(times(log, "cublasLtMatmulAlgoGetHeuristic") == 0);
  REQUIRE(times(log, "cudaMalloc") == 0);
}

TEST_CASE("library products on a device: an algorithm is chosen once", "[device][products]") {
  const Layer layer{5, 4, 8};
  const auto products = make_library_device_products(5, Precision::tf32);
  const LayerOnDevice device(layer);
  fake_cuda::take_log();
  for (int i = 0; i < 3; ++i) device.forward(*products, Activation::relu);
  REQUIRE(times(fake_cuda::take_log(), "cublasLtMatmulAlgoGetHeuristic") == 1);
}

TEST_CASE("library products on a device: no rows, no work", "[device][products]") {
  const Layer layer{0, 4, 8};
  const auto products = make_library_device_products(0, Precision::float32);
  products->reserve(4, 8);
  const LayerOnDevice device(layer);
  fake_cuda::take_log();
  device.forward(*products, Activation::relu);
  device.backward(*products, Activation::relu);
  const auto log = fake_cuda::take_log();
  REQUIRE(times(log, "cublasLtMatmul") + times(log, "kernel") == 0);
}

TEST_CASE("library products on a device: failures name the call, the device and the sizes",
          "[device][products]") {
  const Layer layer{5, 4, 8};
  const auto products = make_library_device_products(5, Precision::bf16);
  const LayerOnDevice device(layer);
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
