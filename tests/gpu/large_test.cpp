// Shapes that fill a real device: fakes are too slow for them, and take smaller tiles.
#include <catch2/catch.hpp>

#include "tests/unit/device/layer_case.hpp"
#include "tests/unit/device/strict_case.hpp"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("device: strict products of large layers have the processor's bits", "[device][large]") {
  const std::size_t shapes[][4] = {
      {128, 784, 700, 16},   {128, 700, 500, 16}, {1024, 784, 700, 16},  {4096, 500, 10, 16},
      {16384, 784, 700, 16}, {999, 513, 257, 7},  {1024, 4096, 4096, 16}};
  for (const auto& s : shapes) {
    compare(Case(s[0], s[1], s[2], s[3], Values::ordinary), Activation::relu, true);
  }
}

TEST_CASE("device: library products of the tutorial's layer are near to those in double",
          "[device][large]") {
  const Layer layer{128, 784, 700};
  for (const auto& [precision, error] :
       {std::pair(Precision::float32, 3e-4), {Precision::tf32, 0.05}, {Precision::bf16, 0.4}}) {
    INFO("error " << error);
    const auto products = make_library_device_products(128, precision);
    products->reserve(784, 700);
    require_all(layer, *products, Activation::relu, 0, error);
  }
}
