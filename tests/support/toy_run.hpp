// A whole training run of a toy network on one rank, for parity tests over any communicator.
#pragma once

#include <vector>

#include "collectives/communicator.hpp"
#include "lib/train/trainer.hpp"
#include "tests/support/toy_source.hpp"

namespace lockstep {

struct ToyRun {
  std::uint64_t records = 203;
  std::uint64_t batch_size = 24;
  std::uint64_t leaf = 0;
  std::uint64_t epochs = 3;
  float learning_rate = 0.01F;
  std::optional<std::uint64_t> steps = std::nullopt;
};

/// What a run leaves behind.
struct ToyResult {
  std::vector<float> weights;
  train::RunReport report;
};

inline ToyResult train_toy(comm::Communicator& comm, const ToyRun& run,
                           const std::vector<train::Observer*>& observers = {}) {
  constexpr std::size_t features = 12;
  constexpr int classes = 4;
  ToySource training(run.records, features, classes, 1);
  ToySource test(97, features, classes, 2);
  const data::Plan plan({.records = run.records,
                         .batch_size = run.batch_size,
                         .ranks = static_cast<std::uint64_t>(comm.size()),
                         .leaf = run.leaf,
                         .shuffle = data::Shuffle::global});
  const data::Plan test_plan = train::evaluation_plan(test.records(), comm.size());
  nn::Network<float> network({features, {19, 8}, classes},
                             std::max(plan.largest_piece(), test_plan.largest_piece()));
  nn::initialise(network, {22, 23});
  optim::Adam adam(network.parameters().values().size(), {.learning_rate = run.learning_rate});
  data::BatchReader train_reader(training, plan, comm.rank());
  data::BatchReader test_reader(test, test_plan, comm.rank());
  train::Trainer trainer({run.epochs, run.steps, std::nullopt}, network, adam, train_reader,
                         test_reader, comm);
  auto report = trainer.run(comm.rank() == 0 ? observers : std::vector<train::Observer*>{});
  const auto values = network.parameters().values();
  return {{values.begin(), values.end()}, std::move(report)};
}

}  // namespace lockstep
