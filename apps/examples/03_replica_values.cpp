// The reference page of tf.distribute.DistributedValues, block by block: values that each replica
// holds for itself, which run computes and reduce and gather combine; and variables over all
// replicas, mirrored (weights) or synchronized when read (metrics).
//
//   03_replica_values --ranks 2, or mpirun -n 2 03_replica_values
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

using Floats = Tensor<float>;

/// Prints on rank 0; the other ranks compute the same text.
void print(const Strategy& strategy, const std::string& text) {
  if (strategy.replica_id() == 0) std::printf("%s\n", text.c_str());
}

/// Two numbers for two replicas, as in the page; for other numbers of replicas, one for each.
auto first_batch(Strategy& strategy) {
  const int replicas = strategy.num_replicas_in_sync();
  std::vector<float> numbers;
  for (int i = 0; i < 2 * replicas; ++i) numbers.push_back(5 + static_cast<float>(i));
  auto data = strategy.distribute_dataset(
      from_elements(numbers).batch(static_cast<std::uint64_t>(replicas)));
  return data.make_iterator().next();
}

// "Distributed values created from a DistributedDataset".
void from_dataset(Strategy& strategy) { print(strategy, strategy.describe(first_batch(strategy))); }

// "Distributed values returned by run".
void returned_by_run(Strategy& strategy) {
  print(strategy, strategy.describe(strategy.run([&] { return strategy.replica_id(); })));
}

// "As input into run".
void into_run(Strategy& strategy) {
  const auto plus_one = [](const Floats& x) { return x.map([](float v) { return v + 1; }); };
  print(strategy, strategy.describe(strategy.run(plus_one, first_batch(strategy))));
}

// "As input into reduce": over the replicas and along axis 0.
void into_reduce(Strategy& strategy) {
  const auto sum = strategy.reduce(ReduceOp::sum, first_batch(strategy), 0);
  print(strategy, to_text(sum) + ", shape " + to_text(sum.shape()));
}

// "How to inspect per-replica values locally": in a job of several processes, each rank its own.
void local(Strategy& strategy) {
  print(strategy, to_text(strategy.local_results(first_batch(strategy)).front()));
}

// "Mirrored" and "SyncOnRead": what a job's variables are.
void variables(Strategy& strategy) {
  auto weight = strategy.create_variable(Floats{1, 2});
  weight.assign_sub(Floats{0.5F, 1});
  weight.verify();  // the same bits on every replica
  auto examples = strategy.create_metric<std::int64_t>(ReduceOp::sum);
  auto data = strategy.distribute_dataset(range_dataset(24).batch(6));
  for (const auto& batch : data) {
    strategy.run([&](const auto& x) { examples.add(static_cast<std::int64_t>(x.rows())); }, batch);
  }
  const std::int64_t counted = examples.read();  // collective: on all ranks
  print(strategy, to_text(weight.read()) + ", " + std::to_string(counted) + " examples");
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  for (const auto block :
       {from_dataset, returned_by_run, into_run, into_reduce, local, variables}) {
    block(strategy);
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
