// One rank's replica of a network: plan, rows, products, network, device and step put together. The
// command, the library's users and the tests train, evaluate and predict with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "data/plan.hpp"
#include "data/source.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/checkpoint.hpp"
#include "lib/train/device.hpp"
#include "lib/train/evaluation.hpp"
#include "lib/train/integrity.hpp"
#include "lib/train/step.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::train {

/// Where a replica computes.
enum class Device { cpu, cuda };

/// How gradients are summed over ranks: see step.hpp.
enum class Reduction { canonical, allreduce };

/// Which implementation multiplies matrices; automatic: strict for canonical, the library's for
/// allreduce.
enum class ProductsChoice { automatic, strict, library };

/// The defaults are those of `lockstep train`, so the same data gives the same weights.
struct ReplicaOptions {
  nn::SeedPair seed = {22, 23};  ///< of the first weights, and of random layers
  optim::AdamOptions adam = {.learning_rate = static_cast<double>(0.001F)};
  const nn::Loss<float>* loss = nullptr;  ///< must outlive the replica; null: cross-entropy
  Reduction reduction = Reduction::canonical;
  Exchange exchange = Exchange::automatic;        ///< of the canonical reduction
  std::optional<std::uint64_t> audit_every = {};  ///< steps, see integrity.hpp; none: never
  std::uint64_t sentinel_steps = Sentinel::default_parts;  ///< in which all weights are compared
  ProductsChoice products = ProductsChoice::automatic;
  Precision precision = Precision::float32;  ///< of the library's products on a device
  Simd simd = Simd::automatic;               ///< of strict products on the processor
  int threads = 0;                           ///< of this rank's products; 0: own_cores()
  std::size_t prefetch = 0;                  ///< batches that prefetch() will read ahead

  Device device = Device::cpu;
  bool share_device = false;  ///< ranks of a host may share its devices
  DeviceExchange device_exchange = DeviceExchange::automatic;
  /// The ranks with a device, where others compute on their processors; null: all of them.
  comm::Communicator* devices = nullptr;

  /// Wrap the parts that the options above give: for tests that inject faults.
  std::function<std::unique_ptr<Products<float>>(std::unique_ptr<Products<float>>)> wrap_products =
      {};
  std::function<std::unique_ptr<DeviceReplica>(std::unique_ptr<DeviceReplica>)> wrap_device = {};
};

/// Cores that this rank may use without those of its neighbours. Local.
int own_cores(const comm::Communicator& comm);

/// One rank's replica of a network, trained in step with its peers.
///
/// Weights are the same bits on every rank after every step; with the canonical reduction also for
/// any number of ranks and any mesh (step.hpp has the proof). All memory is allocated in the
/// constructor. It owns the network; communicator, mesh and plan must outlive it. One thread: that
/// of the communicator.
class Replica {
 public:
  /// A network of `shape` with its first weights, to be trained along `plan`, and to be evaluated.
  ///
  /// `groups`: a communicator, or a mesh, whose ranks of "model" share dense layers and whose ranks
  /// of "batch" are those of the plan.
  /// Errors   throws comm::AgreedError (2) on every rank: options that cannot be honoured together
  ///          or here, a plan without a step, layers narrower than "model", too little memory, no
  ///          device; std::invalid_argument: a plan for another number of ranks.
  /// Ranks    collective.
  Replica(const nn::NetworkShape& shape, const data::Plan& plan, const Groups& groups,
          const ReplicaOptions& options = {});

  /// A replica for evaluate() and predict() alone, without a step. load(network) sets the weights.
  ///
  /// Errors   as above.
  /// Ranks    collective.
  Replica(const nn::NetworkShape& shape, const Groups& groups, const ReplicaOptions& options,
          const std::function<void(nn::Network<float>&)>& load);

  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// The network; on a device its weights are those of the last copy_weights_to_host().
  nn::Network<float>& network() noexcept { return *network_; }
  const nn::NetworkShape& shape() const noexcept { return network_->shape(); }
  const Groups& groups() const noexcept { return groups_; }

  /// Steps trained so far, and examples of all ranks in them.
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t examples() const noexcept { return examples_; }

  /// "canonical, by activations"; "strict", "library (oneDNN)"; the device, null: this processor.
  const char* reduction() const noexcept { return step_->name(); }
  const char* products() const noexcept;
  const DeviceReplica* device() const noexcept { return device_.get(); }

  /// Trains on this rank's piece of step `step` (from 0) of an epoch of the plan. Returns loss and
  /// correct predictions of the whole global batch, as they were before the update, the same on
  /// every rank.
  ///
  /// Shapes   features [b, shape.features] row-major, labels [b] in [0, classes); b is the plan's
  ///          piece for this rank and step, and may be 0.
  /// Errors   throws std::invalid_argument for other shapes and labels; comm::AgreedError where
  ///          loss, gradient or optimizer state are not finite (76) or replicas differ (70);
  ///          comm::CommError.
  /// Ranks    collective: all ranks train the same step.
  nn::Tally train(std::uint64_t step, std::span<const float> features,
                  std::span<const std::int32_t> labels);

  /// A reader that prepares batches for load(): at most `batches` in all are read ahead.
  /// `reader` must outlive it. Destroy it before the replica, after drop_staged().
  data::Prefetch prefetch(data::BatchReader& reader, std::uint64_t batches) const;

  /// Brings the batch of a step to where the replica computes, and on a device begins to copy the
  /// one after it. Local; throws what reading throws.
  data::Batch load(data::Prefetch& batches, std::uint64_t epoch, std::uint64_t step);

  /// Trains on a batch of load(). Adds the time of each phase to `seconds`. Otherwise as above.
  nn::Tally train(const data::Batch& batch, PhaseSeconds& seconds);

  /// Drops batches that were loaded ahead. Local.
  void drop_staged() noexcept;

  /// Loss and accuracy over all records, every example counted once.
  ///
  /// Errors   throws what train::evaluate() throws.
  /// Ranks    collective.
  Evaluation evaluate(data::Source& source);
  Evaluation evaluate(data::BatchReader& reader);

  /// Hands the predictions of all records to `sink` on rank 0: see train::predict().
  /// Ranks    collective.
  void predict(data::BatchReader& reader, const PredictionSink& sink);

  /// The class of each example: the first index of its greatest logit.
  ///
  /// Shapes   features [b, shape.features] row-major, any b; returns [b].
  /// Errors   throws std::invalid_argument for other shapes.
  /// Ranks    local; collective over "model" of a mesh.
  std::vector<std::int32_t> predict(std::span<const float> features);

  /// Brings network() up to date with the weights on a device. Local.
  void copy_weights_to_host();

  /// The weights' hash, after comparing that of all ranks.
  ///
  /// Errors   throws comm::AgreedError (70) where replicas differ; it names the odd rank.
  /// Ranks    collective.
  std::uint64_t weights_hash();

  /// Name and hash of every tensor, on rank 0 of "batch"; empty on the others.
  /// Ranks    collective over "model" of a mesh; local otherwise.
  std::vector<std::pair<std::string, std::uint64_t>> tensor_hashes();

  /// Calls visit(network) on rank 0 with a network that has all weights, under a mesh too. Needs
  /// memory for them there.
  /// Ranks    collective.
  void visit_whole(const std::function<void(const nn::Network<float>&)>& visit);

  /// Saves a checkpoint in `folder` and returns its path. `about`: what it records of the data;
  /// step and examples are this replica's own. read_description() and
  /// read_weights(saved, network()) read it.
  ///
  /// Errors   throws comm::AgreedError (74) where rank 0 cannot write, or step's exists already.
  /// Ranks    collective; rank 0 writes.
  std::filesystem::path save(const std::filesystem::path& folder, CheckpointInfo about = {});

 private:
  void make_network(const nn::NetworkShape& shape, const ReplicaOptions& options);
  void make_device(const ReplicaOptions& options);
  Inference& inference() noexcept;
  data::Batch batch_of(std::uint64_t step, std::span<const std::int32_t> labels) const;
  data::Batch stage_copy(data::Batch batch, std::span<const float> features);
  std::unique_ptr<nn::Network<float>> whole();

  const data::Plan* plan_;  ///< of training; null: none
  Groups groups_;
  std::size_t prefetch_;
  std::size_t rows_ = 0;  ///< that a pass may have
  StepOptions step_options_;
  Exchange exchange_ = Exchange::automatic;
  std::unique_ptr<Products<float>> products_;
  std::unique_ptr<nn::Network<float>> network_;
  std::unique_ptr<NetworkInference> processor_;
  std::unique_ptr<DeviceReplica> device_;
  AlignedBuffer<float> staged_features_;  // of train(step, features, labels) on a device
  AlignedBuffer<std::int32_t> staged_labels_;
  std::unique_ptr<Sentinel> sentinel_;
  std::unique_ptr<Step> step_;
  std::uint64_t steps_ = 0;
  std::uint64_t examples_ = 0;
};

}  // namespace lockstep::train
