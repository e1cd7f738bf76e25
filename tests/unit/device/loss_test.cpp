#include "lockstep/nn/loss.hpp"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/data/stored_source.hpp"
#include "lockstep/nn/cuda/device_network.hpp"
#include "lockstep/numerics/cuda/elementwise.hpp"
#include "tests/support/device.hpp"
#include "tests/unit/device/device_memory.hpp"

using namespace lockstep;

namespace {

struct Batch {
  std::size_t rows, classes;
  std::vector<float> z;
  std::vector<std::int32_t> labels;

  Matrix<const float> logits() const { return {z.data(), rows, classes}; }
};

Batch make_batch(std::size_t rows, std::size_t classes) {
  Batch b{rows, classes, std::vector<float>(rows * classes), std::vector<std::int32_t>(rows)};
  std::mt19937 random(static_cast<unsigned>(rows * 100 + classes));
  for (float& z : b.z) z = std::normal_distribution<float>(0, 20)(random);
  // Equal logits, among them zeros of both signs.
  for (float& z : b.z) z = random() % 3 == 0 ? std::round(z / 40) : z;
  for (auto& label : b.labels) label = static_cast<std::int32_t>(random() % classes);
  return b;
}

struct Outcome {
  std::vector<nn::ExampleResult> results;
  std::vector<float> dz;
};

Outcome on_processor(const Batch& b) {
  Outcome out{std::vector<nn::ExampleResult>(b.rows), std::vector<float>(b.z.size())};
  nn::softmax_cross_entropy<float>(b.logits(), b.labels, out.results,
                                   {out.dz.data(), b.rows, b.classes});
  return out;
}

Outcome on_device(const Batch& b, bool with_gradient = true, float weight = 1) {
  const cuda::Stream stream;
  Guarded<float> weights(std::vector<float>(b.rows, weight));
  Guarded<float> z(b.z);
  Guarded<std::int32_t> labels(b.labels);
  Guarded<nn::ExampleResult> results(std::vector<nn::ExampleResult>(b.rows));
  Guarded<float> dz(std::vector<float>(b.z.size(), 7.0F));
  const Matrix<float> gradient(dz.data(), b.rows, b.classes);
  cuda::softmax_cross_entropy({z.data(), b.rows, b.classes}, labels.span(), weights.span(),
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
  }
}

}  // namespace

TEST_CASE("device: the loss has the processor's bits", "[device]") {
  const test::Seeded seeded(GENERATE(from_range(test::seeds())));
  for (const std::size_t classes : {1, 2, 10, 64, 65, 300, 2500}) {
    for (const std::size_t rows : {0, 1, 7, 64}) {
      if (rows * classes > 20000) continue;
      INFO(rows << " rows, " << classes << " classes");
      const Batch b = make_batch(rows, classes);
      require_same(on_device(b), on_processor(b));
    }
  }
}

TEST_CASE("device: the loss of logits that are not finite is the processor's", "[device]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t classes : {10, 100}) {
    Batch b = make_batch(30, classes);
    const float specials[] = {infinity, -infinity, nan, -nan, 3e38F};
    for (std::size_t i = 0; i < b.rows; ++i) {
      b.z[i * classes + (i / 10) * 4] = specials[i % 5];
      b.labels[i] = i % 2 == 0 ? 0 : 4;
    }
    require_same(on_device(b), on_processor(b));
  }
}

TEST_CASE("device: the loss has weights", "[device]") {
  const Batch b = make_batch(7, 10);
  auto processor = on_processor(b);
  for (auto& result : processor.results) result.loss *= static_cast<double>(0.3F);
  for (float& value : processor.dz) value *= 0.3F;
  const auto device = on_device(b, true, 0.3F);
  require_same(device, processor);
  CHECK(device.results[0].weight == static_cast<double>(0.3F));
}

TEST_CASE("device: the loss without a gradient writes none", "[device]") {
  const Batch b = make_batch(5, 10);
  auto processor = on_processor(b);
  processor.dz.assign(b.z.size(), 7.0F);
  require_same(on_device(b, false), processor);
}

TEST_CASE("device: the loss is near to that in double", "[device]") {
  const Batch b = make_batch(20, 10);
  const auto device = on_device(b);
  const std::vector<double> wide(b.z.begin(), b.z.end());
  std::vector<nn::ExampleResult> results(b.rows);
  std::vector<double> dz(wide.size());
  nn::softmax_cross_entropy<double>({wide.data(), b.rows, b.classes}, b.labels, results,
                                    {dz.data(), b.rows, b.classes});
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
