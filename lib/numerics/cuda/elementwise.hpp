// What happens to single elements on a device.
#pragma once

#include <cstdint>
#include <span>

#include "lib/base/cuda/runtime.hpp"

namespace lockstep::cuda {

/// values[i] = float(bytes[i]) / divisor, rounded to nearest: what sources do on the processor.
/// Enqueues. `values` is as long as `bytes`.
/// Errors   throws DeviceError.
void divide_bytes(std::span<const std::uint8_t> bytes, float divisor, std::span<float> values,
                  const Stream& stream);

}  // namespace lockstep::cuda
