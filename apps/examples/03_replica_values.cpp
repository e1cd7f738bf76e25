// Values that each replica holds for itself: run computes them, reduce and gather combine them. And
// variables over all replicas: mirrored (weights) and accumulated (metrics).
//
//   03_replica_values --ranks 2, or mpirun -n 2 03_replica_values
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

using Numbers = Tensor<std::int64_t>;

/// Prints on rank 0; the other ranks compute the same text.
void print(const Strategy& strategy, const std::string& text) {
  if (strategy.replica_id() == 0) std::printf("%s\n", text.c_str());
}

/// The functions that make, show and combine per-replica values.
void values(Strategy& strategy) {
  auto data = strategy.distribute_dataset(from_elements<std::int64_t>({5, 6, 7, 8}).batch(2));
  const auto first = data.make_iterator().next();
  const auto plus_one = [](const Numbers& x) {
    return x.map([](std::int64_t value) { return value + 1; });
  };
  const auto ids = strategy.run([&] { return strategy.replica_id(); });
  const auto total = strategy.reduce(ReduceOp::sum, first, 0);
  const auto ones =
      strategy.distribute_values_from_function([](const ValueContext&) { return 1.0; });
  print(strategy, "the first batch of [5, 6, 7, 8]: " + strategy.describe(first));
  print(strategy, "  x + 1: " + strategy.describe(strategy.run(plus_one, first)));
  print(strategy, "  replica ids: " + strategy.describe(ids));
  print(strategy, "  reduce(sum, axis 0): " + to_text(total) + ", shape " + to_text(total.shape()));
  print(strategy, "  gather(axis 0): " + to_text(strategy.gather(first, 0)));
  print(strategy,
        "  local results of replica 0: " + to_text(strategy.local_results(first).front()));
  print(strategy, "  a constant 1.0 for each replica: " + strategy.describe(ones));
}

/// 100 pairs (feature 1, label 1) in batches of 16; the function takes the parts of the pair.
void nested_elements(Strategy& strategy) {
  const auto ones = from_elements(std::vector(1, std::pair(1.0F, 1.0F))).repeat(100);
  auto data = strategy.distribute_dataset(ones.batch(16));
  int steps = 0;
  std::size_t examples = 0;
  float least = 1;
  for (auto& batch : data) {
    const auto loss = strategy.run(
        [](const Tensor<float>& features, Tensor<float> labels) {
          for (std::size_t i = 0; i < labels.rows(); ++i) {
            labels.values()[i] -= 0.3F * features.values()[i];
          }
          return labels;
        },
        batch);
    const auto all = strategy.gather(loss, 0);
    for (const float value : all.values()) least = std::min(least, value);
    examples += all.rows();
    ++steps;
  }
  print(strategy, "100 ones in batches of 16: " + std::to_string(steps) + " steps, " +
                      std::to_string(examples) +
                      " examples, label - 0.3 * feature = " + to_text(least));
}

/// A variable with equal copies, and a count that each replica accumulates locally.
void variables(Strategy& strategy) {
  auto weight = strategy.create_variable(Tensor<float>{1, 2});
  weight.assign(weight.read().map([](float w) { return w / 2; }));
  weight.verify();
  auto examples = strategy.create_metric<std::int64_t>(ReduceOp::sum);
  auto data = strategy.distribute_dataset(range_dataset(24).batch(6));
  for (auto& batch : data) {
    strategy.run([&](const Numbers& x) { examples.add(static_cast<std::int64_t>(x.rows())); },
                 batch);
  }
  const std::int64_t counted = examples.read();  // collective: on all ranks
  print(strategy, "a mirrored variable: " + to_text(weight.read()) +
                      ", verified; a metric: " + std::to_string(counted) + " examples");
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  values(strategy);
  nested_elements(strategy);
  variables(strategy);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
