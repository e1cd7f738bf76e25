// Adam on a device: the sum of all ranks' partial gradients of a slice and its update, in one
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/cuda/runtime.hpp"
#include "lib/optim/adam.hpp"

namespace lockstep::cuda {

/// What a step reads and writes. All of it is non-owned device memory, floats at
/// addresses and counts that are multiples of 16 bytes and of 4 floats.
struct DeviceAdamSlice {
  float* values = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  std::size_t count = 0;

  /// The sums of gradients, in the order of the tree: part p is the `count` floats from
  /// parts[offsets[p]] on, and after it come merges[p] sums, see merges_of() (leaf_tree.hpp).
  const float* parts = nullptr;
  const std::size_t* offsets = nullptr;
  const std::uint8_t* merges = nullptr;
  std::size_t part_count = 0;  ///< at least 1

  /// Of the step: read when the kernel runs, so that a recorded one runs on.
  const optim::AdamFactors* factors = nullptr;
  /// Set to 1 where a second moment is not finite, else left alone.
  int* not_finite = nullptr;
};

/// The tree over the parts, and Adam::update() (optim/adam.hpp): the same bits as on the processor,
/// where gradients are finite. Enqueues.
/// Errors   throws DeviceError.
void sum_and_update(const DeviceAdamSlice& slice, const Stream& stream);

}  // namespace lockstep::cuda
