// A hash of device memory that blocks of threads may take in any order.
#pragma once

#include <cstdint>
#include <span>

#include "lib/base/cuda/runtime.hpp"

namespace lockstep::cuda {

/// Sets *hash, on the device, to the sum modulo 2^64 of a mix of every value's bits and its place.
///
/// One value that differs always gives another hash. It is no other hash of this project: compare
/// it with its like alone. Enqueues.
/// Source   the mix is that of splitmix64 (Steele, Lea & Flood 2014), a permutation of 64 bits.
/// Errors   throws DeviceError.
void hash_values(std::span<const float> values, unsigned long long* hash, const Stream& stream);

}  // namespace lockstep::cuda
