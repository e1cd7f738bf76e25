// The guide "Distributed Input", its first part: how data sets are divided among replicas, under
// the guide's section titles. The guide's code and figures:
// tensorflow.org/tutorials/distribute/input. Iterators: 14_distributed_iterators; data from
// functions: 15_input_from_functions.
//
//   02_distributed_input --ranks 2, or mpirun -n 2 02_distributed_input
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

using Pair = std::pair<Tensor<float>, Tensor<float>>;

/// Prints on rank 0; the other ranks compute the same text.
void print(const Strategy& strategy, const std::string& text) {
  if (strategy.replica_id() == 0) std::printf("%s\n", text.c_str());
}

/// Dataset.from_tensors(([1.], [1.])).repeat(count)
Dataset<Pair> ones(std::uint64_t count) {
  return from_elements(std::vector{Pair(Tensor<float>{1}, Tensor<float>{1})}).repeat(count);
}

/// labels - 0.3 * features
Tensor<float> train_step(const Tensor<float>& features, Tensor<float> labels) {
  for (std::size_t i = 0; i < labels.values().size(); ++i) {
    labels.values()[i] -= 0.3F * features.values()[i];
  }
  return labels;
}

// "Distributed datasets", "Usage": the global batch is cut into a piece for each replica.
void distributed_datasets(Strategy& strategy) {
  auto data = strategy.distribute_dataset(ones(100).batch(16));
  for (const auto& x : data) {
    print(strategy, "Loss is " + strategy.describe(strategy.run(train_step, x)));
  }
}

// "Batching": the number of pieces is a multiple of the number of replicas; some may be empty.
void batching(Strategy& strategy) {
  for (const std::int64_t count : {6, 4, 8}) {
    print(strategy, "range(" + std::to_string(count) + ") in batches of 4");
    auto data = strategy.distribute_dataset(range_dataset(count).batch(4));
    for (const auto& batch : data) print(strategy, "  " + strategy.describe(batch));
  }
}

// "Sharding": each policy, and the warning of AUTO, which is given once.
void sharding(Strategy& strategy) {
  for (const auto policy :
       {data::ShardPolicy::automatic, data::ShardPolicy::data, data::ShardPolicy::off}) {
    auto data = strategy.distribute_dataset(ones(64).batch(16), {.policy = policy});
    print(strategy,
          std::string(data::name_of(policy)) + " shards as " + data::name_of(data.policy()));
  }
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  for (const auto block : {distributed_datasets, batching, sharding}) block(strategy);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
