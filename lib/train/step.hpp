// One training step: computes the same weight update on every rank from each rank's piece of a
// global batch. Defines the order of every sum, and proves that results do not depend on ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/train/micro_batches.hpp"
#include "lockstep/train/replica_options.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

class Sentinel;

/// The result of a step, identical on every rank.
struct StepResult {
  nn::Tally tally;         ///< loss and correct predictions of the global batch, before the update
  std::uint64_t stop = 0;  ///< the greatest request of any rank to stop after this step; 0: none
  /// "loss", "gradient" or "gradient or its update" if that is not finite on some rank (a gradient:
  /// if it or its square is not); null otherwise.
  const char* not_finite = nullptr;
  /// Weights and optimizer state are those from before the step, on every rank.
  bool skipped = false;
  std::optional<double> gradient_norm = std::nullopt;  ///< with clip_norm, before it was clipped
  std::span<const RankMessage> messages = {};          ///< of every rank; valid until the next step
};

/// Example results (loss, correct, weight) of all ranks, all-gathered.
class GatheredResults {
 public:
  /// `rows`: maximum number of rows in the blocks of all ranks, Plan::largest_gathered(). `comm`
  /// must outlive this.
  GatheredResults(std::size_t rows, comm::Communicator& comm);

  /// Copies this rank's results to its block and fills the rest with zeros. Returns the blocks of
  /// all ranks, to be all-gathered. Local.
  std::span<std::byte> put(std::span<const nn::ExampleResult> mine, const data::Batch& batch);

  /// After the all-gather: the results in the order of the batch's rows, [batch.summed_rows]. Valid
  /// until the next put(). Local.
  std::span<const nn::ExampleResult> in_order(const data::Batch& batch);

  /// put(), all-gather and in_order().
  /// Ranks    collective.
  std::span<const nn::ExampleResult> gather(std::span<const nn::ExampleResult> mine,
                                            const data::Batch& batch);

 private:
  comm::Communicator& comm_;
  AlignedBuffer<nn::ExampleResult> all_;
};

/// The targets of this rank's examples, and their weights. Local.
inline nn::Targets targets_of(const data::Batch& batch) noexcept {
  nn::Targets targets = {batch.labels, batch.values};
  targets.weights = batch.weights;
  return targets;
}

/// The batch of `rank` at `step` of an epoch of `plan`, with these targets and without ids. Local.
inline data::Batch batch_with_targets(const data::Plan& plan, std::uint64_t step,
                                      std::uint64_t rank, const nn::Targets& targets) noexcept {
  data::Batch batch = data::batch_at(plan, step, rank, targets.labels, {});
  batch.values = targets.values;
  batch.weights = targets.weights;
  return batch;
}

/// Blocks that are all-gathered in one collective.
using Blocks = std::vector<std::span<std::byte>>;

/// Segments of a flat block of `layout`, in order, each of which is cut into an equal range for
/// every rank. So every rank has a part of every large tensor: products leave out terms that are
/// zero, most of which are in the first layer, and contiguous slices would give one rank less work.
/// A range has at least `least` elements, unless the block is too small for that. Local.
std::vector<Range> segments_of(const nn::ParameterLayout<float>& layout, std::size_t ranks,
                               std::size_t least = 16384);

/// The ranges of `rank`, one in each segment. Local.
std::vector<Range> ranges_in(std::span<const Range> segments, std::size_t rank, std::size_t ranks);

/// The number of elements of all ranges. Local.
std::size_t elements_of(std::span<const Range> ranges) noexcept;

/// The parts of all tensors of `layout` in `slice`, the ranges of its block that a rank updates:
/// positions among the elements of all ranges. Local.
std::vector<optim::UpdatedTensor> tensors_in(const nn::ParameterLayout<float>& layout,
                                             std::span<const Range> slice);

/// Sums over `batch`, the ranks that update other slices, and `model`, those that have other parts
/// of tensors; null: none. Both must outlive the result.
optim::RankSums rank_sums(comm::Communicator* batch, comm::Communicator* model);

/// Options of a step.
struct StepOptions {
  optim::OptimizerOptions optimizer;
  const data::Plan* plan = nullptr;                         ///< training plan
  std::optional<std::uint64_t> audit_every = std::nullopt;  ///< audit interval in steps
  /// Set: all ranks skip the update of a step whose loss or gradient is not finite on one of them,
  /// the ranks of this communicator.
  comm::Communicator* skip_with = nullptr;
  comm::Communicator* model = nullptr;  ///< the ranks that have other parts of tensors; null: none
  std::size_t micro_batch = 0;          ///< see ReplicaOptions
};

// clang-format off
/// The training step of one rank; all ranks run it at the same time.
///
/// run() implements the algorithm. The private virtual functions have implementations for the
/// processor (processor_step.cpp) and for devices (cuda/device_step.cpp), for each reduction.
///
/// Canonical reduction: every number of a step is one fixed expression of the global batch and the
/// weights.
///
///   forward, dX     one chain of fused multiply-adds per element      lib/numerics/strict.hpp
///   exp, log        fixed operations                                  lib/numerics/strict_math.hpp
///   batch norm      sums over leaves in order, then the balanced tree lib/nn/layer.hpp
///   loss, dz        a row's operations in the order of the classes    lib/nn/loss.hpp
///   dW, db          a chain over each leaf's examples, then the balanced tree over leaves
///   total loss      each leaf's in order, in double, then the same tree; counts are exact
///   no example      with FILE and OFF, rows of zeros that change no value  data/plan.hpp
///   total weight    each leaf's in order, in double, then the same tree
///   division        once, by the total weight: without weights the number of examples
///   norms           exact sums of squares, rounded once               lib/numerics/exact_squares.hpp
///   update          one sequence of rounded operations per weight     lib/optim/optimizer.hpp
///
/// Proof that the result does not depend on ranks, blocks, threads, vector width or transport.
/// Leaves are intervals of a global batch; its records and its leaf size are functions of the plan
/// alone, so the operands and their order in each line above do not depend on ranks. Every
/// operation is correctly rounded (IEEE 754), hence a function of its operands' bits; by induction
/// so is every line. Ranks only determine where a part of an expression is evaluated: a rank
/// evaluates the rows of its own leaves and its part of the gradient's tree (see Exchange), updates
/// its own slice of the block, and publishes it. With tensor parallelism a chain continues on the
/// next rank (tensor_parallel.hpp). Messages copy bits and never add. So two runs with equal batch,
/// leaf, seed and data have equal results, for any number of ranks and any mesh. With FILE and OFF
/// the number of workers determines the records of a step, so results are equal for equal numbers
/// of workers.
// clang-format on
class Step {
 public:
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step();

  /// The reduction: "allreduce", "canonical, by activations".
  virtual const char* name() const noexcept = 0;

  /// Number of completed steps.
  std::uint64_t steps() const noexcept { return steps_; }

  /// Number of completed steps of a run that this one continues: random layers, sentinel and audit
  /// depend on it. Local.
  void set_steps(std::uint64_t steps) noexcept { steps_ = steps; }

  /// The ranges of the flat block that this rank updates, in order, and the optimizer's state of
  /// them, one after the other. Local.
  virtual std::span<const Range> slice() const noexcept = 0;
  virtual optim::OptimizerState& optimizer() noexcept = 0;

  /// The segments of the flat block, each of which is cut into an equal range for every rank;
  /// empty: each rank updates all. Local.
  virtual std::span<const Range> segments() const noexcept = 0;

  /// Computes the pieces in micro-batches; null: each at once. Local.
  MicroBatches* micro_batches() const noexcept { return micro_batches_.get(); }

  /// Rows of the network's buffers that hold this rank's piece of a batch, without micro-batches.
  /// Local.
  virtual Range rows(Range piece) const noexcept { return {0, piece.size()}; }

  /// The results of this rank's examples, and the sums of its slice of the gradients, of the last
  /// run(). A device keeps its gradients: then they are empty. Local.
  virtual std::span<const nn::ExampleResult> results(const data::Batch& batch) = 0;
  virtual std::span<const optim::GradientSums> gradient_sums() { return {}; }

  /// Runs forward, loss, backward, exchange, update and publish. Afterwards the weights are bitwise
  /// identical on every rank.
  ///
  /// The batch's features must be in the network's rows(batch.piece), staged on the device, or with
  /// micro-batches those of MicroBatches::stage(). Adds the time of each phase to `seconds`,
  /// which begins with that of reading the batch. `stop`: this rank's request to stop, a number of
  /// the caller's; it travels with the results. Allocates no memory that grows with network or
  /// batch, except for embeddings, audits, where a batch has another size than the one before, and
  /// with FILE sum buffers if a step needs more than all before.
  ///
  /// The update is that of the mean of the losses with their weights: Tally.
  ///
  /// The exchange is one collective, and computation waits for it: on processors MPI moves bytes on
  /// the cores that compute. On 2 cores of an EPYC, MPI_Iallgather of 0.4 to 6.4 MB a rank beside
  /// work of 0.7 to 3 times its duration (Open MPI 4.1, shared memory and TCP) took 0.92 to 1.05 of
  /// both in turn with 20 calls of MPI_Test in the work, and 0.96 to 1.14 without.
  ///
  /// If the loss is not finite, there is no update on the processor. If a gradient is not, some
  /// ranks have updated their slices, unless the options say to skip such steps.
  ///
  /// Errors   throws comm::CommError; comm::AgreedError: replicas differ (70), the weights of the
  ///          step's examples sum to zero, or to a number whose inverse is no float32 (65).
  /// Ranks    collective.
  StepResult run(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop = 0);

  /// Steps that are not finite are skipped: nothing may be updated before update().
  bool skips() const noexcept { return skips_with_ != nullptr; }

 protected:
  /// All must outlive the step.
  Step(const StepOptions& options, comm::Communicator& comm, Sentinel& sentinel,
       std::unique_ptr<MicroBatches> micro_batches = nullptr);

  comm::Communicator& comm_;
  const std::unique_ptr<MicroBatches> micro_batches_;  // null: the whole piece at once

 private:
  /// Forward, loss and backward of this rank's rows. Adds the time of the first two to
  /// `seconds.forward`. Local, except for sums over the global batch.
  virtual void compute(const data::Batch& batch, PhaseSeconds& seconds) = 0;

  /// Appends the blocks to all-gather together with the results: the rows of all ranks, or none.
  /// Local.
  virtual void add_blocks(const data::Batch& /*batch*/, Blocks& /*blocks*/) {}

  /// Sums the ranks' parts of the gradient, as needed for this rank's update. Collective.
  virtual void reduce(const data::Batch& batch, PhaseSeconds& seconds) = 0;

  /// True if this rank's slice of the gradients, and its square, are finite: of sums over examples
  /// of weight `weight` in all. Called before update() if the options say to skip such steps.
  /// Local.
  virtual bool has_finite_gradients(double weight);

  /// Updates this rank's slice of the weights with gradient sums over examples of weight `weight`
  /// in all. Local; collective if optim::needs_norms().
  virtual void update(double weight) = 0;

  /// All-gathers the updated slices, where ranks updated slices. Returns true if the update was
  /// finite on every rank. Collective.
  virtual bool publish() = 0;

  /// Throws on all ranks: the weights of the step sum to `weight`, which cannot divide. Collective.
  [[noreturn]] void throw_of_weight(const data::Batch& batch, double weight);

  Sentinel& sentinel_;
  comm::Communicator* skips_with_;
  GatheredResults results_;
  AlignedBuffer<RankMessage> messages_;  // of every rank
  Blocks blocks_;
  std::uint64_t steps_ = 0;
};

/// ReplicaOptions::exchange of a canonical replica on the processor: `automatic` chooses the one
/// that moves less data. The result is the same on every rank.
/// Errors   throws ConfigError for an audit or micro-batches with what they cannot be used with.
Exchange chosen_exchange(const nn::NetworkShape& shape, const data::Plan& plan,
                         const ReplicaOptions& options);

/// The most parts of a batch's tree of sums on any rank; 0 without partial sums. A canonical step
/// has two blocks of the weights' size for each, to exchange it; one rank on the processor has one.
std::uint64_t sum_parts(Exchange exchange, const data::Plan& plan);

/// Number of rows that the network's buffers must have for the canonical step, without
/// micro-batches.
std::uint64_t rows_needed(Exchange exchange, const data::Plan& plan) noexcept;

/// Creates the canonical step. Each rank stores the optimizer state of its own slice only.
/// `exchange` is a result of chosen_exchange(). The network must have strict products, one slice
/// per rank, and at least rows_needed() rows. All arguments must outlive the step.
std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network, Exchange exchange,
                                          const StepOptions& options, comm::Communicator& comm,
                                          Sentinel& sentinel);

/// Creates the baseline all-reduce step: each rank sums the gradients of its own piece, one
/// all-reduce adds them, and every rank computes the whole update. The order of sums depends on the
/// number of ranks and on the transport. All arguments must outlive the step.
std::unique_ptr<Step> make_allreduce_step(nn::Network<float>& network, const StepOptions& options,
                                          comm::Communicator& comm, Sentinel& sentinel);

}  // namespace lockstep::train
