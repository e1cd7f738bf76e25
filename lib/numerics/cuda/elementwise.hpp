// What happens to single elements on a device.
#pragma once

#include <cstdint>
#include <span>

#include "lib/base/cuda/runtime.hpp"
#include "lib/numerics/matrix.hpp"

namespace lockstep::cuda {
/// values[i] = float(bytes[i]) / divisor, rounded to nearest: what sources do on the processor.
/// Enqueues. `values` is as long as `bytes`.
/// Errors   throws DeviceError.
void divide_bytes(std::span<const std::uint8_t> bytes, float divisor, std::span<float> values,
                  const Stream& stream);

}  // namespace lockstep::cuda

namespace lockstep {
// What the library products compute beside the library.

/// Enqueues: dx is zero from now on where x is not positive. Equal sizes.
void enqueue_relu_mask(std::span<const float> x, std::span<float> dx, const cuda::Stream& stream);

/// Enqueues the sums of dz's columns into the first dz.cols elements of `sums`, each in one order.
void enqueue_column_sums(Matrix<const float> dz, std::span<float> sums, const cuda::Stream& stream);

}  // namespace lockstep

namespace lockstep::cuda {
// A hash of device memory that blocks of threads may take in any order.

/// Sets *hash, on the device, to the sum modulo 2^64 of a mix of every value's bits and its place.
///
/// One value that differs always gives another hash. It is no other hash of this project: compare
/// it with its like alone. Enqueues.
/// Source   the mix is that of splitmix64 (Steele, Lea & Flood 2014), a permutation of 64 bits.
/// Errors   throws DeviceError.
void hash_values(std::span<const float> values, unsigned long long* hash, const Stream& stream);

}  // namespace lockstep::cuda
