// A custom loss, and a checkpoint: the network is trained, saved and read again.
//
//   07_custom_loss --ranks 2, or mpirun -n 2 07_custom_loss
//
// All ranks must run on one host: the checkpoint is saved in the folder for temporary files, which
// hosts do not share.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <lockstep/lockstep.hpp>
#include <lockstep/nn/network.hpp>
#include <lockstep/train/checkpoint.hpp>

using namespace lockstep;

namespace {

/// sum(max(0, 1 - t z)^2) over the classes, t = 1 for the label and -1 for the others.
template <class Real>
class SquaredHinge final : public nn::Loss<Real> {
 public:
  const char* name() const noexcept override { return "squared hinge"; }
  void run(Matrix<const Real> z, const nn::Targets& targets, std::span<nn::ExampleResult> results,
           Matrix<Real> dz) const override {
    for (std::size_t i = 0; i < z.rows; ++i) {
      const auto label = static_cast<std::size_t>(targets.labels[i]);
      Real sum = 0;
      for (std::size_t j = 0; j < z.cols; ++j) {
        const Real sign = j == label ? Real{1} : Real{-1};
        const Real margin = std::max(Real{0}, 1 - sign * z(i, j));
        sum = sum + margin * margin;
        if (dz.rows > 0) dz(i, j) = -2 * sign * margin;
      }
      const bool right = nn::predicted_class<Real>(z.row(i)) == label;
      results[i] = {static_cast<double>(sum), right ? 1.0 : 0.0};
    }
  }
};

/// Saves the weights, reads them back into the replica, and returns their hash. Collective.
std::uint64_t saved_and_read(train::Replica& replica, comm::Communicator& comm) {
  auto process = static_cast<std::uint64_t>(::getpid());
  comm.broadcast(std::span(&process, 1), 0);
  const auto folder =
      std::filesystem::temp_directory_path() / ("custom_loss-" + std::to_string(process));
  const auto path = replica.save(folder, {.divide_by = 255, .data = "synthetic digits"});
  train::SavedNetwork saved;
  comm::together(comm, [&] {  // one message, if ranks cannot read it
    saved = train::read_description(path);
    train::read_weights(saved, replica.network());
  });
  const std::uint64_t hash = replica.weights_hash();  // collective: all ranks have read
  if (comm.rank() == 0) std::filesystem::remove_all(folder);
  return saved.loss == replica.network().loss_function().name() ? hash : 0;
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  auto digits = data::open_data_set("synthetic", {.train_limit = 1500, .test_limit = 300});
  const std::shared_ptr<data::Source> training = std::move(digits.train);
  auto batches = strategy.distribute_dataset(from_source(training).shuffle(22).batch(128),
                                             {.policy = data::ShardPolicy::data});
  const SquaredHinge<float> loss;
  train::Replica replica({training->features(), {64}, 10}, batches, {.loss = &loss});
  const bool is_root = strategy.replica_id() == 0;
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (const auto& batch : batches) replica.train(batch);
    const auto tested = replica.evaluate(*digits.test);
    if (!is_root) continue;
    std::printf("epoch %d: %s %.6f, accuracy %.3f\n", epoch, loss.name(), tested.loss(),
                tested.accuracy());
  }
  const std::uint64_t hash = replica.weights_hash();  // compared between ranks
  const std::uint64_t again = saved_and_read(replica, comm);
  if (!is_root) return;
  std::printf("weights %s, saved and read %s\n", to_hex(hash).c_str(), to_hex(again).c_str());
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }
