#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lib/base/aligned.hpp"
#include "lib/numerics/cuda/device_products.hpp"
#include "lib/numerics/strict.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/unit/device/device_memory.hpp"

using namespace lockstep;

namespace {

enum class Values { ordinary, special };

void fill(std::span<float> values, std::mt19937& random, Values kind) {
  const float special[] = {-0.0F,
                           1e-40F,
                           -1e-45F,
                           3e38F,
                           -1e-38F,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::quiet_NaN()};
  for (float& value : values) {
    value = std::normal_distribution<float>()(random);
    if (random() % 4 == 0) value = random() % 2 == 0 ? 0.0F : -0.0F;
    if (kind == Values::special && random() % 200 == 0) value = special[random() % 8];
    // Products below the least number: chains that begin with -0.
    if (kind == Values::special && random() % 2 == 0) value *= 1e-30F;
  }
}

/// One layer and one batch, here and on the device.
struct Case {
  std::size_t rows, inputs, outputs, leaf;
  Panels layout{inputs, outputs};
  std::vector<float> x, dz;
  AlignedBuffer<float> w, bias;

  Case(std::size_t b, std::size_t i, std::size_t o, std::size_t l, Values kind)
      : rows(b),
        inputs(i),
        outputs(o),
        leaf(l),
        x(b * i),
        dz(b * o),
        w(layout.size()),
        bias(round_to_unit(o)) {
    std::mt19937 random(static_cast<unsigned>(b * 1000003 + i * 1009 + o * 31 + l));
    std::vector<float> logical(i * o);
    fill(logical, random, kind);
    fill(bias.span().first(o), random, kind);
    fill(x, random, kind);
    fill(dz, random, kind);
    to_panels({logical.data(), i, o}, layout, w.span());
  }

  Matrix<const float> xs() const { return {x.data(), rows, inputs}; }
  Matrix<const float> dzs() const { return {dz.data(), rows, outputs}; }
  PanelWeights weights() const { return {layout, w.span()}; }
};

struct Results {
  std::vector<float> y, dx, dw, db;
};

Results on_processor(const Case& c, Activation activation) {
  const StrictProducts& p = strict_products(Simd::automatic);
  AlignedBuffer<float> dw(c.layout.size());
  AlignedBuffer<float> db(round_to_unit(c.outputs));
  AlignedBuffer<float> scratch(strict_scratch_size(c.rows, c.outputs));
  Results r{std::vector<float>(c.rows * c.outputs), std::vector<float>(c.rows * c.inputs), {}, {}};
  p.forward(c.xs(), c.weights(), c.bias.span(), activation, {r.y.data(), c.rows, c.outputs},
            Chain::begins);
  p.backward_input(c.dzs(), c.weights(), c.xs(), activation, {r.dx.data(), c.rows, c.inputs},
                   Chain::begins, scratch.span());
  p.backward_weights(c.xs(), c.dzs(), c.leaf, c.layout.all(), dw.span(), scratch.span());
  p.backward_bias(c.dzs(), c.leaf, {0, db.size()}, db.span(), scratch.span());
  r.dw.assign(dw.span().begin(), dw.span().end());
  r.db.assign(db.span().begin(), db.span().end());
  return r;
}

/// A case's operands and results in device memory.
struct OnDevice {
  const Case& c;
  Guarded<float> x{c.x}, dz{c.dz}, w{c.w.span()}, bias{c.bias.span()};
  Guarded<float> y{std::vector<float>(c.rows * c.outputs, 7.0F)};
  Guarded<float> dx{std::vector<float>(c.rows * c.inputs, 7.0F)};
  Guarded<float> dw{std::vector<float>(c.layout.size(), 7.0F)};
  Guarded<float> db{std::vector<float>(round_to_unit(c.outputs), 7.0F)};

  void enqueue(DeviceProducts& p, Activation activation, const cuda::Stream& stream) const {
    const LayerWeights<float> weights{c.inputs, c.outputs, w.span(), bias.span()};
    const Matrix<const float> xs(x.data(), c.rows, c.inputs);
    const Matrix<const float> dzs(dz.data(), c.rows, c.outputs);
    p.forward(xs, weights, activation, {y.data(), c.rows, c.outputs}, stream);
    p.backward_input(dzs, weights, xs, activation, {dx.data(), c.rows, c.inputs}, stream);
    p.weight_gradients(xs, dzs, c.leaf, dw.span(), db.span(), stream);
  }
  Results read(const cuda::Stream& stream) {
    Results r{y.read(stream), dx.read(stream), dw.read(stream), db.read(stream)};
    REQUIRE(y.intact());
    REQUIRE(dx.intact());
    REQUIRE(dw.intact());
    REQUIRE(db.intact());
    return r;
  }
};

void require_same(const Results& device, const Results& processor) {
  REQUIRE(bits(device.y) == bits(processor.y));
  REQUIRE(bits(device.dx) == bits(processor.dx));
  REQUIRE(bits(device.dw) == bits(processor.dw));
  REQUIRE(bits(device.db) == bits(processor.db));
}

void compare(const Case& c, Activation activation, bool reserved) {
  INFO("B " << c.rows << ", I " << c.inputs << ", O " << c.outputs << ", leaf " << c.leaf
            << (reserved ? ", reserved" : ""));
  const cuda::Stream stream;
  const auto products = make_strict_device_products(c.rows);
  if (reserved) products->reserve(c.inputs, c.outputs);
  OnDevice device{c};
  device.enqueue(*products, activation, stream);
  require_same(device.read(stream), on_processor(c, activation));
}

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
  const auto order = GENERATE(fake_cuda::Order::ascending, fake_cuda::Order::descending);
  fake_cuda::set_order(order);
  // Tiles of rows are 32, 64 or 128 high, those of weights 32 or 128; the fake's device has two
  // multiprocessors.
  const std::size_t shapes[][4] = {
      {1, 1, 1, 1},      {0, 5, 17, 16},    {7, 3, 10, 1},     {16, 33, 65, 1},  {7, 129, 19, 3},
      {16, 70, 16, 3},   {65, 20, 12, 16},  {128, 37, 10, 16}, {129, 50, 70, 3}, {129, 18, 130, 8},
      {300, 140, 30, 1}, {300, 24, 23, 32}, {131, 9, 260, 16}, {16, 300, 20, 2},
  };
  for (const auto& s : shapes) {
    for (const auto kind : {Values::ordinary, Values::special}) {
      const Case c(s[0], s[1], s[2], s[3], kind);
      const bool special = kind == Values::special;
      compare(c, special ? Activation::relu : Activation::identity, special);
    }
  }
  fake_cuda::set_order(fake_cuda::Order::ascending);
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
  OnDevice device{c};
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
  OnDevice device{c};
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
  OnDevice device{c};
  const auto graph =
      cuda::Graph::record(stream, [&] { device.enqueue(*products, Activation::relu, stream); });
  graph.enqueue(stream);
  require_same(device.read(stream), on_processor(c, Activation::relu));
  for (float& value : c.x) value += 1;
  cuda::PinnedBuffer<float> host(c.x.size());
  std::copy(c.x.begin(), c.x.end(), host.span().begin());
  cuda::copy(host.span(), device.x.span(), stream);
  graph.enqueue(stream);
  require_same(device.read(stream), on_processor(c, Activation::relu));
}
