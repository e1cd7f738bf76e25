// One layer's strict products, on the processor and on the device, which must give the same bits.
#pragma once

#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/numerics/cuda/device_products.hpp"
#include "lockstep/numerics/strict.hpp"
#include "tests/unit/device/device_memory.hpp"

namespace lockstep::test {

enum class Values { ordinary, special };

inline void fill(std::span<float> values, std::mt19937& random, Values kind) {
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

inline Results on_processor(const Case& c, Activation activation) {
  const StrictProducts& p = strict_products(Simd::automatic);
  AlignedBuffer<float> dw(c.layout.size());
  AlignedBuffer<float> db(round_to_unit(c.outputs));
  AlignedBuffer<float> scratch(p.input_scratch(c.rows, c.outputs));
  AlignedBuffer<float> room(p.weights_scratch(c.rows, c.outputs, c.leaf, c.layout.size()));
  Results r{std::vector<float>(c.rows * c.outputs), std::vector<float>(c.rows * c.inputs), {}, {}};
  p.forward(c.xs(), c.weights(), c.bias.span(), activation, {r.y.data(), c.rows, c.outputs},
            c.layout.columns(), Output::overwrite, Zeros::dense, {});
  p.backward_input(c.dzs(), c.weights(), c.xs(), activation, {r.dx.data(), c.rows, c.inputs},
                   {0, round_to_unit(c.inputs)}, Output::overwrite, scratch.span());
  p.backward_weights(c.xs(), c.dzs(), c.leaf, c.layout.all(), dw.span(), Zeros::dense, room.span());
  p.backward_bias(c.dzs(), c.leaf, {0, db.size()}, db.span());
  r.dw.assign(dw.span().begin(), dw.span().end());
  r.db.assign(db.span().begin(), db.span().end());
  return r;
}

/// A case's operands and results in device memory.
struct CaseOnDevice {
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

inline void require_same(const Results& device, const Results& processor) {
  REQUIRE(bits(device.y) == bits(processor.y));
  REQUIRE(bits(device.dx) == bits(processor.dx));
  REQUIRE(bits(device.dw) == bits(processor.dw));
  REQUIRE(bits(device.db) == bits(processor.db));
}

inline void compare(const Case& c, Activation activation, bool reserved) {
  INFO("B " << c.rows << ", I " << c.inputs << ", O " << c.outputs << ", leaf " << c.leaf
            << (reserved ? ", reserved" : ""));
  const cuda::Stream stream;
  const auto products = make_strict_device_products(c.rows);
  if (reserved) products->reserve(c.inputs, c.outputs);
  CaseOnDevice device{c};
  device.enqueue(*products, activation, stream);
  require_same(device.read(stream), on_processor(c, activation));
}

}  // namespace lockstep::test
