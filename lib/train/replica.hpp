// One rank's replica of a network: combines plan, rows, products, network, device and step. The
// command, user programs and tests train, evaluate and predict with it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/evaluation.hpp"
#include "lockstep/train/replica_options.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep {
namespace data {
struct Batch;
class Prefetch;
class Source;
}  // namespace data
namespace optim {
enum class Moment;
}  // namespace optim
}  // namespace lockstep

namespace lockstep::train {

struct CheckpointInfo;
struct InitialWeights;
class DeviceReplica;
struct KeptState;
struct NonfiniteValue;
struct PhaseSeconds;
struct SavedNetwork;
class SharedSnapshot;
class Snapshot;
struct StateBlocks;
class Step;
struct StepResult;
struct TakenWeights;
struct TrainingPosition;
struct TrainingState;

/// The numbers in tensor `i` of a batch.
template <class T, std::size_t i>
using PartValue = typename std::tuple_element_t<i, T>::Value;

// clang-format off
/// Of a batch: features; labels, or values; perhaps the weights of the examples.
template <class T>
concept TrainingParts =
    std::same_as<PartValue<T, 0>, float> &&
    (std::same_as<PartValue<T, 1>, float> || std::same_as<PartValue<T, 1>, std::int32_t>) &&
    (std::tuple_size<T>::value == 2 ||
     (std::tuple_size<T>::value == 3 && std::same_as<PartValue<T, 2>, float>));
// clang-format on

/// An element of a DistributedDataset of them.
template <class T>
concept TrainingBatch = requires {
  requires TrainingParts<typename T::Value>;
};

/// A DistributedDataset.
template <class T>
concept BatchesWithPlan = requires(const T& batches) {
  { batches.plan() } -> std::same_as<const data::Plan&>;
  { batches.is_endless() } -> std::same_as<bool>;
  { batches.communicator() } -> std::same_as<comm::Communicator&>;
};

/// One rank's replica of a network, trained synchronously with the other ranks.
///
/// Weights are bitwise identical on every rank after every step; with the canonical reduction also
/// for any number of ranks and any mesh (see Reduction). The memory of a step is allocated in the
/// constructor. The replica owns the network; communicator and mesh must outlive it. Use it on the
/// communicator's thread only.
///
/// Functions with data::BatchReader, data::Batch, data::Prefetch, Snapshot, SharedSnapshot or
/// KeptState serve the command, whose headers are not installed. A program trains on batches of a
/// distributed data set, and saves and restores with save(), restore() and start_from().
class Replica {
 public:
  /// Creates a network of `shape` with initial weights, for training with `plan` and evaluation.
  ///
  /// `groups`: a communicator, or a mesh. In a mesh dense layers are sharded over the ranks of
  /// "model" (see Sharding), and the plan is for the ranks of "batch".
  /// Errors   throws comm::AgreedError (2) on every rank: options, shapes or plans that differ
  ///          between ranks, options that conflict or that this build or host does not support, a
  ///          plan without a step, no dense layer with an output for every rank of "model", too
  ///          little memory, no device, a custom loss with the name of a built-in one; (65) for a
  ///          plan of no examples; ConfigError: a plan for another number of ranks.
  /// Ranks    collective.
  Replica(const nn::NetworkShape& shape, const data::Plan& plan, const Groups& groups,
          const ReplicaOptions& options = {});

  /// The same with the plan of a distributed data set, on the ranks of its Strategy. A generator
  /// has one under DATA if it states its number of elements (Dataset::assert_cardinality);
  /// DistributedBatches::plan says which data sets have one.
  ///
  /// Errors   also throws comm::AgreedError (2) if the data set has no plan, with the reason.
  /// Ranks    collective.
  template <BatchesWithPlan Batches>
  Replica(const nn::NetworkShape& shape, const Batches& batches, const ReplicaOptions& options = {})
      : Replica(shape, agreed_plan(batches), batches.communicator(), options) {}

  template <class Other>
  requires(!BatchesWithPlan<Other>) Replica(const nn::NetworkShape& shape, const Other& /*data*/,
                                            const ReplicaOptions& options = {})
      : Replica(shape, no_plan(), no_ranks(), options) {
    static_assert(BatchesWithPlan<Other>,
                  "Replica: give a shape and a distributed data set, such as "
                  "strategy.distribute_dataset(dataset.batch(128)), or a shape, a data::Plan and "
                  "the ranks that it is for");
  }

  /// Creates a replica for evaluate() and predict() only, with the weights of a checkpoint: see
  /// read_description(). `options.loss` is needed for evaluate() if the network was trained with a
  /// custom loss.
  ///
  /// Errors   as above, and those of read_weights(); (2) if ranks have read different checkpoints.
  /// Ranks    collective.
  Replica(const SavedNetwork& saved, const Groups& groups, const ReplicaOptions& options = {});

  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// The network on the host; with a device its weights are those of the last
  /// copy_weights_to_host().
  nn::Network<float>& network() noexcept { return *network_; }
  const nn::NetworkShape& shape() const noexcept;
  const Groups& groups() const noexcept { return groups_; }

  /// The optimizer of training. Local.
  const optim::OptimizerOptions& optimizer() const noexcept { return optimizer_; }

  /// Number of completed steps, and of examples of all ranks in them. A step whose train() ended
  /// with exit code 76, or with 65 for its features, is one of them, though skipped_steps() may
  /// count it, too.
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t examples() const noexcept { return examples_; }

  /// True with OnNonfinite::skip. Local.
  bool skips_nonfinite() const;

  /// Number of completed steps that changed nothing: see OnNonfinite. This and all that trains, or
  /// sets the state of training, throws ConfigError for a replica that only evaluates.
  std::uint64_t skipped_steps() const;

  /// Which values were not finite in the last step, if it was skipped, and where they arose; else
  /// empty. Identical on the ranks of "batch".
  const std::string& why_skipped() const noexcept { return why_skipped_; }

  /// The reduction: "canonical, by activations"; the products: "strict", "library (oneDNN)"; the
  /// device, null on the CPU.
  const char* reduction() const;
  const char* products() const noexcept;
  const DeviceReplica* device() const noexcept { return device_.get(); }

  /// Trains on this rank's piece of step `step` (from 0) of an epoch of the plan. Returns loss and
  /// correct predictions of the whole global batch before the update, identical on every rank.
  ///
  /// Shapes   features [b, shape.features] row-major; labels [b] in [0, classes), or values [b,
  ///          outputs] for a loss of values; b is the plan's piece for this rank and step, and may
  ///          be 0. Targets::weights [b], or none on any rank: the mean is that with weights.
  /// Errors   throws ConfigError for other shapes, DataError for other labels or weights, with the
  ///          position of the example in the plan's order (Plan::positions); comm::AgreedError if
  ///          the loss or a gradient is not finite (76), naming rank, layer and records, or if the
  ///          weights of the step cannot divide (65), or if replicas differ (70);
  ///          comm::CommError. After an AgreedError or a CommError weights and optimizer state are
  ///          unspecified: restore() a checkpoint before the next step.
  /// Ranks    collective: all ranks must train the same step.
  nn::Tally train(std::uint64_t step, std::span<const float> features, const nn::Targets& targets);

  /// Trains on the next batch of the data set that the plan is from: `batch` is a PerReplica of a
  /// pair of features, Tensor<float> [b, ...], and labels, Tensor<std::int32_t> [b], or values,
  /// Tensor<float> [b, outputs]; or of a tuple of them and the weights of the examples,
  /// Tensor<float> [b].
  ///
  /// Errors, ranks   as above; also throws ConfigError for the result of a run() function, of which
  ///                 the step is not known.
  template <class Batch>
  nn::Tally train(const Batch& batch) {
    static_assert(
        TrainingBatch<Batch>,
        "train: the batch is not an element of a distributed data set of pairs: features, "
        "Tensor<float>, and labels, Tensor<std::int32_t>, or values, Tensor<float>; or "
        "of tuples of these and weights, Tensor<float>");
    if constexpr (TrainingBatch<Batch>) {
      const Piece piece = piece_of(batch);
      return train(piece.step, piece.features, piece.targets);
    } else {
      return {};
    }
  }

  /// Creates a reader that prefetches batches for load(), up to batch `batches`, counted from the
  /// first epoch on. `reader` must outlive it. Destroy it before the replica, after drop_staged().
  data::Prefetch prefetch(data::BatchReader& reader, std::uint64_t batches) const;

  /// Loads the batch of a step into the network's rows or onto the device; on a device it also
  /// begins to copy the next batch. Local; throws the errors of reading.
  data::Batch load(data::Prefetch& batches, std::uint64_t epoch, std::uint64_t step);

  /// Trains on a batch returned by load(). Adds the time of each phase to `seconds`. `stop`: a
  /// number, not 0, if this rank wants to stop after this step; the result has the greatest of all
  /// ranks. Otherwise as above.
  StepResult train(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop = 0);

  /// Drops staged batches. Local.
  void drop_staged() noexcept;

  /// Returns loss and accuracy, or R2, and the means of `metrics`, over all records, every example
  /// counted once. `stop`: see train::evaluate().
  ///
  /// Errors   those of train::evaluate(); AgreedError (2) if records have other features than the
  ///          network, or ranks have different data.
  /// Ranks    collective.
  Evaluation evaluate(data::Source& source, const std::vector<Metric>& metrics = {});
  Evaluation evaluate(data::BatchReader& reader, const std::vector<Metric>& metrics = {},
                      const StopRequest& stop = {});

  /// The same over the next epoch of a distributed data set, of what train(batch) takes, in its
  /// batches: at most evaluation_batch examples each, or as many as the replica trains on. Whether
  /// every example is counted once follows from the data set's policy.
  ///
  /// Errors   also throws comm::AgreedError (2) for a data set without a plan or without end, or
  ///          larger batches.
  /// Ranks    collective.
  template <BatchesWithPlan Batches>
  Evaluation evaluate(Batches& batches, const std::vector<Metric>& metrics = {}) {
    require_end(batches.is_endless());
    auto iterator = batches.make_iterator();
    std::optional<typename Batches::Element> batch;
    static_assert(TrainingBatch<typename Batches::Element>,
                  "evaluate: the data set is not of pairs: features, Tensor<float>, and labels, "
                  "Tensor<std::int32_t>, or values, Tensor<float>; nor of tuples of these and "
                  "weights, Tensor<float>");
    return evaluate(
        agreed_plan(batches),
        [&]() -> std::optional<Piece> {
          batch = iterator.next_as_optional();
          if (!batch) return std::nullopt;
          return piece_of(*batch);
        },
        metrics);
  }

  /// Passes the predictions of all records to `sink` on rank 0: see train::predict().
  /// Ranks    collective.
  void predict(data::BatchReader& reader, const PredictionSink& sink,
               Predicted predicted = Predicted::label);

  /// Returns the class of each example: the first index of its greatest logit. Features are the
  /// network's input: those of a checkpoint are divided by CheckpointInfo::divide_by, and those of
  /// a table are as its TableSchema describes. The same holds for outputs() and probabilities().
  ///
  /// Shapes   features [b, shape.features] row-major, any b; returns [b].
  /// Errors   throws ConfigError for other shapes, and for a loss of values or several labels. Of a
  ///          checkpoint whose loss is not built in, and not given, labels are assumed.
  /// Ranks    local; collective over "model" of a mesh.
  std::vector<std::int32_t> predict(std::span<const float> features);

  /// Returns the outputs of the network for each example: logits, or the values of a regression.
  /// Those of a table are standardized: the number of target t is output * targets[t].deviation +
  /// targets[t].mean, of its TableSchema.
  ///
  /// Shapes   features [b, shape.features] row-major, any b; returns [b, outputs] row-major.
  /// Errors   throws ConfigError for other shapes.
  /// Ranks    as predict().
  std::vector<float> outputs(std::span<const float> features);

  /// Returns the probability of each class for each example, the softmax of the outputs; of several
  /// labels that of each label, the sigmoid of its output.
  ///
  /// Shapes, errors, ranks   as outputs(); also throws ConfigError for a loss of values. A loss
  /// that is not known is one of labels: see predict().
  std::vector<float> probabilities(std::span<const float> features);

  /// Copies the weights from the device to network(). Local.
  void copy_weights_to_host();

  /// Returns the hash of the weights, after comparing the hashes of all ranks.
  ///
  /// Errors   throws comm::AgreedError (70) if replicas differ, with the rank that differs.
  /// Ranks    collective.
  std::uint64_t weights_hash();

  /// Compares the weights of all ranks before the first step of a program. An error about weights
  /// that differ later names no earlier step than this as the last at which they were equal.
  ///
  /// Errors   as weights_hash().
  /// Ranks    collective.
  void begin_training();

  /// Returns name and hash of every tensor, on rank 0 of "batch"; empty on the others.
  /// Ranks    collective over "model" of a mesh; local otherwise.
  std::vector<std::pair<std::string, std::uint64_t>> tensor_hashes();

  /// Allocates memory for take(), which the ranks of rank 0's host share. If they cannot, and in a
  /// mesh with "model", rank 0 alone has it. Null on the other ranks. The replica must outlive it.
  ///
  /// Errors   throws comm::AgreedError (2) if the memory cannot be allocated.
  /// Ranks    collective.
  std::unique_ptr<Snapshot> make_snapshot();

  /// Copies weights and optimizer state of all ranks to `snapshot`, a result of make_snapshot().
  /// Each rank that has it copies a part. With the canonical reduction on one host that is its own
  /// slice, and nothing is gathered.
  ///
  /// Ranks    collective.
  void take(Snapshot* snapshot);

  /// Sets weights, optimizer state and numbers of steps and examples to those of a checkpoint, of a
  /// network of this shape, trained on any number of ranks. Every rank reads its part. A
  /// momentum of sgd that the checkpoint does not have is set to zero; moments that this optimizer
  /// does not keep are ignored.
  ///
  /// Errors   throws comm::AgreedError (65) if a rank cannot read it, for one of another network,
  ///          or of a format from which this training does not continue (checkpoint.hpp); (2) for
  ///          one of another optimizer, or if ranks have read different ones. The replica's state
  ///          is then unspecified.
  /// Ranks    collective.
  void restore(const SavedNetwork& saved, const TrainingState& state);

  /// Sets the weights of training to those of another network's file or checkpoint, before the
  /// first step. Layers of InitialWeights::fresh keep theirs. Every rank reads its part.
  ///
  /// Errors   throws comm::AgreedError: those of read_initial_weights(); (2) after a step, if the
  ///          replica only evaluates, or if ranks have read different checkpoints.
  /// Ranks    collective.
  TakenWeights start_from(const InitialWeights& initial);

  /// Allocates memory for keep(), which the ranks of a host share.
  ///
  /// Errors   throws comm::AgreedError (2) as SharedSnapshot() does, and for a replica without
  ///          ReplicaOptions::keeps_snapshots.
  /// Ranks    collective.
  std::unique_ptr<SharedSnapshot> make_shared_snapshot();

  /// Copies this rank's part of weights and optimizer state to `snapshot`: on several hosts each
  /// one gets all of both. All ranks call it after the same step.
  ///
  /// Ranks    collective; on one host local.
  void keep(SharedSnapshot& snapshot, const TrainingPosition& position);

  /// Sets weights, optimizer state and numbers of steps and examples to those of a snapshot that a
  /// group of as many ranks, or of more, has kept. Local.
  void restore(const KeptState& snapshot);

  /// Saves the checkpoint `folder`/step-NNNNNNNN and returns its path; `folder` is the folder of
  /// checkpoints, RUN/checkpoints of a run directory. `about`: the description of the data; its
  /// step and examples are replaced by this replica's. `position`: the program's position in its
  /// epochs, which read_state() returns. Continue from it with restore(); take its weights alone
  /// with start_from({.from = path}) before the first step, or evaluate them with a
  /// Replica(read_description(path), groups). read_weights(saved, network()) reads them to the host
  /// alone: not for a replica on a device.
  ///
  /// Errors   throws comm::AgreedError (74) if rank 0 cannot write, or if a checkpoint of this step
  ///          exists; (2) if `about` does not fit the network, or has a divisor that is none.
  /// Ranks    collective; rank 0 writes.
  std::string save(const std::string& folder);
  std::string save(const std::string& folder, CheckpointInfo about);
  std::string save(const std::string& folder, CheckpointInfo about,
                   const TrainingPosition& position);

 private:
  template <class Batches>
  static const data::Plan& agreed_plan(const Batches& batches) {
    const data::Plan* plan = nullptr;
    comm::together(batches.communicator(), [&] { plan = &batches.plan(); });
    return *plan;
  }
  static void require_end(bool is_endless);
  static const data::Plan& no_plan();  // of calls that do not compile
  static const Groups& no_ranks();
  static std::uint64_t step_of(std::optional<std::uint64_t> step);
  template <TrainingBatch Batch>
  static Piece piece_of(const Batch& batch) {
    using Value = typename Batch::Value;
    Piece piece = {step_of(batch.step_), std::get<0>(batch.value_).values()};
    if constexpr (std::is_same_v<typename std::tuple_element_t<1, Value>::Value, float>) {
      piece.targets.values = std::get<1>(batch.value_).values();
    } else {
      piece.targets.labels = std::get<1>(batch.value_).values();
    }
    if constexpr (std::tuple_size_v<Value> == 3) {
      piece.targets.weights = std::get<2>(batch.value_).values();
    }
    return piece;
  }
  Evaluation evaluate(const data::Plan& plan, const std::function<std::optional<Piece>()>& next,
                      const std::vector<Metric>& metrics);
  NonfiniteValue first_nonfinite(const data::Batch& batch,
                                 std::span<const nn::ExampleResult> results);
  void require_loss(const char* use) const;
  void make_network(const nn::NetworkShape& shape, const ReplicaOptions& options);
  void make_device(const ReplicaOptions& options);
  Step& training() const;
  Inference& inference() noexcept;
  /// Calls `take` with the outputs of each example of `features`, [b, shape.features].
  template <class Take>
  void forward_all(std::span<const float> features, Take take);
  std::vector<optim::Moment> moments() const;
  std::span<const float> gather_moment(optim::Moment moment);
  void copy_moment(optim::Moment moment, std::span<float> block);
  void restore_moment(optim::Moment moment, std::span<const float> block);
  void copy_part(const StateBlocks& to, int part, int parts);
  void copy_whole(std::span<const float> block, std::span<float> into);
  void set_completed(std::uint64_t steps, std::uint64_t examples);
  data::Batch stage_copy(data::Batch batch, std::span<const float> features);
  std::optional<data::Plan> plan_;  ///< training plan
  Groups groups_;
  optim::OptimizerOptions optimizer_ = {};  ///< of training
  std::size_t prefetch_;
  bool keeps_snapshots_;
  std::size_t rows_ = 0;  ///< maximum number of rows in a pass
  std::unique_ptr<Products<float>> products_;
  std::unique_ptr<nn::Network<float>> network_;
  std::unique_ptr<DeviceReplica> device_;
  struct Parts;  // used in the library only, so programs need not compile it
  std::unique_ptr<Parts> parts_;
  std::uint64_t steps_ = 0;
  std::uint64_t examples_ = 0;
  std::string unknown_loss_;  ///< name of the checkpoint's loss, if it is not known
  std::string why_skipped_;
};

}  // namespace lockstep::train
