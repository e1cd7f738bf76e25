// What training costs, before it begins: the memory of a rank's replica, and the work of a step,
// which is its arithmetic and the bytes that it has to move, by phase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/plan.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/replica_options.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::train {

/// The lengths of the buffers of a rank that trains with a plan, or only evaluates. Bytes are in
/// double, so that no width overflows them.
struct ReplicaBuffers {
  Exchange exchange = Exchange::automatic;  ///< chosen_exchange(), of the canonical reduction
  std::size_t rows = 0;                     ///< of the network's buffers
  double rows_on_host = 0;                  ///< `rows`; 0 with a device
  double blocks = 2;     ///< as long as the weights: these, gradients; moments and sums of training
  double read_rows = 0;  ///< of features, read ahead
  std::size_t leaf = 0;  ///< rows that are summed together; 0: without training

  /// Bytes for each layer: its blocks, or a rank's part of them where `model_ranks` ranks share it
  /// (shardings_of(), whose errors it throws), and its outputs and their gradients, as if these
  /// were not sharded.
  std::vector<double> bytes_of_layers(const nn::NetworkShape& shape,
                                      std::uint64_t model_ranks) const;

  /// Bytes for all layers, the input and what else a network of this shape needs on `threads`
  /// threads of the rank's products. Throws as above.
  double bytes(const nn::NetworkShape& shape, std::uint64_t model_ranks, int threads) const;
};

/// The buffers for training on `plan`, and for evaluation, which need no more.
/// Errors   throws ConfigError for a network without anything to train, for micro-batches that it
///          or the plan cannot have, and as chosen_exchange().
/// Ranks    local; the same on every rank.
ReplicaBuffers training_buffers(const nn::NetworkShape& shape, const data::Plan& plan,
                                const ReplicaOptions& options);

/// The buffers for evaluation alone, on `ranks` ranks of "batch". Local.
ReplicaBuffers evaluation_buffers(int ranks, const ReplicaOptions& options);

/// Blocks as long as all weights, that snapshots of the training state take beside the replicas.
struct SnapshotBlocks {
  double on_rank_0 = 0;  ///< of the next checkpoint
  double on_a_host = 0;  ///< with ReplicaOptions::keeps_snapshots, on each host
};

/// The blocks for training; evaluation has none. Local.
SnapshotBlocks snapshot_blocks(const ReplicaOptions& options);

/// Throws ConfigError unless this machine has memory for its ranks' replicas, of `threads` threads
/// each, and its snapshots, and as shardings_of(). Local.
void require_memory(const nn::NetworkShape& shape, const ReplicaBuffers& buffers,
                    const SnapshotBlocks& snapshots, const Groups& groups, int threads);

/// The remedy of errors about memory.
inline constexpr const char* less_memory =
    "use narrower layers, `micro_batch`, a smaller `batch_size` or `prefetch`, fewer ranks a host, "
    "or for convolutions fewer `threads`";

/// The work of one phase, summed over all ranks. In double, so that no network overflows them.
struct Work {
  double flops = 0;  ///< floating-point operations of dense products: 2 for each multiply-add
  double bytes = 0;  ///< read and written
};

// clang-format off
/// The work of one step over a full global batch, by the phases of PhaseSeconds.
///
/// B examples of the batch, R replicas, of which r have examples, F features and e bytes of each at
/// the source; for each layer that multiplies (dense, convolution) m multiply-adds an example, i
/// inputs, o outputs, w weights; W weights of all layers, X values of an example that replicas
/// exchange (NetworkShape::exchanged_values()), P parts of sums (step.hpp), s blocks of optimizer
/// state. For replicas of one rank:
///
///   data      bytes  B F (e + 4)                      read once, written as floats
///   forward   flops  2 B m a layer
///             bytes  4 (B (i + o) + r w) a layer      a rank with examples reads all weights
///   backward  flops  2 B m for dW of trained layers, 2 B m for dX of layers above the first that
///                    is trained
///             bytes  4 (B (i + o) + w) for dW, 4 (B (2 i + o) + r w) for dX
///   exchange  bytes  8 (R - 1) B X by activations     a rank reads the rows of others and writes them
///                    8 (R - 1) W P by sums            the same of its slice, from every other rank
///                    4 (R W + W + 2 (R - 1) W) all-reduce: reduce-scatter, then all-gather
///   update    bytes  4 (1 + 2 + 2 s) W: gradient read, weight and state read and written; by sums
///                    4 R P W more, the parts; R times as much with all-reduce, on every rank
///   publish   bytes  8 (R - 1) W: a rank reads the slices of others and writes them; none with
///                    all-reduce
///
/// The M ranks of a replica each read all features. The numbers of a layer count once for each rank
/// that has them, by its Sharding:
///
///   columns           M i, o, w, m          gathered_columns  M i, M o, w, m
///   rows              i, M o, w, m          none              M i, M o, M w, M m
///
/// and in X the o of columns, which are the i of the rows above them, once, all else M times.
///
/// What is counted is what an implementation cannot avoid, if caches hold what a product reads more
/// than once. Not counted: exact zeros, which may be left out (all arithmetic is counted as dense),
/// messages between the ranks of a replica, activations, losses, normalisation and the optimizer's
/// arithmetic.
// clang-format on
struct StepWork {
  Work data;
  Work forward;
  Work backward;
  Work exchange;
  Work update;
  Work publish;
  double resident = 0;  ///< bytes of the buffers that a rank touches in a step

  /// The arithmetic of the products.
  double flops() const noexcept { return forward.flops + backward.flops; }

  /// The bytes of the phases that do not multiply.
  double bytes() const noexcept {
    return data.bytes + exchange.bytes + update.bytes + publish.bytes;
  }
};

/// The work of a step of `plan`, with `model_ranks` ranks a replica. `feature_bytes`: of a feature
/// at the source.
///
/// Errors   as training_buffers() and shardings_of().
/// Ranks    local; the same on every rank.
StepWork work_of(const nn::NetworkShape& shape, const data::Plan& plan,
                 const ReplicaOptions& options, double feature_bytes,
                 std::uint64_t model_ranks = 1);

}  // namespace lockstep::train
