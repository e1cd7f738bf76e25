#include "lockstep/nn/loss.hpp"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lockstep/data/stored_source.hpp"
#include "lockstep/nn/cuda/device_network.hpp"
#include "lockstep/numerics/cuda/elementwise.hpp"
#include "tests/support/device.hpp"
#include "tests/unit/device/device_memory.hpp"

using namespace lockstep;

namespace {

struct Batch {
  std::size_t rows, outputs;
  std::vector<float> z;
  std::vector<std::int32_t> labels;
  std::vector<float> values;
  std::vector<float> weights;

  Matrix<const float> logits() const { return {z.data(), rows, outputs}; }
};

const nn::Loss<float>& loss_named(const std::string& name) {
  const auto* const loss = nn::built_in_loss<float>(name);
  REQUIRE(loss != nullptr);
  return *loss;
}

const std::vector<std::string>& all_losses() {
  static const std::vector<std::string> names = {
      nn::default_loss,   nn::smoothed_loss(0.1), nn::squared_error,  nn::regression_loss,
      nn::absolute_error, nn::huber_loss(0.75),   nn::huber_loss(30), nn::binary_cross_entropy};
  return names;
}

Batch make_batch(std::size_t rows, std::size_t outputs, nn::TargetKind kind) {
  Batch b{rows, outputs, std::vector<float>(rows * outputs), {}, {}, std::vector<float>(rows, 1)};
  std::mt19937 random(static_cast<unsigned>(rows * 100 + outputs));
  for (float& z : b.z) z = std::normal_distribution<float>(0, 20)(random);
  // Equal logits, among them zeros of both signs.
  for (float& z : b.z) z = random() % 3 == 0 ? std::round(z / 40) : z;
  if (kind == nn::TargetKind::label) {
    for (std::size_t i = 0; i < rows; ++i) {
      b.labels.push_back(static_cast<std::int32_t>(random() % outputs));
    }
    return b;
  }
  for (const float z : b.z) {  // some are met
    const bool is_met = random() % 4 == 0;
    b.values.push_back(kind == nn::TargetKind::flags ? (is_met == (z > 0) ? 1.0F : 0.0F)
                       : is_met                      ? z
                                                     : std::round(z + 3));
  }
  return b;
}

struct Outcome {
  std::vector<nn::ExampleResult> results;
  std::vector<float> dz;
};

/// What Network::loss() computes.
Outcome on_processor(const nn::Loss<float>& loss, const Batch& b) {
  Outcome out{std::vector<nn::ExampleResult>(b.rows), std::vector<float>(b.z.size())};
  loss.run(b.logits(), {b.labels, b.values}, out.results, {out.dz.data(), b.rows, b.outputs});
  for (std::size_t i = 0; i < b.rows; ++i) {
    out.results[i].weight = static_cast<double>(b.weights[i]);
    out.results[i].loss = nn::weighted(out.results[i].loss, out.results[i].weight);
    for (std::size_t j = i * b.outputs; j < (i + 1) * b.outputs; ++j) {
      out.dz[j] = nn::weighted(out.dz[j], b.weights[i]);
    }
  }
  return out;
}

Outcome on_device(const nn::Loss<float>& loss, const Batch& b, bool with_gradient = true) {
  const cuda::Stream stream;
  Guarded<float> weights(b.weights);
  Guarded<float> z(b.z);
  Guarded<std::int32_t> labels(b.labels);
  Guarded<float> values(b.values);
  Guarded<nn::ExampleResult> results(std::vector<nn::ExampleResult>(b.rows));
  Guarded<float> dz(std::vector<float>(b.z.size(), 7.0F));
  const Matrix<float> gradient(dz.data(), b.rows, b.outputs);
  nn::Targets targets = {labels.span(), values.span()};
  targets.weights = weights.span();
  cuda::run_loss(nn::formula_of(loss).value(), {z.data(), b.rows, b.outputs}, targets,
                 results.span(), with_gradient ? gradient : Matrix<float>(), stream);
  Outcome out{results.read(stream), dz.read(stream)};
  REQUIRE(results.intact());
  REQUIRE(dz.intact());
  return out;
}

void require_same(const Outcome& device, const Outcome& processor) {
  REQUIRE(bits(device.dz) == bits(processor.dz));
  for (std::size_t i = 0; i < device.results.size(); ++i) {
    const double loss = processor.results[i].loss;
    INFO("row " << i);
    if (std::isnan(loss)) {
      REQUIRE(std::isnan(device.results[i].loss));
    } else {
      REQUIRE(std::bit_cast<std::uint64_t>(device.results[i].loss) ==
              std::bit_cast<std::uint64_t>(loss));
    }
    REQUIRE(device.results[i].correct == processor.results[i].correct);
    REQUIRE(device.results[i].weight == processor.results[i].weight);
  }
}

}  // namespace

TEST_CASE("device: losses have the processor's bits", "[device]") {
  const test::Seeded seeded(GENERATE(from_range(test::seeds())));
  for (const std::string& name : all_losses()) {
    const auto& loss = loss_named(name);
    for (const std::size_t outputs : {1, 2, 10, 64, 65, 300, 2500}) {
      for (const std::size_t rows : {0, 1, 7, 64}) {
        if (rows * outputs > 20000) continue;
        INFO(name << ", " << rows << " rows, " << outputs << " outputs");
        const Batch b = make_batch(rows, outputs, loss.target());
        require_same(on_device(loss, b), on_processor(loss, b));
      }
    }
  }
}

TEST_CASE("device: the loss of logits that are not finite is the processor's", "[device]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto& loss = loss_named(nn::default_loss);
  for (const std::size_t classes : {10, 100}) {
    Batch b = make_batch(30, classes, loss.target());
    const float specials[] = {infinity, -infinity, nan, -nan, 3e38F};
    for (std::size_t i = 0; i < b.rows; ++i) {
      b.z[i * classes + (i / 10) * 4] = specials[i % 5];
      b.labels[i] = i % 2 == 0 ? 0 : 4;
    }
    require_same(on_device(loss, b), on_processor(loss, b));
  }
}

TEST_CASE("device: losses of outputs that are not finite are not finite", "[device]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const std::string& name : all_losses()) {
    const auto& loss = loss_named(name);
    for (const float special : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      INFO(name << " of " << special);
      Batch b = make_batch(1, 2, loss.target());
      b.z[1] = special;
      const double expected = on_processor(loss, b).results[0].loss;
      CHECK(std::isfinite(on_device(loss, b).results[0].loss) == std::isfinite(expected));
    }
  }
}

TEST_CASE("device: losses have weights", "[device]") {
  for (const std::string& name : all_losses()) {
    const auto& loss = loss_named(name);
    Batch b = make_batch(7, 10, loss.target());
    b.weights = {0.3F, 2, 1, 0, 1e-30F, 0.7F, 5};
    INFO(name);
    require_same(on_device(loss, b), on_processor(loss, b));
  }
}

TEST_CASE("device: an example of weight 0 adds 0, whatever its loss", "[device]") {
  for (const std::string& name : all_losses()) {
    const auto& loss = loss_named(name);
    Batch b = make_batch(1, 2, loss.target());
    b.weights = {0};
    b.z[1] = std::numeric_limits<float>::infinity();
    const Outcome found = on_device(loss, b);
    INFO(name);
    CHECK(std::bit_cast<std::uint64_t>(found.results[0].loss) == 0);
    CHECK(bits(found.dz) == std::vector<std::uint32_t>{0, 0});
  }
}

TEST_CASE("device: a loss without a gradient writes none", "[device]") {
  for (const std::string& name : all_losses()) {
    const auto& loss = loss_named(name);
    const Batch b = make_batch(5, 10, loss.target());
    auto processor = on_processor(loss, b);
    processor.dz.assign(b.z.size(), 7.0F);
    require_same(on_device(loss, b, false), processor);
  }
}

TEST_CASE("device: the loss is near to that in double", "[device]") {
  const auto& loss = loss_named(nn::default_loss);
  const Batch b = make_batch(20, 10, loss.target());
  const auto device = on_device(loss, b);
  const std::vector<double> wide(b.z.begin(), b.z.end());
  std::vector<nn::ExampleResult> results(b.rows);
  std::vector<double> dz(wide.size());
  nn::softmax_cross_entropy<double>({wide.data(), b.rows, b.outputs}, b.labels, results,
                                    {dz.data(), b.rows, b.outputs});
  for (std::size_t i = 0; i < b.rows; ++i) {
    REQUIRE(device.results[i].loss == Approx(results[i].loss).epsilon(1e-6).margin(2e-5));
  }
  for (std::size_t i = 0; i < dz.size(); ++i) {
    REQUIRE(device.dz[i] == Approx(dz[i]).epsilon(1e-5).margin(1e-6));
  }
}

TEST_CASE("device: bytes become the processor's floats", "[device]") {
  for (const float divisor : {255.0F, 1.0F, 0.3F, 127.5F}) {
    for (const std::size_t count : {0, 1, 3, 4, 259, 1027}) {
      for (const std::size_t offset : {0, 1}) {
        const cuda::Stream stream;
        std::vector<std::uint8_t> bytes(count + offset);
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
        const Guarded<std::uint8_t> from(bytes);
        Guarded<float> to(std::vector<float>(count, 7.0F));
        cuda::divide_bytes(from.span().subspan(offset), divisor, to.span(), stream);
        std::vector<float> expected(count);
        data::ByteScale(divisor).apply(std::span(bytes).subspan(offset), expected);
        REQUIRE(bits(to.read(stream)) == bits(expected));
        REQUIRE(to.intact());
      }
    }
  }
}
