// The guide "Distributed Input": iterators over distributed data sets, the type of their batches,
// and outputs in the order of the data, under the guide's section titles. That last block,
// "Caveats", is also 05_prediction_in_order, with a network.
//
//   14_distributed_iterators --ranks 2, or mpirun -n 2 14_distributed_iterators
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <map>

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

// "Distributed iterators", "Use iter to create an explicit iterator": one for each epoch.
void explicit_iterator(Strategy& strategy) {
  auto data = strategy.distribute_dataset(ones(100).batch(16));
  int steps = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    auto iterator = data.make_iterator();
    for (int step = 0; step < 5; ++step, ++steps) strategy.run(train_step, iterator.next());
  }
  print(strategy, std::to_string(steps) + " steps");
}

// "Distributed iterators", the end of the data: next_as_optional() in a loop of steps.
void optional_iterator(Strategy& strategy) {
  auto data = strategy.distribute_dataset(range_dataset(9).batch(4));
  auto iterator = data.make_iterator();
  for (int step = 0; step < 5; ++step) {
    const auto batch = iterator.next_as_optional();
    if (!batch) break;
    print(strategy, strategy.describe(strategy.run([](const auto& x) { return x; }, *batch)));
  }
  try {
    iterator.next();
  } catch (const OutOfRange& end) {
    print(strategy, std::string("next(): ") + end.what());
  }
}

// "Using the element_spec property": the type of the argument of a step.
void element_spec(Strategy& strategy) {
  auto data = strategy.distribute_dataset(ones(100).batch(24));
  for (const auto& part : data.element_spec()) print(strategy, to_text(part));
  const auto twice = [](const Tensor<float>& x, const Tensor<float>& y) {
    const auto doubled = [](float value) { return 2 * value; };
    return std::pair(x.map(doubled), y.map(doubled));
  };
  const auto output = strategy.run(twice, data.make_iterator().next());
  print(strategy, "sums " + to_text(strategy.reduce(ReduceOp::sum, output, 0)));
}

// "Caveats": outputs in the order of the data, by an index that each element carries.
void order(Strategy& strategy) {
  auto data = strategy.distribute_dataset(range_dataset(24).enumerate().batch(6));
  std::map<std::int64_t, std::int64_t> result;
  for (const auto& [index, inputs] : data) {
    const auto outputs = strategy.run(
        [](const Tensor<std::int64_t>& x) { return x.map([](auto i) { return 2 * i; }); }, inputs);
    result.merge(in_global_order(strategy, index, outputs));
  }
  for (const auto& [index, output] : result) {
    print(strategy, std::to_string(index) + ": " + std::to_string(output));
  }
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  for (const auto block : {explicit_iterator, optional_iterator, element_spec, order})
    block(strategy);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
