// Training: digits, a dense network, a training loop and evaluation. The weights are those of
// `lockstep train --train-limit 5000 --test-limit 5000`, bit for bit, on any number of ranks.
//
//   01_tutorial                 one rank
//   01_tutorial --ranks 2       two, as threads
//   mpirun -n 2 01_tutorial     two, as processes
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

constexpr std::uint64_t seed = 22;
constexpr std::uint64_t batch_size = 128;  // global: of all ranks together
constexpr int epochs = 3;
constexpr std::size_t classes = 10;

/// Digits that lockstep draws. A folder with MNIST's four files works as well.
data::DataSet open_digits() {
  return data::open_data_set("synthetic", {.train_limit = 5000, .test_limit = 5000});
}

/// Mean loss and accuracy over one epoch, each example counted once.
struct Means {
  double loss = 0;
  double accuracy = 0;
};

/// One epoch: iterating over `batches` gives each rank its piece of every global batch.
template <class Batches>
Means train(Batches& batches, train::Replica& replica) {
  nn::Tally sums;
  for (const auto& batch : batches) {
    const nn::Tally tally = replica.train(batch);  // of the whole global batch, on every rank
    sums.loss_sum += tally.loss_sum;
    sums.correct += tally.correct;
  }
  const auto examples = static_cast<double>(batches.plan().examples_per_epoch());
  return {sums.loss_sum / examples, static_cast<double>(sums.correct) / examples};
}

void tutorial(comm::Communicator& comm) {
  Strategy strategy(comm);
  const bool is_root = strategy.replica_id() == 0;

  // A data set, reshuffled in every epoch, in global batches. With policy DATA each rank reads only
  // its own piece of every batch. Pieces are cut between leaves, the units of gradient summation.
  auto digits = open_digits();
  const std::shared_ptr<data::Source> training = std::move(digits.train);
  auto batches = strategy.distribute_dataset(from_source(training).shuffle(seed).batch(batch_size),
                                             {.policy = data::ShardPolicy::data});

  // The same network on every rank: two hidden layers with ReLU; softmax is part of the loss.
  const nn::NetworkShape shape(training->features(), {700, 500}, classes);
  train::Replica replica(shape, batches, {.seed = {seed, seed + 1}});
  if (is_root) {
    std::printf("%d replicas in sync: %s, %zu parameters\n", strategy.num_replicas_in_sync(),
                shape.text().c_str(), shape.parameters());
  }

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const Means trained = train(batches, replica);
    const auto tested = replica.evaluate(*digits.test);
    if (!is_root) continue;
    std::printf("epoch %d: training loss %.3f, accuracy %.3f   testing loss %.3f, accuracy %.3f\n",
                epoch, trained.loss, trained.accuracy, tested.loss(), tested.accuracy());
  }

  const std::uint64_t hash = replica.weights_hash();  // compared between ranks
  if (is_root) std::printf("weights %s\n", to_hex(hash).c_str());
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, tutorial); }
