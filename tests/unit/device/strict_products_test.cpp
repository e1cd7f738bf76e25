#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "tests/support/device.hpp"
#include "tests/unit/device/strict_case.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// One sum of products in double, and the sum of their sizes.
struct Wide {
  double sum = 0;
  double size = 0;

  void add(double a, double b) {
    sum += a * b;
    size += std::abs(a * b);
  }
  bool is_near(float value, std::size_t terms) const {
    return std::abs(value - sum) <= 1e-7 * static_cast<double>(terms + 2) * size + 1e-30;
  }
};

}  // namespace

TEST_CASE("device: strict products give the processor's bits in any shape", "[device]") {
  const Seeded seeded(GENERATE(from_range(seeds())));
  // The number of multiprocessors decides which tile takes the least time. With these shapes 132,
  // as an H100's, take the smallest ones alone; 1, 2 and 5 take all others, and groups of leaves.
  const int multiprocessors = GENERATE(1, 2, 5, 132);
  set_multiprocessors(multiprocessors);
  const std::size_t shapes[][4] = {
      {1, 1, 1, 1},       {0, 5, 17, 16},      {7, 3, 10, 1},      {16, 33, 65, 1},
      {7, 129, 19, 3},    {16, 70, 16, 3},     {65, 20, 12, 16},   {128, 37, 10, 16},
      {129, 50, 70, 3},   {129, 18, 130, 8},   {300, 140, 30, 1},  {300, 24, 23, 32},
      {131, 9, 260, 16},  {16, 300, 20, 2},    {250, 10, 245, 1},  {250, 245, 10, 2},
      {170, 61, 125, 16}, {120, 125, 60, 8},   {120, 125, 61, 3},  {96, 20, 64, 16},
      {96, 64, 20, 16},   {300, 128, 128, 16}, {300, 128, 120, 8}, {300, 120, 125, 3},
  };
  for (const auto& s : shapes) {
    for (const auto kind : {Values::ordinary, Values::special}) {
      const Case c(s[0], s[1], s[2], s[3], kind);
      const bool special = kind == Values::special;
      compare(c, special ? Activation::relu : Activation::identity, special);
    }
  }
  set_multiprocessors(132);
}

TEST_CASE("device: strict sums over many leaves are the processor's, however they are grouped",
          "[device]") {
  const std::size_t leaf = GENERATE(1, 2, 3, 8, 16, 24, 300, 5000);
  for (const std::size_t rows : {1, 17, 128, 300, 1025}) {
    compare(Case(rows, 5, 7, leaf, Values::special), Activation::relu, false);
    compare(Case(rows, 5, 7, leaf, Values::special), Activation::relu, true);
  }
}

TEST_CASE("device: strict products of no rows write zeros alone", "[device]") {
  const Case c(0, 5, 17, 4, Values::ordinary);
  const cuda::Stream stream;
  const auto products = make_strict_device_products(4);
  CaseOnDevice device{c};
  device.enqueue(*products, Activation::relu, stream);
  const auto r = device.read(stream);
  REQUIRE(bits(r.dw) == std::vector<std::uint32_t>(c.layout.size(), 0));
  REQUIRE(bits(r.db) == std::vector<std::uint32_t>(32, 0));
}

TEST_CASE("device: strict products are near to those in double", "[device]") {
  const Case c(70, 40, 33, 16, Values::ordinary);
  const cuda::Stream stream;
  const auto products = make_strict_device_products(c.rows);
  products->reserve(c.inputs, c.outputs);
  CaseOnDevice device{c};
  device.enqueue(*products, Activation::identity, stream);
  const auto r = device.read(stream);
  const auto w = [&](std::size_t k, std::size_t j) {
    return c.weights().values[c.layout.index(k, j)];
  };
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t j = 0; j < c.outputs; ++j) {
      Wide z;
      z.add(c.bias.span()[j], 1);
      for (std::size_t k = 0; k < c.inputs; ++k) z.add(c.xs()(i, k), w(k, j));
      REQUIRE(z.is_near(r.y[i * c.outputs + j], c.inputs));
    }
    for (std::size_t k = 0; k < c.inputs; ++k) {
      Wide d;
      for (std::size_t j = 0; j < c.outputs; ++j) d.add(c.dzs()(i, j), w(k, j));
      REQUIRE(d.is_near(r.dx[i * c.inputs + k], c.outputs));
    }
  }
  for (std::size_t j = 0; j < c.outputs; ++j) {
    Wide b;
    for (std::size_t i = 0; i < c.rows; ++i) b.add(c.dzs()(i, j), 1);
    REQUIRE(b.is_near(r.db[j], c.rows));
    for (std::size_t k = 0; k < c.inputs; ++k) {
      Wide d;
      for (std::size_t i = 0; i < c.rows; ++i) d.add(c.xs()(i, k), c.dzs()(i, j));
      REQUIRE(d.is_near(r.dw[c.layout.index(k, j)], c.rows));
    }
  }
}

TEST_CASE("device: strict products repeat in a graph", "[device]") {
  Case c(33, 20, 10, 4, Values::ordinary);
  const cuda::Stream stream;
  const auto products = make_strict_device_products(c.rows);
  products->reserve(c.inputs, c.outputs);
  CaseOnDevice device{c};
  const auto graph =
      cuda::Graph::record(stream, [&] { device.enqueue(*products, Activation::relu, stream); });
  graph.enqueue(stream);
  require_same(device.read(stream), on_processor(c, Activation::relu));
  for (float& value : c.x) value += 1;
  device.x.write(c.x, stream);
  graph.enqueue(stream);
  require_same(device.read(stream), on_processor(c, Activation::relu));
}
