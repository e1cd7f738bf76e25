#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/optim/cuda/device_adam.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "tests/unit/device/device_memory.hpp"

using namespace lockstep;

namespace {

constexpr optim::OptimizerOptions options;
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

  optim::Optimizer adam{count, options, {}};
  std::vector<float> expected{start};

  Guarded<float> values{start}, first{std::vector<float>(count)}, second{std::vector<float>(count)};
  Guarded<float> part_memory{parts};
  Guarded<std::size_t> offset_memory{offsets};
  Guarded<std::uint8_t> merges{merges_of(offsets.size(), sums)};
  Guarded<optim::AdamFactors> factors{std::vector<optim::AdamFactors>(1)};
  Guarded<int> not_finite{std::vector<int>(1)};

  cuda::DeviceAdamSlice on_device() const {
    return {.values = values.data(),
            .first = first.data(),
            .second = second.data(),
            .count = count,
            .parts = part_memory.data(),
            .offsets = offset_memory.data(),
            .merges = merges.data(),
            .part_count = offsets.size(),
            .factors = factors.data(),
            .not_finite = not_finite.data()};
  }

  /// Puts the step's factors where the kernel finds them.
  void set_factors(std::uint64_t step, std::uint64_t examples, const cuda::Stream& stream) const {
    optim::OptimizerScalars state;
    while (state.steps < step) state.advance(options);
    cuda::PinnedBuffer<optim::AdamFactors> host(1);
    host.span()[0] = optim::adam_factors(options, options.learning_rate, state, examples);
    cuda::copy(host.span(), factors.span(), stream);
    stream.synchronise();
  }

  bool update_here(std::uint64_t examples) {
    auto left = parts;
    for (const TreeSum& sum : sums) {
      for (std::size_t i = 0; i < count; ++i) {
        left[offsets[sum.left] + i] = left[offsets[sum.left] + i] + left[offsets[sum.right] + i];
      }
    }
    return adam.update(expected, std::span(left).subspan(offsets[0], count), examples, 0, {});
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

Slice make_slice(std::size_t count, const std::vector<Subtree>& parts) {
  std::vector<std::size_t> offsets;
  // The last part stands first, so that addresses do not follow the tree.
  for (std::size_t p = 0; p < parts.size(); ++p) {
    offsets.push_back((p + 1) % parts.size() * (count + gap));
  }
  return {count, sums_of(parts), offsets, random_floats(count, 1),
          random_floats(parts.size() * (count + gap), 2)};
}

}  // namespace

TEST_CASE("device: sum and Adam have the processor's bits for any ranks", "[device]") {
  for (std::size_t ranks = 1; ranks <= 16; ++ranks) {
    for (const std::size_t leaves : {1, 3, 8, 13, 31, 100}) {
      INFO(ranks << " ranks, " << leaves << " leaves");
      Slice slice = make_slice(48, parts_of(ranks, leaves));
      const cuda::Stream stream;
      for (std::uint64_t step = 1; step <= 3; ++step) {
        slice.set_factors(step, 10 + step, stream);
        cuda::check_sums(slice.on_device(), stream);
        cuda::sum_and_update(slice.on_device(), stream);
        REQUIRE(slice.update_here(10 + step));
        slice.require_same(stream);
      }
      REQUIRE(slice.not_finite.read(stream)[0] == 0);
    }
  }
}

TEST_CASE("device: a recorded update takes the factors of the step in which it runs", "[device]") {
  Slice slice = make_slice(4096, parts_of(3, 7));
  const cuda::Stream stream;
  const auto graph =
      cuda::Graph::record(stream, [&] { cuda::sum_and_update(slice.on_device(), stream); });
  for (std::uint64_t step = 1; step <= 40; ++step) {  // moments decay to dust
    slice.set_factors(step, 128 + step, stream);
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
    slice.set_factors(1, 4, stream);
    const auto before = slice.values.read(stream);
    cuda::check_sums(slice.on_device(), stream);
    REQUIRE(slice.not_finite.read(stream)[0] == 1);
    REQUIRE(bits(slice.values.read(stream)) == bits(before));
    slice.not_finite = Guarded<int>(std::vector<int>(1));
    cuda::sum_and_update(slice.on_device(), stream);
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
  cuda::sum_and_update(slice.on_device(), stream);
  slice.require_same(stream);
}
