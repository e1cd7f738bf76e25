// A network and the step that trains it, in one object: what a loop of one's own is written with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/plan.hpp"
#include "data/source.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/checkpoint.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/step.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::train {

/// The defaults are those of `lockstep train`, so the same data gives the same weights.
struct ReplicaOptions {
  nn::SeedPair seed = {22, 23};  ///< of the first weights, and of what is random in training
  optim::AdamOptions adam = {.learning_rate = static_cast<double>(0.001F)};
  Simd simd = Simd::automatic;
  int threads = 0;                        ///< of this rank's products; 0: own_cores()
  const nn::Loss<float>* loss = nullptr;  ///< must outlive the replica; null: cross-entropy
};

/// Cores that this rank may take for itself, without those of its neighbours. Local.
int own_cores(const comm::Communicator& comm);

/// One rank's replica of a network, trained in step with its peers by the canonical step.
///
/// Weights are the same bits on every rank after every step, and for any number of ranks
/// (make_canonical_step() proves it). All memory is taken in the constructor. It owns the network;
/// communicator and plan must outlive it. One thread: that of the communicator.
class Replica {
 public:
  /// Makes the first weights of a network of `shape` that is to be trained along `plan`, as
  /// DistributedDataset::plan() has it.
  ///
  /// `groups`: a communicator, or a mesh, whose ranks of "model" share out dense layers and whose
  /// ranks of "batch" the plan counts.
  /// Errors   throws ConfigError: a plan without a step, instructions that this processor lacks,
  ///          layers narrower than "model"; std::invalid_argument: a plan of other ranks;
  ///          std::bad_alloc.
  /// Ranks    collective.
  Replica(const nn::NetworkShape& shape, const data::Plan& plan, const Groups& groups,
          const ReplicaOptions& options = {});

  nn::Network<float>& network() noexcept { return network_; }

  /// Steps trained so far.
  std::uint64_t steps() const noexcept { return steps_; }

  /// Trains on this rank's piece of the plan's next step; behind an epoch's last step comes the
  /// next epoch's first. Returns loss and correct predictions of the whole global batch, as they
  /// were before the update, the same on every rank.
  ///
  /// Shapes   features [b, shape.features] row-major, labels [b] in [0, classes); b is the plan's
  ///          piece for this rank and step, and may be 0.
  /// Errors   throws std::invalid_argument for other shapes and labels; comm::AgreedError (76)
  ///          where loss or gradient are not finite; comm::CommError.
  /// Ranks    collective.
  nn::Tally train(std::span<const float> features, std::span<const std::int32_t> labels);

  /// Loss and accuracy over all of `source`, every example counted once.
  ///
  /// Errors   throws what train::evaluate() throws.
  /// Ranks    collective.
  Evaluation evaluate(data::Source& source);

  /// What the network takes each example for: the first index of its greatest logit.
  ///
  /// Shapes   features [b, shape.features] row-major, any b; returns [b].
  /// Errors   throws std::invalid_argument for other shapes.
  /// Ranks    local; collective over "model" of a mesh.
  std::vector<std::int32_t> predict(std::span<const float> features);

  /// The weights' hash, after comparing that of all ranks.
  ///
  /// Errors   throws comm::AgreedError (70) where replicas differ; it names the odd rank.
  /// Ranks    collective.
  std::uint64_t weights_hash();

  /// Saves a checkpoint in `folder`, whole under a mesh too, and returns its path. `about`: what it
  /// says of the data; step and examples are this replica's own. read_description() and
  /// read_weights(saved, network()) are the way back.
  ///
  /// Errors   throws comm::AgreedError (74) where rank 0 cannot write, or step's is there already.
  /// Ranks    collective; rank 0 writes.
  std::filesystem::path save(const std::filesystem::path& folder, CheckpointInfo about = {});

 private:
  /// Copies as many features as belong there.
  static void fill(Matrix<float> inputs, std::span<const float> features);

  const data::Plan& plan_;
  Groups groups_;
  Exchange exchange_;
  std::unique_ptr<Products<float>> products_;
  nn::Network<float> network_;
  std::unique_ptr<Step> step_;
  std::uint64_t steps_ = 0;
  std::uint64_t examples_ = 0;
};

}  // namespace lockstep::train
