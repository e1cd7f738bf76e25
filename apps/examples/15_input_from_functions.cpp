// The guide "Distributed Input": data that a function of each worker makes, values, and a
// generator, under the guide's section titles.
//
//   15_input_from_functions --ranks 2, or mpirun -n 2 15_input_from_functions
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <optional>

using namespace lockstep;

namespace {

/// Prints on rank 0; the other ranks compute the same text.
void print(const Strategy& strategy, const std::string& text) {
  if (strategy.replica_id() == 0) std::printf("%s\n", text.c_str());
}

// "distribute_datasets_from_function": each worker batches and shards its own data set.
void from_function(Strategy& strategy) {
  auto data = strategy.distribute_datasets_from_function([](const InputContext& context) {
    return range_dataset(96)
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .batch(context.per_replica_batch_size(24))
        .prefetch(2);  // 2 batches of each worker
  });
  for (const auto& batch : data) {
    print(strategy, "sum " + to_text(strategy.reduce(ReduceOp::sum, batch, 0)));
  }
}

// "Tensor inputs instead of tf.data", "values from a function".
void values_from_function(Strategy& strategy) {
  const auto constant =
      strategy.distribute_values_from_function([](const ValueContext&) { return 1.0; });
  for (int i = 0; i < 4; ++i) {
    print(strategy, strategy.describe(strategy.run([](double x) { return x; }, constant)));
  }
}

// "Tensor inputs instead of tf.data", "from_generator": elements [4] without an end.
void from_a_generator(Strategy& strategy) {
  const auto fours = from_generator<Tensor<float>>([] {
    return [i = 0]() mutable -> std::optional<Tensor<float>> {
      return Tensor<float>(std::vector<float>(4, static_cast<float>(i++)));
    };
  });
  auto data = strategy.distribute_dataset(fours);
  auto iterator = data.make_iterator();
  for (int step = 0; step < 4; ++step) print(strategy, strategy.describe(iterator.next()));
}

// Workers may have different numbers of examples: here worker 0 has one more than the others.
void uneven_workers(Strategy& strategy) {
  auto data = strategy.distribute_datasets_from_function([](const InputContext& context) {
    return range_dataset(context.input_pipeline_id == 0 ? 3 : 2).batch(2);
  });
  for (const auto& batch : data) print(strategy, strategy.describe(batch));
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  for (const auto block : {from_function, values_from_function, from_a_generator, uneven_workers}) {
    block(strategy);
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
