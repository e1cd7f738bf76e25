#include "lockstep/optim/optimizer.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/optim/cuda/device_optimizer.hpp"
#include "tests/unit/device/device_memory.hpp"

using namespace lockstep;

namespace {

constexpr std::size_t gap = 16;  // between parts

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::normal_distribution<float>()(random);
    if (random() % 3 == 0) value *= 1e-25F;  // dust, and what moments decay to
    if (random() % 5 == 0) value = 0;
  }
  return values;
}

/// The subtrees of `ranks` ranks that hold `leaves` leaves as a step deals them.
std::vector<Subtree> parts_of(std::size_t ranks, std::size_t leaves) {
  const std::size_t each = (leaves + ranks - 1) / ranks;
  std::vector<Subtree> parts;
  for (std::size_t begin = 0; begin < leaves; begin += each) {
    const auto own = aligned_subtrees(begin, std::min(leaves, begin + each), leaves);
    parts.insert(parts.end(), own.begin(), own.end());
  }
  return parts;
}

/// A slice with the parts of a step, on the device and by the processor's code.
struct Slice {
  std::size_t count;
  std::vector<TreeSum> sums;
  std::vector<std::size_t> offsets;
  std::vector<float> start, parts;
  optim::OptimizerOptions options = {};
  std::vector<optim::UpdatedTensor> tensors = {};

  optim::Optimizer here{count, options, tensors};
  optim::UpdatePasses update_passes{options, tensors};
  std::vector<float> expected{start};

  Guarded<float> values{start}, first{std::vector<float>(count)}, second{std::vector<float>(count)};
  Guarded<float> part_memory{parts};
  Guarded<std::size_t> offset_memory{offsets};
  Guarded<std::uint8_t> merges{merges_of(offsets.size(), sums)};
  Guarded<optim::PassFactors> factors{std::vector<optim::PassFactors>(4)};
  Guarded<int> not_finite{std::vector<int>(1)};

  cuda::DeviceUpdateSlice on_device() const {
    return {.values = values.data(),
            .first = first.data(),
            .second = second.data(),
            .count = count,
            .parts = part_memory.data(),
            .offsets = offset_memory.data(),
            .merges = merges.data(),
            .part_count = offsets.size(),
            .not_finite = not_finite.data()};
  }

  /// Begins the next step: its passes, with factors where the kernels find them.
  std::vector<optim::RangePass> begin(double weight, const cuda::Stream& stream) {
    const auto passes = update_passes.begin(count, weight, here.scalars().steps);
    cuda::PinnedBuffer<optim::PassFactors> host(passes.size());
    std::transform(passes.begin(), passes.end(), host.data(),
                   [](const optim::RangePass& pass) { return pass.factors; });
    cuda::copy(host.span(), factors.span(), stream);
    stream.synchronise();
    return {passes.begin(), passes.end()};
  }

  void enqueue(const std::vector<optim::RangePass>& passes, const cuda::Stream& stream) const {
    for (std::size_t i = 0; i < passes.size(); ++i) {
      cuda::run_pass(passes[i].pass, on_device(), passes[i].range, factors.data() + i, stream);
    }
  }

  std::vector<float> gradient_sums() const {
    auto left = parts;
    for (const TreeSum& sum : sums) {
      for (std::size_t i = 0; i < count; ++i) {
        left[offsets[sum.left] + i] = left[offsets[sum.left] + i] + left[offsets[sum.right] + i];
      }
    }
    const auto sum = std::span(left).subspan(offsets[0], count);
    return {sum.begin(), sum.end()};
  }

  bool update_here(double weight) {
    const auto all = gradient_sums();
    return here.update(expected, std::array{optim::GradientSums{all}}, weight, here.scalars().steps,
                       {});
  }

  void require_same(const cuda::Stream& stream) {
    REQUIRE(bits(values.read(stream)) == bits(expected));
    first.read(stream);
    second.read(stream);
    REQUIRE(values.intact());
    REQUIRE(first.intact());
    REQUIRE(second.intact());
  }
};

Slice make_slice(std::size_t count, const std::vector<Subtree>& parts,
                 const optim::OptimizerOptions& options = {},
                 const std::vector<optim::UpdatedTensor>& tensors = {}) {
  std::vector<std::size_t> offsets;
  // The last part stands first, so that addresses do not follow the tree.
  for (std::size_t p = 0; p < parts.size(); ++p) {
    offsets.push_back((p + 1) % parts.size() * (count + gap));
  }
  return {count,
          sums_of(parts),
          offsets,
          random_floats(count, 1),
          random_floats(parts.size() * (count + gap), 2),
          options,
          tensors};
}

/// A vector, a tensor that is frozen, and another; of 96 weights.
const std::vector<optim::UpdatedTensor> three_tensors = {
    {.range = {0, 16}, .vector = true}, {.range = {16, 48}, .frozen = true}, {.range = {48, 96}}};

const std::vector<optim::OptimizerOptions> all_options = {
    {.kind = optim::OptimizerKind::sgd},
    {.kind = optim::OptimizerKind::sgd, .momentum = 0.9, .weight_decay = 0.1},
    {.kind = optim::OptimizerKind::sgd, .momentum = 0.9, .nesterov = true, .clip_value = 1e-3},
    {.kind = optim::OptimizerKind::adam, .weight_decay = 0.1},
    {.kind = optim::OptimizerKind::adam, .clip_value = 1e-3},
    {.kind = optim::OptimizerKind::adam, .clip_norm = 0.02},
    {.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1},
    {.kind = optim::OptimizerKind::lamb, .weight_decay = 0.1},
    {.kind = optim::OptimizerKind::lamb, .clip_norm = 0.02},
    {.kind = optim::OptimizerKind::lars, .momentum = 0.9, .weight_decay = 0.1}};

}  // namespace

TEST_CASE("device: sum and Adam have the processor's bits for any ranks", "[device]") {
  for (std::size_t ranks = 1; ranks <= 16; ++ranks) {
    for (const std::size_t leaves : {1, 3, 8, 13, 31, 100}) {
      INFO(ranks << " ranks, " << leaves << " leaves");
      Slice slice = make_slice(48, parts_of(ranks, leaves));
      const cuda::Stream stream;
      for (int step = 1; step <= 3; ++step) {
        const double weight = 10.5 + step;
        const auto passes = slice.begin(weight, stream);
        cuda::check_sums(slice.on_device(), slice.factors.data(), stream);
        slice.enqueue(passes, stream);
        REQUIRE(slice.update_here(weight));
        slice.require_same(stream);
      }
      REQUIRE(slice.not_finite.read(stream)[0] == 0);
    }
  }
}

TEST_CASE("device: a recorded update takes the factors of the step in which it runs", "[device]") {
  Slice slice = make_slice(4096, parts_of(3, 7));
  const cuda::Stream stream;
  const optim::RangePass whole = {.pass = optim::Pass::adam, .range = {0, 4096}, .factors = {}};
  const auto graph = cuda::Graph::record(stream, [&] { slice.enqueue({whole}, stream); });
  for (int step = 1; step <= 40; ++step) {  // moments decay to dust
    slice.begin(128 + step, stream);
    graph.enqueue(stream);
    REQUIRE(slice.update_here(128 + step));
    slice.require_same(stream);
    std::fill(slice.parts.begin(), slice.parts.end(), step < 3 ? 1e-20F : 0.0F);
    slice.part_memory.write(slice.parts, stream);
  }
}

TEST_CASE("device: an update tells of gradients that are not finite", "[device]") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 3e38F, 4e19F}) {
    Slice slice = make_slice(64, parts_of(2, 2));
    const std::size_t at = 37;
    for (const std::size_t offset : slice.offsets) slice.parts[offset + at] = bad;
    slice.part_memory = Guarded<float>(slice.parts);
    const cuda::Stream stream;
    const auto passes = slice.begin(4, stream);
    const auto before = slice.values.read(stream);
    cuda::check_sums(slice.on_device(), slice.factors.data(), stream);
    REQUIRE(slice.not_finite.read(stream)[0] == 1);
    REQUIRE(bits(slice.values.read(stream)) == bits(before));
    slice.not_finite = Guarded<int>(std::vector<int>(1));
    slice.enqueue(passes, stream);
    REQUIRE(slice.not_finite.read(stream)[0] == 1);
    REQUIRE(slice.not_finite.intact());
    REQUIRE(!slice.update_here(4));
    auto values = slice.values.read(stream);
    values[at] = slice.expected[at] = 0;
    REQUIRE(bits(values) == bits(slice.expected));
  }
}

TEST_CASE("device: an update of nothing does nothing", "[device]") {
  Slice slice = make_slice(0, parts_of(1, 1));
  const cuda::Stream stream;
  slice.enqueue(slice.begin(1, stream), stream);
  slice.require_same(stream);
}

TEST_CASE("device: every pass has the processor's bits, tensor by tensor", "[device]") {
  for (const optim::OptimizerOptions& options : all_options) {
    if (optim::needs_norms(options)) continue;
    INFO(optim::name_of(options.kind) << ", decay " << options.weight_decay);
    Slice slice = make_slice(96, parts_of(3, 7), options, three_tensors);
    const cuda::Stream stream;
    for (int step = 1; step <= 4; ++step) {
      slice.enqueue(slice.begin(6.25, stream), stream);
      REQUIRE(slice.update_here(6.25));
      slice.require_same(stream);
    }
    REQUIRE(slice.not_finite.read(stream)[0] == 0);
    const auto values = slice.values.read(stream);
    CHECK(std::equal(values.begin() + 16, values.begin() + 48, slice.start.begin() + 16));
  }
}

TEST_CASE("device: sums of squares are exact", "[device]") {
  using Squared = optim::UpdateKernels::Squared;
  constexpr std::size_t count = 20000;  // several blocks
  const optim::OptimizerOptions options = {.kind = optim::OptimizerKind::lamb};
  Slice slice = make_slice(count, parts_of(2, 5), options, {{.range = {0, count}}});
  const cuda::Stream stream;
  Guarded<unsigned long long> words(std::vector<unsigned long long>(ExactSquares::words, 0ULL));
  optim::PassFactors factors = {};
  factors.inverse_weight = 0.125F;
  slice.factors.write(std::vector<optim::PassFactors>(4, factors), stream);
  const auto value_of = [&](Squared what, Range range) {
    cuda::clear(words.span(), stream);
    cuda::add_squares(what, slice.on_device(), range, slice.factors.data(), words.data(), stream);
    const auto sum = words.read(stream);
    const std::vector<std::uint64_t> all(sum.begin(), sum.end());
    return ExactSquares::value(std::span(all).first<ExactSquares::words>());
  };
  const auto expected = [](std::vector<float> numbers, Range range) {
    ExactSquares squares;
    squares.add(std::span(numbers).subspan(range.begin, range.size()));
    return ExactSquares::value(squares.sum());
  };
  for (const Range range : {Range{0, count}, Range{64, 84}, Range{16, 8208}, Range{32, 32}}) {
    CHECK(value_of(Squared::weights, range) == expected(slice.start, range));
    std::vector<float> means = slice.gradient_sums();
    for (float& mean : means) {
      mean *= 0.125F;
      if (std::abs(mean) < optim::min_gradient) mean = 0;
    }
    CHECK(value_of(Squared::gradients, range) == expected(means, range));
  }
  slice.start[70] = std::numeric_limits<float>::infinity();
  slice.values.write(slice.start, stream);
  CHECK(std::isnan(value_of(Squared::weights, {64, 84})));
}
