// What the library products compute beside the library.
#pragma once

#include <span>

#include "lib/base/cuda/runtime.hpp"
#include "lib/numerics/matrix.hpp"

namespace lockstep {

/// Enqueues: dx is zero from now on where x is not positive. Equal sizes.
void enqueue_relu_mask(std::span<const float> x, std::span<float> dx, const cuda::Stream& stream);

/// Enqueues the sums of dz's columns into the first dz.cols elements of `sums`, each in one order.
void enqueue_column_sums(Matrix<const float> dz, std::span<float> sums, const cuda::Stream& stream);

}  // namespace lockstep
