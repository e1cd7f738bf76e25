// Optimizers on a device: the sum of all ranks' partial gradients of a slice and a pass over it, in
// one kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/optim/update_passes.hpp"

namespace lockstep::cuda {

/// The arrays of an update. Non-owning device memory; addresses are multiples of 16 bytes, counts
/// of 4 floats.
struct DeviceUpdateSlice {
  float* values = nullptr;
  float* first = nullptr;  ///< null: the optimizer does not have this moment
  float* second = nullptr;
  std::size_t count = 0;

  /// The gradient sums, in the order of the tree: part p is the `count` floats from
  /// parts[offsets[p]] on, followed by merges[p] sums, see merges_of() (leaf_tree.hpp).
  const float* parts = nullptr;
  const std::size_t* offsets = nullptr;
  const std::uint8_t* merges = nullptr;
  std::size_t part_count = 0;  ///< at least 1

  /// Set to 1 if a gradient or its square, a second moment, a new weight, or what check_sums()
  /// computes, is not finite; else unchanged.
  int* not_finite = nullptr;
};

/// The tree over the parts, then a pass of optim::UpdatePasses over the weights of `range`, which
/// begins at a multiple of 4: the same bits as on the processor if gradients are finite. Weights
/// after the range, up to the next multiple of 4, must be padding. `factors`: on the device, read
/// when the kernel runs, so that a recorded kernel can be replayed. Enqueues.
/// Errors   throws DeviceError.
void run_pass(optim::Pass pass, const DeviceUpdateSlice& slice, Range range,
              const optim::PassFactors* factors, const Stream& stream);

/// Adds to `words`, ExactSquares::words on the device, the exact sum of squares of a range, as of
/// run_pass(). Enqueues.
/// Errors   throws DeviceError.
void add_squares(optim::UpdateKernels::Squared what, const DeviceUpdateSlice& slice, Range range,
                 const optim::PassFactors* factors, unsigned long long* words,
                 const Stream& stream);

/// optim::is_finite() of the sums over the tree: only sets `not_finite`. Enqueues.
/// Errors   throws DeviceError.
void check_sums(const DeviceUpdateSlice& slice, const optim::PassFactors* factors,
                const Stream& stream);

}  // namespace lockstep::cuda
