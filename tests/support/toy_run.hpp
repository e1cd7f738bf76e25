// A whole training run of a toy network on one rank, for parity tests over any communicator.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "lockstep/train/step.hpp"
#include "lockstep/train/tensor_parallel.hpp"
#include "lockstep/train/trainer.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/temporary_folder.hpp"
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
  std::vector<std::uint64_t> files = {};   ///< records of each, summing up to `records`
  std::vector<std::uint64_t> shares = {};  ///< the first ones, with `balance`; empty: without
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
  /// Changes the options of a rank's replica, as for one on a device.
  std::function<void(train::ReplicaOptions&)> options = {};
  std::optional<int> slow_rank = {};  ///< which needs longer for each record
  std::chrono::microseconds slow_record = std::chrono::microseconds(2000);
  std::vector<std::pair<std::uint64_t, float>> scales = {};  ///< records, and what multiplies them
  std::function<float(std::uint64_t record)> weights = {};   ///< of training records; none: all 1
  /// To predict, for each output; none: labels.
  std::function<float(std::uint64_t record, std::size_t output)> values = {};
  std::uint64_t epochs = 3;
  float learning_rate = 0.01F;
  std::optional<std::uint64_t> steps = std::nullopt;
  std::optional<std::uint64_t> hash_every = std::nullopt;
  std::uint64_t sentinel_steps = train::ReplicaOptions().sentinel_steps;
  std::optional<std::uint64_t> checkpoint_every = std::nullopt;
  std::function<std::uint64_t(int rank)> stop = {};  ///< a rank's TrainerOptions::stop
  std::filesystem::path resume_from = {};            ///< a checkpoint; empty: from the beginning
  /// One of each rank, created if it is null: training goes on from it, and keeps its state in it.
  std::vector<std::unique_ptr<train::SharedSnapshot>>* snapshots = nullptr;
  std::uint64_t snapshot_every = 1;
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
  for (const auto& [record, factor] : run.scales) training.scale(record, factor);
  if (run.weights) training.set_weights(run.weights);
  ToySource test(97, features, classes, 2);
  if (run.values) {
    training.set_values(classes, run.values);
    test.set_values(classes, run.values);
  }
  const data::Plan plan({.records = run.records,
                         .batch_size = run.batch_size,
                         .ranks = static_cast<std::uint64_t>(comm.size()),
                         .leaf = run.leaf,
                         .shuffle = data::Shuffle::global,
                         .policy = run.policy,
                         .rebatch = run.rebatch,
                         .file_records = run.files,
                         .balance = !run.shares.empty()});
  const data::Plan test_plan = train::evaluation_plan(test.records(), comm.size());
  const nn::NetworkShape shape =
      run.layers.empty() ? nn::NetworkShape(features, run.hidden, classes)
                         : nn::NetworkShape(nn::FeatureShape{3, 4, 1, true}, run.layers, classes);
  train::ReplicaOptions options;
  options.optimizer.learning_rate = static_cast<double>(run.learning_rate);
  options.loss = run.loss;
  options.reduction = run.canonical ? train::Reduction::canonical : train::Reduction::allreduce;
  options.exchange = run.exchange;
  options.audit_every = run.audit_every;
  options.sentinel_steps = run.sentinel_steps;
  options.simd = run.simd;
  options.threads = run.threads;
  if (run.wrap) {
    options.wrap_products = [&](std::unique_ptr<Products<float>> products) {
      return run.wrap(std::move(products), all.rank());
    };
  }
  options.keeps_snapshots = run.snapshots != nullptr;
  if (run.options) run.options(options);
  train::Replica replica(shape, plan, groups, options);
  training.on_read = [&, read = std::uint64_t{0}](std::size_t records) mutable {
    if (run.disturb) run.disturb(replica.network(), all.rank(), ++read);
    if (run.slow_rank == all.rank()) std::this_thread::sleep_for(records * run.slow_record);
  };
  data::BatchReader train_reader(training, plan, comm.rank());
  if (!run.shares.empty()) train_reader.set_shares(run.shares);
  data::BatchReader test_reader(test, test_plan, comm.rank());
  train::TrainingPosition start;
  if (!run.resume_from.empty()) {
    const auto state = train::read_state(run.resume_from);
    replica.restore(train::read_description(run.resume_from), state);
    start = state.position;
  }
  train::TrainerOptions length = {run.epochs, run.steps, run.checkpoint_every, run.hash_every};
  if (run.snapshots != nullptr) {
    auto& snapshot = (*run.snapshots)[static_cast<std::size_t>(all.rank())];
    if (snapshot == nullptr) snapshot = replica.make_shared_snapshot();
    length.snapshot = snapshot.get();
    length.snapshot_every = run.snapshot_every;
    if (const auto kept = snapshot->newest(all)) {
      replica.restore(*kept);
      start = kept->state.position;
    }
  }
  if (run.stop) length.stop = [&] { return run.stop(all.rank()); };
  train::Trainer trainer(length, replica, train_reader, test_reader, start);
  auto report = trainer.run(all.rank() == 0 ? observers : std::vector<train::Observer*>{});
  auto& network = replica.network();
  ToyResult result{{}, std::move(report)};
  for (std::size_t t = 0; t < network.parameters().tensors().size(); ++t) {
    const auto& block = network.parameters();
    const auto tensor = train::whole_tensor(block.layout(), block.values(), t, groups);
    result.weights.insert(result.weights.end(), tensor.begin(), tensor.end());
  }
  return result;
}

/// Saves every checkpoint that is due in `folder`.
struct CheckpointSaver final : train::Observer {
  std::filesystem::path folder;

  explicit CheckpointSaver(std::filesystem::path its_folder) : folder(std::move(its_folder)) {}
  void on_step(const train::StepReport&) override {}
  void on_epoch(const train::EpochReport&) override {}
  void on_checkpoint(const train::DueCheckpoint& due) override {
    const train::TrainingState state = {.position = due.position, .settings = {{"a", "1"}}};
    train::save_checkpoint(folder, due.snapshot, {.step = due.step, .examples = due.examples},
                           &state);
  }
};

inline const std::vector<std::string> checkpoint_files = {
    "model.safetensors", "optimizer.safetensors", "network.json", "state.json", "manifest.json"};

/// The checkpoints of `step` in both folders have the same bytes.
inline void require_same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b,
                                    std::uint64_t step) {
  for (const auto& name : checkpoint_files) {
    INFO("step " << step << ", " << name);
    const auto file = std::filesystem::path(train::checkpoint_name(step)) / name;
    REQUIRE(test::read_bytes(a / file) == test::read_bytes(b / file));
  }
}

/// That of every rank, as threads of this process.
inline std::vector<ToyResult> per_rank(int ranks, const ToyRun& run) {
  return test::per_rank(ranks, [&](comm::Communicator& comm) { return train_toy(comm, run); });
}

}  // namespace lockstep
