#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "tests/support/device.hpp"
#include "tests/unit/device/layer_case.hpp"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("library products on a device: every product of many shapes", "[device][products]") {
  const Seeded seeded(GENERATE(from_range(seeds())));
  const auto activation = GENERATE(Activation::identity, Activation::relu);
  const auto objects = live_objects();
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
  REQUIRE(live_objects() == objects);
}

TEST_CASE("library products on a device: relu's gradient is zero where its result is not positive",
          "[device][products]") {
  Layer layer{1, 5, 3};
  layer.x = {0.0F, -0.0F, -1.0F, NAN, 1e-30F};
  const auto products = make_library_device_products(1, Precision::float32);
  LayerOnDevice device(layer);
  device.backward(*products, Activation::relu);
  const auto dx = device.dx.read(device.stream);
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(dx[i] == 0);
  REQUIRE(dx[4] == Approx(layer.dx(Activation::identity)[4]));
}

TEST_CASE("library products on a device: less precision, and near nevertheless",
          "[device][products]") {
  const auto activation = GENERATE(Activation::identity, Activation::relu);
  const Layer layer{64, 33, 65};
  const auto tf32 = make_library_device_products(64, Precision::tf32);
  require_all(layer, *tf32, activation, 0, 0.02);
  const auto bf16 = make_library_device_products(64, Precision::bf16);
  require_all(layer, *bf16, activation, 0, 0.15);
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
  LayerOnDevice device(first);
  const auto graph = cuda::Graph::record(device.stream, [&] {
    device.forward(*products, Activation::relu);
    device.backward(*products, Activation::relu);
  });
  for (const auto* layer : std::array<const Layer*, 2>{&first, &second}) {
    device.x.write(layer->x, device.stream);
    device.w.write(layer->w, device.stream);
    device.bias.write(layer->bias, device.stream);
    graph.enqueue(device.stream);
    require_results(device, *layer, Activation::relu);
  }
}

TEST_CASE("library products on a device: no rows, no products", "[device][products]") {
  const Layer layer{0, 4, 8};
  const auto products = make_library_device_products(0, Precision::float32);
  products->reserve(4, 8);
  LayerOnDevice device(layer);
  device.forward(*products, Activation::relu);
  device.backward(*products, Activation::relu);
  REQUIRE(device.dw.read(device.stream) == std::vector<float>(32));
  REQUIRE(device.db.read(device.stream) == std::vector<float>(8));
}
