// How a data set is distributed: global batches cut into one piece per replica, iterators that end
// together, a data set that each worker makes itself, and an infinite generator.
//
//   02_distributed_input --ranks 2, or mpirun -n 2 02_distributed_input
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <optional>

using namespace lockstep;

namespace {

/// Prints on rank 0; the other ranks compute the same text.
void print(const Strategy& strategy, const std::string& text) {
  if (strategy.replica_id() == 0) std::printf("%s\n", text.c_str());
}

/// Global batches of 4: each replica gets its piece, and the last batch may be short.
void batches(Strategy& strategy) {
  auto data = strategy.distribute_dataset(range_dataset(6).batch(4));
  print(strategy, "range(6) in global batches of 4:");
  for (auto& batch : data) print(strategy, "  " + strategy.describe(batch));
  print(strategy, "  element spec: " + to_text(data.element_spec().front()));
}

/// A new iterator for each epoch; all replicas reach the end in the same step.
void iterators(Strategy& strategy) {
  auto data = strategy.distribute_dataset(range_dataset(80).shuffle(22).batch(16));
  int steps = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    auto iterator = data.make_iterator();
    for (int step = 0; step < 5; ++step, ++steps) iterator.next();
  }
  print(strategy, "10 epochs of 5 steps: " + std::to_string(steps) + " steps");
  auto nine = strategy.distribute_dataset(range_dataset(9).batch(4));
  auto iterator = nine.make_iterator();
  steps = 0;
  while (iterator.next_as_optional()) ++steps;
  print(strategy, "range(9) in batches of 4: " + std::to_string(steps) + " steps, then nothing");
  try {
    iterator.next();
  } catch (const OutOfRange& end) {
    print(strategy, std::string("  next(): ") + end.what());
  }
}

/// The function is called once per worker, and shards and batches the data itself.
void from_a_function(Strategy& strategy) {
  auto data = strategy.distribute_datasets_from_function([](const InputContext& context) {
    return range_dataset(16)
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .batch(context.per_replica_batch_size(4 * context.num_replicas_in_sync))
        .prefetch(2);
  });
  print(strategy, "from a function that shards range(16) itself:");
  for (auto& batch : data) print(strategy, "  " + strategy.describe(batch));
}

/// Elements of 4 floats without an end: the loop decides when to stop.
void from_a_generator(Strategy& strategy) {
  const auto fours = from_generator<Tensor<float>>([] {
    return [i = 0]() mutable -> std::optional<Tensor<float>> {
      return Tensor<float>(std::vector<float>(4, static_cast<float>(i++)));
    };
  });
  auto data = strategy.distribute_dataset(fours.batch(4));
  auto iterator = data.make_iterator();
  print(strategy, "four steps of an infinite generator:");
  for (int step = 0; step < 4; ++step) print(strategy, "  " + strategy.describe(iterator.next()));
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  print(strategy, std::to_string(strategy.num_replicas_in_sync()) + " replicas in sync");
  batches(strategy);
  iterators(strategy);
  from_a_function(strategy);
  from_a_generator(strategy);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
