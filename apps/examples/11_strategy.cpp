// The reference page of tf.distribute.TPUStrategy, block by block: a strategy for the ranks and
// devices that the launcher started, steps on all replicas, and logical devices in each of them.
//
//   11_strategy --ranks 4, or mpirun -n 4 11_strategy
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

/// Prints on rank 0; the other ranks compute the same text.
void print(const Strategy& strategy, const std::string& text) {
  if (strategy.replica_id() == 0) std::printf("%s\n", text.c_str());
}

Tensor<float> twice(const Tensor<float>& x) {
  return x.map([](float value) { return value + value; });
}

// "To construct a TPUStrategy object": the launcher has resolved the cluster.
void construct(comm::Communicator& comm) {
  const Strategy strategy(comm);
  print(strategy, "ranks: " + std::to_string(strategy.cluster().replicas.size()) +
                      ", replicas in sync: " + std::to_string(strategy.num_replicas_in_sync()));
}

// "run", with a distributed data set and mirrored variables.
void run_steps(comm::Communicator& comm) {
  Strategy strategy(comm);
  auto weight = strategy.create_variable(0.0F);
  auto data = strategy.distribute_dataset(from_elements<float>({1, 2, 3, 4, 5, 6}).batch(3));
  for (const auto& batch : data) {
    const auto mean = strategy.reduce(ReduceOp::mean, strategy.run(twice, batch), 0);
    weight.assign_add(mean.item());  // the same on all replicas
  }
  print(strategy, "weight " + to_text(weight.read()));
}

// "experimental_device_assignment": computation shape [1, 1, 1, 2] has two logical devices in each
// replica. Here every rank has two cores, whatever the machine has.
void device_assignment(comm::Communicator& comm) {
  const Topology topology({1, comm.size(), 1, 2});
  const auto assignment = DeviceAssignment::build(topology, {1, 1, 1, 2}, comm.size());
  Strategy strategy(comm, "cpu", assignment);
  print(strategy, std::to_string(assignment.num_logical_devices()) +
                      " logical devices in each of " + std::to_string(assignment.num_replicas()) +
                      " replicas");

  // "experimental_assign_to_logical_device": the tensor is unchanged.
  const auto add_on_device_0 = [&](const Tensor<float>& x) {
    return strategy.assign_to_logical_device(twice(x), 0);
  };
  const auto input = strategy.distribute_values_from_function(
      [](const ValueContext&) { return Tensor<float>{3}; });
  print(strategy,
        "sum " + to_text(strategy.reduce(ReduceOp::sum, strategy.run(add_on_device_0, input), 0)));
  try {
    strategy.assign_to_logical_device(Tensor<float>{3}, 2);
  } catch (const ConfigError& error) {
    print(strategy, error.what());
  }
}

// "gather": the values of all replicas along an axis, on all replicas.
void gather(comm::Communicator& comm) {
  Strategy strategy(comm);
  const auto values = strategy.distribute_values_from_function([](const ValueContext&) {
    return Tensor<float>({2, 1}, {1, 2});
  });
  print(strategy, "gathered " + to_text(strategy.gather(values, 0)));
}

void program(comm::Communicator& comm) {
  for (const auto block : {construct, run_steps, device_assignment, gather}) block(comm);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
