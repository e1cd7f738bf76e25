// Prediction in global order: every element carries its index, each replica predicts its own piece,
// and the outputs are collected by index, for any number of ranks and any shuffling.
//
//   05_prediction_in_order --ranks 3, or mpirun -n 3 05_prediction_in_order
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <mutex>

using namespace lockstep;

namespace {

constexpr std::uint64_t seed = 22;
constexpr std::size_t classes = 10;

/// The records of a source as pairs (index, features).
auto indexed(const std::shared_ptr<data::Source>& source) {
  const auto record = [source](std::int64_t index) {
    const auto id = static_cast<std::uint64_t>(index);
    std::vector<float> features(source->features());
    std::int32_t label = 0;
    const std::lock_guard lock(source->reading());  // an iterator reads ahead in a thread
    source->read({&id, 1}, features, {&label, 1});
    return std::pair(index, Tensor<float>(std::move(features)));
  };
  return range_dataset(static_cast<std::int64_t>(source->records())).map(record);
}

void predict(comm::Communicator& comm) {
  Strategy strategy(comm);
  auto digits = data::open_data_set("synthetic", {.train_limit = 2000, .test_limit = 24});
  const std::shared_ptr<data::Source> training = std::move(digits.train);
  const std::shared_ptr<data::Source> test = std::move(digits.test);
  auto batches = strategy.distribute_dataset(from_source(training).shuffle(seed).batch(32),
                                             {.policy = data::ShardPolicy::data});
  train::Replica replica({training->features(), {64}, classes}, batches);
  for (const auto& batch : batches) replica.train(batch);

  std::map<std::int64_t, std::int32_t> labels;  // by index
  auto unordered = strategy.distribute_dataset(indexed(test).shuffle(seed).batch(10));
  for (const auto& batch : unordered) {
    const auto indices = strategy.run(
        [](const Tensor<std::int64_t>& index, const Tensor<float>&) { return index; }, batch);
    const auto predicted = strategy.run(
        [&](const Tensor<std::int64_t>&, const Tensor<float>& images) {
          return Tensor<std::int32_t>(replica.predict(images.values()));
        },
        batch);
    labels.merge(in_global_order(strategy, indices, predicted));
  }

  if (strategy.replica_id() > 0) return;
  for (const auto& [index, label] : labels) {
    std::printf("%d: %d\n", static_cast<int>(index), label);
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, predict); }
