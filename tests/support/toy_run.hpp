// A whole training run of a toy network on one rank, for parity tests over any communicator.
#pragma once

#include <functional>
#include <vector>

#include "collectives/communicator.hpp"
#include "lib/train/device.hpp"
#include "lib/train/tensor_parallel.hpp"
#include "lib/train/trainer.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/toy_source.hpp"

namespace lockstep {

struct ToyRun {
  std::uint64_t records = 203;
  std::uint64_t batch_size = 24;
  std::uint64_t leaf = 0;
  bool canonical = true;
  train::Exchange exchange = train::Exchange::automatic;
  data::ShardPolicy policy = data::ShardPolicy::data;
  data::Rebatch rebatch = data::Rebatch::ceil;
  std::vector<std::uint64_t> files = {};  ///< records of each, summing up to `records`
  std::vector<std::size_t> hidden = {19, 8};
  std::vector<nn::LayerSpec> layers = {};  ///< instead of hidden, on images of 3 x 4
  std::uint64_t model = 1;                 ///< ranks that share out dense layers
  Simd simd = Simd::automatic;
  int threads = 1;
  std::optional<std::uint64_t> audit_every = std::nullopt;
  const nn::Loss<float>* loss = nullptr;  ///< null: softmax cross-entropy
  /// Called before every step (from 1) with the rank's network: where a test disturbs a replica.
  std::function<void(nn::Network<float>&, int rank, std::uint64_t step)> disturb = {};
  /// Wraps a rank's products.
  std::function<std::unique_ptr<Products<float>>(std::unique_ptr<Products<float>>, int rank)> wrap =
      {};
  /// Makes a rank's replica on a device, for as many rows, from weights on the host.
  std::function<std::unique_ptr<train::DeviceReplica>(nn::Network<float>&, std::size_t rows,
                                                      comm::Communicator&)>
      device = {};
  std::uint64_t epochs = 3;
  float learning_rate = 0.01F;
  std::optional<std::uint64_t> steps = std::nullopt;
  std::optional<std::uint64_t> hash_every = std::nullopt;
  std::uint64_t sentinel_steps = train::Sentinel::default_parts;
};

/// What a run leaves behind.
struct ToyResult {
  std::vector<float> weights;
  train::RunReport report;
};

inline ToyResult train_toy(comm::Communicator& all, const ToyRun& run,
                           const std::vector<train::Observer*>& observers = {}) {
  const auto mesh =
      train::make_mesh(all, {static_cast<std::uint64_t>(all.size()) / run.model, run.model});
  const train::Groups groups(*mesh);
  comm::Communicator& comm = groups.batch;
  constexpr std::size_t features = 12;
  constexpr int classes = 4;
  ToySource training(run.records, features, classes, 1);
  ToySource test(97, features, classes, 2);
  const data::Plan plan({.records = run.records,
                         .batch_size = run.batch_size,
                         .ranks = static_cast<std::uint64_t>(comm.size()),
                         .leaf = run.leaf,
                         .shuffle = data::Shuffle::global,
                         .policy = run.policy,
                         .rebatch = run.rebatch,
                         .file_records = run.files});
  const data::Plan test_plan = train::evaluation_plan(test.records(), comm.size());
  const nn::NetworkShape shape =
      run.layers.empty() ? nn::NetworkShape(features, run.hidden, classes)
                         : nn::NetworkShape(nn::FeatureShape{3, 4, 1, true}, run.layers, classes);
  const optim::AdamOptions adam = {.learning_rate = static_cast<double>(run.learning_rate)};
  const train::CanonicalOptions options = {adam, &plan, run.audit_every};
  const auto exchange = train::chosen_exchange(run.exchange, options, shape);
  const auto rows = run.canonical ? train::rows_needed(exchange, plan) : plan.largest_piece();
  auto products = run.canonical ? make_strict_products(run.simd) : make_library_products<float>();
  if (run.wrap) products = run.wrap(std::move(products), all.rank());
  set_product_threads(run.threads);
  const std::size_t all_rows = std::max(rows, test_plan.largest_piece());
  nn::Network<float> network(shape, run.device ? 0 : all_rows, *products,
                             run.canonical ? static_cast<std::size_t>(comm.size()) : 1,
                             comm.memory(), train::make_layers_of(shape, groups));
  nn::initialise(network, {22, 23});
  if (run.loss != nullptr) network.set_loss(*run.loss);
  const auto device = run.device ? run.device(network, all_rows, comm) : nullptr;
  const auto step = device          ? device->make_step(run.canonical, options)
                    : run.canonical ? train::make_canonical_step(network, exchange, options, comm)
                                    : train::make_allreduce_step(network, adam, comm);
  training.on_read = [&, read = std::uint64_t{0}]() mutable {
    if (run.disturb) run.disturb(network, all.rank(), ++read);
  };
  data::BatchReader train_reader(training, plan, comm.rank());
  data::BatchReader test_reader(test, test_plan, comm.rank());
  train::NetworkInference processor(network);
  train::Inference& inference = device ? device->inference() : processor;
  train::Trainer trainer({run.epochs, run.steps, std::nullopt, run.hash_every, run.sentinel_steps},
                         network, *step, inference, train_reader, test_reader, groups);
  auto report = trainer.run(all.rank() == 0 ? observers : std::vector<train::Observer*>{});
  ToyResult result{{}, std::move(report)};
  for (std::size_t t = 0; t < network.parameters().tensors().size(); ++t) {
    const auto tensor = train::whole_tensor(network.parameters(), t, groups);
    result.weights.insert(result.weights.end(), tensor.begin(), tensor.end());
  }
  return result;
}

/// That of every rank, as threads of this process.
inline std::vector<ToyResult> per_rank(int ranks, const ToyRun& run) {
  return test::per_rank(ranks, [&](comm::Communicator& comm) { return train_toy(comm, run); });
}

}  // namespace lockstep
