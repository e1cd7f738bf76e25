// Element-wise and column kernels on device memory. All of them enqueue.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/numerics/matrix.hpp"

namespace lockstep::cuda {
/// values[i] = float(bytes[i]) / divisor, rounded to nearest, as data sources compute it on the
/// processor. `values` is as long as `bytes`.
/// Errors   throws DeviceError.
void divide_bytes(std::span<const std::uint8_t> bytes, float divisor, std::span<float> values,
                  const Stream& stream);

/// Sets dx to zero where ReLU is inactive (x <= 0). Equal sizes.
void apply_relu_gradient(std::span<const float> x, std::span<float> dx, const Stream& stream);

/// Writes the column sums of dz to the first dz.cols elements of `sums`, each in a fixed order.
void sum_columns(Matrix<const float> dz, std::span<float> sums, const Stream& stream);

/// Sets *hash, on the device, to the sum modulo 2^64 of a mix of every value's bits and index.
///
/// Changing one value always changes the hash. Thread blocks may add in any order. Compare it only
/// with results of this function: other hashes of the project differ.
/// Source   the mix is that of splitmix64 (Steele, Lea & Flood 2014), a permutation of 64 bits.
/// Errors   throws DeviceError.
void hash_values(std::span<const float> values, unsigned long long* hash, const Stream& stream);

}  // namespace lockstep::cuda
