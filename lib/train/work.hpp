// The work of a training step: its arithmetic, and the bytes that it has to move, by phase.
#pragma once

#include "lockstep/data/plan.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/replica_options.hpp"

namespace lockstep::train {

/// The work of one phase, summed over all ranks. In double, so that no network overflows them.
struct Work {
  double flops = 0;  ///< floating-point operations of dense products: 2 for each multiply-add
  double bytes = 0;  ///< read and written
};

// clang-format off
/// The work of one step over a full global batch, by the phases of PhaseSeconds.
///
/// B examples of the batch, R ranks, F features and e bytes of each at the source; for each layer
/// that multiplies (dense, convolution) m multiply-adds an example, i inputs, o outputs, w weights;
/// W weights of all layers, X values of an example that ranks exchange
/// (NetworkShape::exchanged_values()), P parts of sums (step.hpp), s blocks of optimizer state.
///
///   data      bytes  B F (e + 4)                      read once, written as floats
///   forward   flops  2 B m a layer
///             bytes  4 (B (i + o) + R w) a layer      every rank reads all weights
///   backward  flops  2 B m for dW of trained layers, 2 B m for dX of layers above the first that
///                    is trained
///             bytes  4 (B (i + o) + w) for dW, 4 (B (2 i + o) + R w) for dX
///   exchange  bytes  8 (R - 1) B X by activations     a rank reads the rows of others and writes them
///                    8 (R - 1) W P by sums            the same of its slice, from every other rank
///                    4 (R W + W + 2 (R - 1) W) all-reduce: reduce-scatter, then all-gather
///   update    bytes  4 (1 + 2 + 2 s) W: gradient read, weight and state read and written; by sums
///                    4 R P W more, the parts; R times as much with all-reduce, on every rank
///   publish   bytes  8 (R - 1) W: a rank reads the slices of others and writes them; none with
///                    all-reduce
///
/// What is counted is what an implementation cannot avoid, if caches hold what a product reads more
/// than once. Not counted: exact zeros, which may be left out (all arithmetic is counted as dense),
/// activations, losses, normalisation and the optimizer's arithmetic.
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

/// The work of a step of `plan` on whole replicas (no "model" in a mesh). `feature_bytes`: of a
/// feature at the source. `options`: reduction, exchange and optimizer are used.
///
/// Errors   throws ConfigError: see chosen_exchange().
/// Ranks    local; the same on every rank.
StepWork work_of(const nn::NetworkShape& shape, const data::Plan& plan,
                 const ReplicaOptions& options, double feature_bytes);

}  // namespace lockstep::train
