// A training loop of one's own: the network and the canonical step of `lockstep train`, fed by a
// distributed data set. Its weights are those of
//   lockstep train --layers 32 --train-limit 1000 --test-limit 100 --epochs 2
// for any number of replicas.
#include <algorithm>
#include <cstdio>

#include "apps/examples/replicas.hpp"
#include "lib/base/hash.hpp"
#include "lib/distribute/strategy.hpp"
#include "lib/train/step.hpp"

using namespace lockstep;

namespace {

constexpr std::uint64_t seed = 22;
constexpr std::uint64_t batch_size = 128;
constexpr std::uint64_t epochs = 2;
constexpr optim::AdamOptions adam = {.learning_rate = 0.001F};  // the command's is a float

/// The replica's network and the step that trains it.
struct Replica {
  Replica(const nn::NetworkShape& shape, const data::Plan& plan, comm::Communicator& comm)
      : exchange(train::chosen_exchange(train::Exchange::automatic, {adam, &plan}, shape)),
        products(make_strict_products(Simd::automatic)),
        network(shape, train::rows_needed(exchange, plan), *products,
                static_cast<std::size_t>(comm.size()), comm.memory()),
        step(train::make_canonical_step(network, exchange, {adam, &plan}, comm)) {
    nn::initialise(network, {seed, seed + 1});
  }

  train::Exchange exchange;
  std::unique_ptr<Products<float>> products;
  nn::Network<float> network;
  std::unique_ptr<train::Step> step;
};

/// One step on this replica's piece. Returns the tally of the global batch.
nn::Tally train_step(Replica& replica, const data::Plan& plan, std::uint64_t step,
                     std::uint64_t rank, const Tensor<float>& features,
                     const Tensor<std::int32_t>& labels) {
  const data::Range piece = plan.rows(step, rank);
  const auto inputs = replica.network.inputs(replica.step->place(piece)).flat();
  std::copy(features.values().begin(), features.values().end(), inputs.begin());
  train::PhaseSeconds seconds;
  const auto result = replica.step->run({.piece = piece,
                                         .labels = labels.values(),
                                         .ids = {},
                                         .global_examples = plan.examples(step),
                                         .leaf = plan.leaf(step),
                                         .block = plan.block(step),
                                         .summed_rows = plan.summed_rows(step),
                                         .plan = &plan,
                                         .step = step},
                                        seconds);
  if (result.finite) return result.tally;
  throw comm::AgreedError(ExitCode::diverged, "the gradient is not finite");
}

void custom_loop(comm::Communicator& comm) {
  Strategy strategy(comm);
  auto set = data::open_data_set(
      "synthetic",
      {.train_limit = 1000, .test_limit = 100, .divide_by = std::nullopt, .classes = 10});
  const std::shared_ptr<data::Source> source = std::move(set.train);
  auto data = strategy.distribute_dataset(from_source(source).shuffle(seed).batch(batch_size),
                                          {.policy = data::ShardPolicy::data, .leaf = 0});
  const data::Plan& plan = data.plan().value();
  Replica replica({source->features(), {32}, 10}, plan, comm);
  const auto rank = static_cast<std::uint64_t>(strategy.replica_id());

  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    nn::Tally sums;
    std::uint64_t step = 0;
    for (auto& batch : data) {
      strategy.run(
          [&](const Tensor<float>& features, const Tensor<std::int32_t>& labels) {
            const auto tally = train_step(replica, plan, step, rank, features, labels);
            sums.loss_sum += tally.loss_sum;
            sums.correct += tally.correct;
          },
          batch);
      ++step;
    }
    const auto examples = static_cast<double>(plan.examples_per_epoch());
    if (rank > 0) continue;
    std::printf("epoch %d: training loss %.6f, accuracy %.3f\n", static_cast<int>(epoch) + 1,
                sums.loss_sum / examples, static_cast<double>(sums.correct) / examples);
  }
  const auto hash = to_hex(nn::weights_hash(replica.network.parameters()));
  comm::require_equal(comm, "the replica", {{"the weights' hash", hash}}, "", ExitCode::invariant);
  if (rank == 0) std::printf("weights %s\n", hash.c_str());
}

}  // namespace

int main() { return apps::run_replicas(2, custom_loop); }
