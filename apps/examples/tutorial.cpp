// The data-parallel tutorial: digits, a dense network, a training loop, evaluation.
//
//   tutorial                 one rank
//   tutorial --ranks 2       two, as threads
//   mpirun -n 2 tutorial     two, as processes
//
// The weights are those of `lockstep train --train-limit 5000 --test-limit 5000`, to the last bit,
// on any number of ranks.
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

constexpr std::uint64_t seed = 22;
constexpr std::uint64_t batch_size = 128;  // global: of all ranks together
constexpr int epochs = 3;
constexpr std::size_t classes = 10;

/// The digits that lockstep draws; a folder with MNIST's four files does as well.
data::DataSet open_digits() {
  return data::open_data_set("synthetic", {.train_limit = 5000, .test_limit = 5000});
}

/// Loss and accuracy of one pass over the training data, each example counted once.
struct Means {
  double loss = 0;
  double accuracy = 0;
};

/// One epoch: `batches` gives every rank its piece of each global batch.
template <class Batches>
Means train(const Strategy& strategy, Batches& batches, train::Replica& replica) {
  nn::Tally sums;
  for (const auto& batch : batches) {
    strategy.run(
        [&](const Tensor<float>& images, const Tensor<std::int32_t>& labels) {
          const nn::Tally step = replica.train(images.values(), labels.values());
          sums.loss_sum += step.loss_sum;
          sums.correct += step.correct;
        },
        batch);
  }
  const auto examples = static_cast<double>(batches.plan()->examples_per_epoch());
  return {sums.loss_sum / examples, static_cast<double>(sums.correct) / examples};
}

/// What every rank runs.
void tutorial(comm::Communicator& comm) {
  Strategy strategy(comm);
  const bool speaks = strategy.replica_id() == 0;

  // A data set, shuffled anew in every epoch, in global batches. Under policy DATA each rank reads
  // its own piece of every batch, cut between leaves, in which gradients are summed.
  auto digits = open_digits();
  const std::shared_ptr<data::Source> training = std::move(digits.train);
  auto batches = strategy.distribute_dataset(from_source(training).shuffle(seed).batch(batch_size),
                                             {.policy = data::ShardPolicy::data, .leaf = 0});

  // The network, the same on every rank: two hidden layers with ReLU; softmax is in the loss.
  const nn::NetworkShape shape(training->features(), {700, 500}, classes);
  train::Replica replica(shape, *batches.plan(), comm, {.seed = {seed, seed + 1}});
  if (speaks) {
    std::printf("%d replicas in sync: %s, %zu parameters\n", strategy.num_replicas_in_sync(),
                shape.text().c_str(), shape.parameters());
  }

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const Means trained = train(strategy, batches, replica);
    const auto tested = replica.evaluate(*digits.test);
    if (!speaks) continue;
    std::printf("epoch %d: training loss %.3f, accuracy %.3f   testing loss %.3f, accuracy %.3f\n",
                epoch, trained.loss, trained.accuracy, tested.loss(), tested.accuracy());
  }

  const std::uint64_t hash = replica.weights_hash();  // compared between ranks
  if (speaks) std::printf("weights %s\n", to_hex(hash).c_str());
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, tutorial); }
