// Adam on a device: the sum of all ranks' partial gradients of a slice and its update, in one
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::cuda {

/// The arguments of a step. Non-owning device memory; addresses are multiples of 16 bytes, counts
/// of 4 floats.
struct DeviceAdamSlice {
  float* values = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  std::size_t count = 0;

  /// The gradient sums, in the order of the tree: part p is the `count` floats from
  /// parts[offsets[p]] on, followed by merges[p] sums, see merges_of() (leaf_tree.hpp).
  const float* parts = nullptr;
  const std::size_t* offsets = nullptr;
  const std::uint8_t* merges = nullptr;
  std::size_t part_count = 0;  ///< at least 1

  /// The step's factors, read when the kernel runs, so that a recorded kernel can be replayed.
  const optim::AdamFactors* factors = nullptr;
  /// Set to 1 if a second moment, or what check_sums() computes, is not finite; else unchanged.
  int* not_finite = nullptr;
};

/// The tree over the parts, then Adam::update() (optim/optimizer.hpp): the same bits as on the
/// processor if gradients are finite. Enqueues. Errors   throws DeviceError.
void sum_and_update(const DeviceAdamSlice& slice, const Stream& stream);

/// optim::is_finite() of the sums over the tree: only sets `not_finite`. Enqueues.
/// Errors   throws DeviceError.
void check_sums(const DeviceAdamSlice& slice, const Stream& stream);

}  // namespace lockstep::cuda
