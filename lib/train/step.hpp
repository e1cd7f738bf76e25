// One step: from a rank's piece of a batch to the same update on every rank. Two ways.
#pragma once

#include <chrono>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/optim/adam.hpp"
#include "lib/train/report.hpp"

namespace lockstep::train {

/// What the gradient of a step was, as far as the trainer must know.
struct StepResult {
  nn::Tally tally;     ///< of the whole global batch, the same on every rank
  bool finite = true;  ///< the gradient was finite everywhere; the same on every rank
};

/// Forward, backward, reduce, update, publish, for one rank; its peers do the same.
///
/// Afterwards the weights are the same bits on every rank. One thread a rank calls it; a step
/// allocates nothing, but for a sum's buffers under FILE where a step needs more than the first.
class Step {
 public:
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step() = default;

  /// How gradients are summed, in words: "allreduce", "canonical, by activations".
  virtual const char* name() const noexcept = 0;

  /// Where the features of this rank's piece of the next batch belong.  [piece.size(), features]
  /// Errors   throws std::logic_error where batches are staged.
  virtual Matrix<float> inputs(Range piece) = 0;

  /// Memory for batches that the step copies from there by itself; null where inputs() takes them.
  virtual std::pmr::memory_resource* staging() noexcept { return nullptr; }

  /// Begins to copy such a batch, whose bytes are to be divided by `divisor`: each before its
  /// run(), and in their order; the next one may be staged before this one runs. Local.
  virtual void stage(const data::StagedBatch& /*staged*/, float /*divisor*/) {}

  /// Lets go of the memory of batches that were staged, and will not run. Local.
  virtual void forget_staged() noexcept {}

  /// `batch` has its features at inputs(batch.piece), or is staged. Collective; throws
  /// comm::CommError. Adds to `seconds` where the time went.
  virtual StepResult run(const data::Batch& batch, PhaseSeconds& seconds) = 0;

  /// A hash of this slice of the weights, of a kind that such steps have in common; none where it
  /// is taken of what show_weights() shows. Local.
  virtual std::optional<std::uint64_t> hash_of_weights(Range /*slice*/) { return std::nullopt; }

  /// Brings this slice of the network's block of weights up to date, where the step computes on
  /// weights that stand elsewhere. Local.
  virtual void show_weights(Range /*slice*/) {}
};

/// The textbook's: each rank sums its own piece's gradients, one all-reduce adds them up, and every
/// rank takes the whole Adam step. The sum's order depends on the ranks and on the transport.
///
/// The parts must outlive the step.
std::unique_ptr<Step> make_allreduce_step(nn::Network<float>& network,
                                          const optim::AdamOptions& options,
                                          comm::Communicator& comm);

/// What canonical ranks show each other; never which bits come out.
enum class Exchange {
  automatic,
  /// Ranks gather all rows' activations and the gradients by them; each evaluates its slice of the
  /// gradient over all leaves. Less to send where the batch is small against the layers.
  activations,
  /// Ranks sum their own leaves, as far as the tree allows (numerics/leaf_tree.hpp), and send each
  /// other the sums' slices. What is sent does not grow with the batch, and no rank holds others'
  /// rows.
  partial_sums,
};

/// What a canonical step is made for.
struct CanonicalOptions {
  optim::AdamOptions adam;
  const data::Plan* plan = nullptr;                         ///< of training
  std::optional<std::uint64_t> audit_every = std::nullopt;  ///< see audit.hpp
};

/// The exchange that `asked` means for this plan and network: `automatic` takes the one that moves
/// less. The same on every rank.
/// Errors   throws ConfigError for an audit with partial sums, for it needs all rows, or with
/// layers
///          that sum over the batch.
Exchange chosen_exchange(Exchange asked, const CanonicalOptions& options,
                         const nn::NetworkShape& shape);

/// Blocks of the weights' size that the step keeps for sums, besides those of the network.
std::uint64_t sum_blocks(Exchange exchange, const data::Plan& plan);

/// Rows that the network's buffers must hold.
std::uint64_t rows_needed(Exchange exchange, const data::Plan& plan) noexcept;

/// Ours: every number of a step is one fixed expression of the global batch and the weights.
///
// clang-format off
///   forward, dX     one chain of fused multiply-adds an element        lib/numerics/strict.hpp
///   exp, log        fixed operations                                   lib/numerics/strict_math.hpp
///   batch norm      sums over leaves in order, then the balanced tree   lib/nn/layer.hpp
///   loss, dz        a row's operations in the order of the classes     lib/nn/loss.hpp
///   dW, db          a chain over each leaf's examples, then the balanced tree over leaves
///   total loss      each leaf's in order, in double, then the same tree; counts are exact
///   no example      under FILE and OFF, rows of zeros that change no value   data/plan.hpp
///   division        once, by the step's true number of examples
///   Adam            one sequence of rounded operations a weight        lib/optim/adam.hpp
// clang-format on
///
/// Proof that ranks, blocks, threads, vectors and transports cannot touch a bit. Leaves are runs of
/// a global batch whose records and whose leaf size are functions of the plan alone, so each line
/// above names its operands and their order without naming a rank. Every operation is correctly
/// rounded (IEEE 754), hence a function of its operands' bits; by induction so is every line. Ranks
/// only choose who evaluates which part of an expression: a rank evaluates the rows of its own
/// leaves, and the gradient's tree where Exchange says, updates its own slice of the block, and
/// shows that. Under a mesh, ranks hand a chain on from one to the next (sharded_dense.hpp).
/// Messages move bits and never add. So two runs that agree on batch, leaf, seed and data agree on
/// everything, for any number of ranks and any mesh of them; under FILE and OFF, where the number
/// of workers decides which records meet in a step, for one number of them.
///
/// Adam's moments are kept for the own slice alone.
/// `exchange` is one of chosen_exchange()'s. The network has strict products, as many slices as
/// there are ranks, and at least rows_needed().
std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network, Exchange exchange,
                                          const CanonicalOptions& options,
                                          comm::Communicator& comm);

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

}  // namespace lockstep::train
