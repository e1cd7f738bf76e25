// One training step: from a rank's piece of a global batch to the same update on every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/base/aligned.hpp"
#include "lib/nn/network.hpp"
#include "lib/optim/adam.hpp"
#include "lib/train/report.hpp"

namespace lockstep::train {

class Sentinel;

/// What a step computed, the same on every rank.
struct StepResult {
  nn::Tally tally;     ///< loss and correct predictions of the global batch, before the update
  bool finite = true;  ///< gradient and optimizer state are finite everywhere
};

/// Seconds since the last call, or since it was made.
class Lap {
 public:
  double take() {
    const double now = seconds();
    return now - std::exchange(last_, now);
  }

 private:
  static double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }
  double last_ = seconds();
};

/// What the examples of all ranks added to the loss, gathered from the rank that computed each.
class GatheredResults {
 public:
  /// For at most `rows` rows in the blocks of all ranks: Plan::largest_gathered(). `comm` must
  /// outlive this.
  GatheredResults(std::size_t rows, comm::Communicator& comm);

  /// Copies this rank's results to its block of `block` rows, the rest of it zero. Returns the
  /// blocks of all ranks, to be gathered. Local.
  std::span<std::byte> put(std::span<const nn::ExampleResult> mine, std::size_t block);

  /// put(), and gathers the blocks. Valid until the next call.
  /// Ranks    collective.
  std::span<const nn::ExampleResult> gather(std::span<const nn::ExampleResult> mine,
                                            std::size_t block);

  /// The first `rows` rows, once they are gathered. Local.
  std::span<const nn::ExampleResult> first(std::size_t rows) const noexcept {
    return all_.span().first(rows);
  }

 private:
  comm::Communicator& comm_;
  AlignedBuffer<nn::ExampleResult> all_;
};

/// Blocks that are gathered in one collective.
using Blocks = std::vector<std::span<std::byte>>;

// clang-format off
/// The step of one rank; its peers run the same one at the same time.
///
/// run() is the whole algorithm. The functions below it differ between the reductions (canonical.cpp,
/// allreduce.cpp) and between the processor and a device (cuda/device_step.cpp).
///
/// Canonical reduction: every number of a step is one fixed expression of the global batch and the
/// weights.
///
///   forward, dX     one chain of fused multiply-adds an element        lib/numerics/strict.hpp
///   exp, log        fixed operations                                   lib/numerics/strict_math.hpp
///   batch norm      sums over leaves in order, then the balanced tree   lib/nn/layer.hpp      
///   loss, dz        a row's operations in the order of the classes     lib/nn/loss.hpp
///   dW, db          a chain over each leaf's examples, then the balanced tree over leaves
///   total loss      each leaf's in order, in double, then the same tree; counts are exact
///   no example      under FILE and OFF, rows of zeros that change no value   data/plan.hpp
///   division        once, by the step's true number of examples
///   Adam            one sequence of rounded operations a weight        lib/optim/adam.hpp
///
/// Proof that ranks, blocks, threads, vectors and transports cannot change a bit. Leaves are runs of
/// a global batch whose records and whose leaf size are functions of the plan alone, so each line
/// above names its operands and their order without naming a rank. Every operation is correctly
/// rounded (IEEE 754), hence a function of its operands' bits; by induction so is every line. Ranks
/// only decide where a part of an expression is evaluated: a rank evaluates the rows of its own
/// leaves, and the gradient's tree where Exchange says, updates its own slice of the block, and
/// publishes it. With tensor parallelism a chain continues on the next rank (tensor_parallel.hpp).
/// Messages move bits and never add. So two runs that agree on batch, leaf, seed and data agree on
/// everything, for any number of ranks and any mesh of them; under FILE and OFF, where the number
/// of workers decides which records meet in a step, for one number of them.
// clang-format on
class Step {
 public:
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step() = default;

  /// How gradients are summed: "allreduce", "canonical, by activations".
  virtual const char* name() const noexcept = 0;

  /// Steps completed.
  std::uint64_t steps() const noexcept { return steps_; }

  /// Rows of the network's buffers that hold this rank's piece of a batch. Local.
  virtual Range rows(Range piece) const noexcept { return {0, piece.size()}; }

  /// Forward, loss, backward, exchange, update, publish. Afterwards the weights are the same bits
  /// on every rank.
  ///
  /// The batch's features are in the network's rows(batch.piece), or staged on the device. Adds the
  /// time of each phase to `seconds`. Allocates nothing, except under FILE where a step needs more
  /// buffers for sums than any before.
  /// Errors   throws comm::CommError; comm::AgreedError (70) where replicas differ.
  /// Ranks    collective.
  StepResult run(const data::Batch& batch, PhaseSeconds& seconds);

 protected:
  /// `rows`: Plan::largest_gathered(). All must outlive the step.
  Step(std::size_t rows, comm::Communicator& comm, Sentinel& sentinel);

  comm::Communicator& comm_;

 private:
  /// Forward, loss and backward of this rank's rows. Local, but for sums over the global batch.
  virtual void compute(const data::Batch& batch) = 0;

  /// What this rank's examples added to the loss, after compute(). Local.
  virtual std::span<const nn::ExampleResult> results(const data::Batch& batch) = 0;

  /// Adds what is gathered together with the results: all ranks' rows, or nothing. Local.
  virtual void add_blocks(const data::Batch& /*batch*/, Blocks& /*blocks*/) {}

  /// From the ranks' parts of the gradient to its sums that this rank updates with. Collective.
  virtual void reduce(const data::Batch& batch, PhaseSeconds& seconds) = 0;

  /// Updates this rank's slice of the weights by gradient sums over `examples` examples. Local.
  virtual void update(std::uint64_t examples) = 0;

  /// Every rank gets the slices of all. Returns whether the update was finite on all. Collective.
  virtual bool publish() = 0;

  Sentinel& sentinel_;
  GatheredResults results_;
  Blocks blocks_;
  std::uint64_t steps_ = 0;
};

/// Which data canonical ranks exchange; does not affect results.
enum class Exchange {
  automatic,
  /// Ranks gather the activations of all rows and the gradients by them; each computes its slice of
  /// the weights' gradient over all leaves. Less data where the batch is small against the layers.
  activations,
  /// Ranks sum their own leaves, as far as the tree allows (numerics/leaf_tree.hpp), and exchange
  /// slices of these sums. The data does not grow with the batch, and a rank stores its own rows
  /// alone.
  partial_sums,
};

/// What a step is made for.
struct StepOptions {
  optim::AdamOptions adam;
  const data::Plan* plan = nullptr;                         ///< of training
  std::optional<std::uint64_t> audit_every = std::nullopt;  ///< see integrity.hpp
};

/// The exchange that `asked` means for this plan and network: `automatic` takes the one that moves
/// less data. The same on every rank.
/// Errors   throws ConfigError for an audit with partial sums, which has no rows of other ranks, or
///          with layers that sum over the batch.
Exchange chosen_exchange(Exchange asked, const StepOptions& options, const nn::NetworkShape& shape);

/// Blocks of the weights' size that the canonical step allocates for sums, besides the network's.
std::uint64_t sum_blocks(Exchange exchange, const data::Plan& plan);

/// Rows that the network's buffers must hold for the canonical step.
std::uint64_t rows_needed(Exchange exchange, const data::Plan& plan) noexcept;

/// The canonical step. Each rank stores the optimizer state of its own slice alone. `exchange` is
/// one of chosen_exchange()'s. The network has strict products, as many slices as there are ranks,
/// and at least rows_needed(). All must outlive the step.
std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network, Exchange exchange,
                                          const StepOptions& options, comm::Communicator& comm,
                                          Sentinel& sentinel);

/// The baseline all-reduce step: each rank sums its own piece's gradients, one all-reduce adds them
/// up, and every rank computes the whole update. The order of sums depends on the ranks and on the
/// transport. All must outlive the step.
std::unique_ptr<Step> make_allreduce_step(nn::Network<float>& network, const StepOptions& options,
                                          comm::Communicator& comm, Sentinel& sentinel);

}  // namespace lockstep::train
