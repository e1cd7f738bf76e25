// The loss on a device.
#pragma once

#include <cstdint>
#include <span>

#include "lib/base/cuda/runtime.hpp"
#include "lib/nn/loss.hpp"
#include "lib/numerics/matrix.hpp"

namespace lockstep::cuda {

/// nn::softmax_cross_entropy() on device memory: the same bits, whatever is finite. What is not is
/// the one positive quiet NaN in dz, and some NaN or infinity in the results. Enqueues.
/// Shapes   z [B, C]; labels [B] in [0, C); results [B]; dz [B, C], or none of it. B may be 0.
/// Errors   throws DeviceError. Labels are not checked.
void softmax_cross_entropy(Matrix<const float> z, std::span<const std::int32_t> labels,
                           std::span<nn::ExampleResult> results, Matrix<float> dz,
                           const Stream& stream);

}  // namespace lockstep::cuda
