// Micro-batches: a rank's piece of a batch is computed in parts, so that the network's buffers hold
// the rows of one part only. With strict products the sums of gradients are bitwise those of the
// whole piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/nonfinite.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

/// True if micro-batches of at most `limit` examples (0: any number) are less than a rank's rows of
/// a step, so that these are computed in several.
bool needs_micro_batches(std::size_t limit, const data::Plan& plan) noexcept;

/// The number of blocks of the weights' length that MicroBatches needs for a rank's rows of a step.
std::size_t micro_batch_blocks(std::size_t limit, const data::Plan& plan) noexcept;

/// Computes one rank's piece of each step in micro-batches. Local; one thread.
///
/// The gradient of a subtree of leaves is the sum of its micro-batches in the order of the tree
/// (numerics/leaf_tree.hpp): the additions that Network::weight_gradients() makes for all rows at
/// once. All else that a step computes is computed row by row. A layer that sums over the batch has
/// no such parts; a replica refuses it.
class MicroBatches {
 public:
  /// Of node_rows(limit, leaf) examples each, for the pieces of `plan`; `limit` is at least
  /// Plan::largest_leaf(). `network` must outlive this and have rows for `limit` examples. Throws
  /// std::bad_alloc.
  MicroBatches(nn::Network<float>& network, std::size_t limit, const data::Plan& plan);

  /// Sets the features of the next batch, [piece.size(), features] row-major, which must stay valid
  /// until its last sum(): `staged.bytes`, to be divided by `divisor`, if there are any, else
  /// `staged.floats`. `staged.batch` is not used.
  void stage(const data::StagedBatch& staged, float divisor);

  /// Begins a batch at step `step` of the run, counted from 1.
  /// The batch must have passed nn::require_targets().
  void begin(const data::Batch& batch, std::uint64_t step);

  /// Computes forward, loss and backward of `rows` of the batch's piece, a subtree of its leaves,
  /// and writes their weight gradients to `sums`, as long as the network's block. Rows after the
  /// piece hold no example, and count as zeros. Adds the time of forward to `seconds`.
  void sum(Range rows, std::span<float> sums, PhaseSeconds& seconds);

  /// The results of the piece of `rows`, after the sums of all its rows.
  std::span<const nn::ExampleResult> results(std::size_t rows) const noexcept {
    return std::span(results_).first(rows);
  }

  /// The first value of the batch that is not finite, in the order of a step.
  const NonfiniteValue& nonfinite() const noexcept { return nonfinite_; }

 private:
  void compute(Range rows, std::span<float> sums, PhaseSeconds& seconds);
  void read_features(Range rows);
  nn::Targets targets(Range rows) const;

  nn::Network<float>& network_;
  std::size_t limit_;
  std::span<const float> floats_;  // or
  std::span<const std::uint8_t> bytes_;
  std::optional<data::ByteScale> scale_;  // of these
  const data::Batch* batch_ = nullptr;
  std::uint64_t step_ = 0;
  std::vector<nn::ExampleResult> results_;
  AlignedBuffer<float> waiting_;  // sums of micro-batches that wait for their sibling in the tree
  NonfiniteValue nonfinite_;
};

/// nullptr unless needs_micro_batches(): then a piece is computed at once.
std::unique_ptr<MicroBatches> make_micro_batches(nn::Network<float>& network, std::size_t limit,
                                                 const data::Plan& plan);

}  // namespace lockstep::train
