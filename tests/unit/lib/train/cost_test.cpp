// The work of a step, against counts by hand; and the limits of the processor, which are rates.
#include "lockstep/train/cost.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/numerics/machine.hpp"
#include "lockstep/numerics/strict.hpp"
#include "lockstep/train/evaluation.hpp"

namespace lockstep::train {
namespace {

data::Plan plan_of(std::uint64_t ranks) {
  return data::Plan({.records = 80, .batch_size = 32, .ranks = ranks, .drop_remainder = true});
}

constexpr double weights = 4 * 3 + 3 + 3 * 2 + 2;

TEST_CASE("the work of a step is that of the formulae", "[work]") {
  const nn::NetworkShape shape(4, {3}, 2);
  ReplicaOptions options;
  options.exchange = Exchange::activations;
  const double ranks = GENERATE(1.0, 2.0, 4.0);
  const StepWork work = work_of(shape, plan_of(static_cast<std::uint64_t>(ranks)), options, 1);
  CHECK(work.data.bytes == 32 * 4 * (1 + 4));
  CHECK(work.forward.flops == 2 * 32 * (4 * 3 + 3 * 2));
  CHECK(work.forward.bytes == 4 * (32 * (4 + 3 + 3 + 2) + ranks * weights));
  CHECK(work.backward.flops == 2 * 32 * (4 * 3 + 3 * 2 + 3 * 2));  // dW, dW, dX of the second
  CHECK(work.backward.bytes ==
        4 * (32 * (4 + 3 + 3 + 2) + weights) + 4 * (32 * (2 * 3 + 2) + ranks * (3 * 2 + 2)));
  CHECK(work.exchange.bytes == 8 * (ranks - 1) * 32 * (4 + 3 + 3 + 2));
  CHECK(work.update.bytes == 4 * 7 * weights);
  CHECK(work.publish.bytes == 8 * (ranks - 1) * weights);
  CHECK(work.flops() == work.forward.flops + work.backward.flops);
  CHECK(work.bytes() ==
        work.data.bytes + work.exchange.bytes + work.update.bytes + work.publish.bytes);
  CHECK(work.resident == 4 * (weights * (1 + 3 / ranks) + 32 * (4 + 2 * 3 + 2 * 2)));
}

TEST_CASE("of ranks that share a replica, whole layers count once a rank", "[work]") {
  const nn::NetworkShape shape(4, {48, 30}, 2);  // columns, rows, none
  const double shared = 4 * 48 + 48 + 48 * 30 + 30;
  const double weights_of_all = shared + 2 * (30 * 2 + 2);
  const StepWork work = work_of(shape, plan_of(1), {}, 1, 2);
  CHECK(work.data.bytes == 2 * 32 * 4 * (1 + 4));
  CHECK(work.forward.flops == 2 * 32 * (4 * 48 + 48 * 30 + 2 * 30 * 2));
  CHECK(work.forward.bytes ==
        4 * (32 * ((2 * 4 + 48) + (48 + 2 * 30) + (2 * 30 + 2 * 2)) + weights_of_all));
  CHECK(work.exchange.bytes == 0);
  CHECK(work.update.bytes == 4 * 7 * weights_of_all);
  CHECK(work.publish.bytes == 0);
  CHECK(work.resident == 4 * (weights_of_all / 2 * 4 + 32 * (4 + 2 * 24 + 2 * 30 + 2 * 2)));
  const StepWork two = work_of(shape, plan_of(2), {.exchange = Exchange::activations}, 1, 2);
  // x, dz and y of columns in halves, y of rows and dz of both layers above.
  CHECK(two.exchange.bytes == 8 * 32 * (2 * 4 + 48 + 48 + 2 * 30 + 2 * 30 + 2 * 2));
  CHECK(two.publish.bytes == 8 * weights_of_all);
  const ReplicaBuffers buffers = training_buffers(shape, plan_of(1), {});
  CHECK(buffers.bytes(shape, 1, 1) - buffers.bytes(shape, 2, 1) == 4 * buffers.blocks * shared / 2);
}

TEST_CASE("a rank without examples does not read the weights", "[work]") {
  const nn::NetworkShape shape(4, {3}, 2);
  const data::Plan plan({.records = 80, .batch_size = 1, .ranks = 4});
  const StepWork work = work_of(shape, plan, {}, 1);
  CHECK(work.forward.bytes == 4 * ((4 + 3 + 3 + 2) + weights));
}

TEST_CASE("an evaluation needs no more rows of a network than a batch of 128", "[work]") {
  const nn::NetworkShape shape(4, {3}, 2);
  for (const int ranks : {1, 2, 8, 16}) {
    const ReplicaBuffers buffers = evaluation_buffers(ranks, {});
    const std::size_t piece = evaluation_batch / static_cast<std::size_t>(ranks);
    CHECK(buffers.rows == std::min<std::size_t>(128, piece));
    CHECK(buffers.read_rows == (piece > 128 ? static_cast<double>(piece) : 0));
    CHECK(training_buffers(shape, plan_of(static_cast<std::uint64_t>(ranks)), {}).rows ==
          buffers.rows);
  }
}

TEST_CASE("blocks of memory as long as the weights", "[work]") {
  const nn::NetworkShape shape(4, {3}, 2);
  CHECK(evaluation_buffers(2, {}).blocks == 2);
  const auto trained = [&](optim::OptimizerKind kind, Reduction reduction) {
    ReplicaOptions options;
    options.optimizer.kind = kind;
    options.reduction = reduction;
    if (reduction == Reduction::canonical) options.exchange = Exchange::activations;
    return training_buffers(shape, plan_of(4), options).blocks;
  };
  CHECK(trained(optim::OptimizerKind::sgd, Reduction::canonical) == 2);
  CHECK(trained(optim::OptimizerKind::adam, Reduction::canonical) == 2.5);  // a quarter of both
  CHECK(trained(optim::OptimizerKind::adam, Reduction::allreduce) == 4);
  const auto blocks = [&](Exchange exchange, std::uint64_t ranks) {
    ReplicaOptions options;
    options.exchange = exchange;
    return training_buffers(shape, plan_of(ranks), options).blocks;
  };
  for (const std::uint64_t ranks : {1, 2, 4}) {
    CHECK(blocks(Exchange::partial_sums, ranks) ==
          blocks(Exchange::activations, ranks) + (ranks == 1 ? 1 : 2));
  }
}

TEST_CASE("a micro-batch holds the largest leaf of any step", "[work]") {
  const data::Plan plan({.records = 2100,  // a leaf has 8 examples in step 0 and 16 in step 2
                         .batch_size = 191,
                         .ranks = 3,
                         .drop_remainder = true,
                         .policy = data::ShardPolicy::file,
                         .rebatch = data::Rebatch::balanced,
                         .file_records = {100, 1000, 1000}});
  ReplicaOptions options;
  options.micro_batch = 8;
  CHECK_THROWS_WITH(training_buffers({4, {3}, 2}, plan, options),
                    Catch::Contains("use `micro_batch=16` or more"));
  options.micro_batch = 16;
  CHECK(training_buffers({4, {3}, 2}, plan, options).exchange == Exchange::partial_sums);
}

TEST_CASE("the exchange of sums and of whole gradients", "[work]") {
  const nn::NetworkShape shape(4, {3}, 2);
  ReplicaOptions options;
  options.exchange = Exchange::partial_sums;
  options.optimizer.kind = optim::OptimizerKind::sgd;
  const StepWork sums = work_of(shape, plan_of(2), options, 4);
  CHECK(sums.exchange.bytes == 8 * weights);
  CHECK(sums.update.bytes == 4 * 3 * weights + 4 * 2 * weights);
  CHECK(sums.resident == 4 * (weights * (1 + 2) + 16 * (4 + 2 * 3 + 2 * 2)));
  options.exchange = Exchange::automatic;
  options.reduction = Reduction::allreduce;
  const StepWork whole = work_of(shape, plan_of(2), options, 4);
  CHECK(whole.exchange.bytes == 4 * 5 * weights);
  CHECK(whole.update.bytes == 2 * 4 * 3 * weights);
  CHECK(whole.publish.bytes == 0);
  CHECK(whole.flops() == sums.flops());
}

TEST_CASE("frozen layers have no weight gradients", "[work]") {
  std::vector<nn::LayerSpec> hidden = {nn::Dense{.width = 3}};
  hidden[0].frozen = true;
  const nn::NetworkShape shape(nn::flat(4), hidden, 2);
  const StepWork work = work_of(shape, plan_of(1), {}, 4);
  CHECK(work.forward.flops == 2 * 32 * (4 * 3 + 3 * 2));
  CHECK(work.backward.flops == 2 * 32 * 3 * 2);
}

TEST_CASE("the limits of the processor are measured in its vectors", "[work]") {
  CHECK_THROWS_AS(measured_flops(Simd::scalar, Precision::float32, 0.001), ConfigError);
  if (strict_products(Simd::automatic).simd == Simd::scalar) {
    WARN("SKIPPED: this processor has no AVX2, AVX-512 or NEON, so its limits are not measured");
    return;
  }
  const TimedWork flops = measured_flops(Simd::automatic, Precision::float32, 0.001);
  CHECK(flops.rate() > 1e8);
  CHECK(flops.end - flops.begin >= 0.001);
  BandwidthProbe probe(1);
  CHECK(probe.bytes() >= 4096);
  CHECK(probe.measured(Simd::automatic, 0.001).rate() > 1e7);
}

}  // namespace
}  // namespace lockstep::train
