// The processor: its caches, for which dW is cut, and what the cores of a rank can do at most,
// measured by kernels of known work: the limits that `lockstep bench step` compares a training step
// with.
#pragma once

#include <cstddef>

#include "lockstep/base/aligned.hpp"
#include "lockstep/numerics/products.hpp"

namespace lockstep {

/// Bytes of the data caches that a core has for itself.
struct CacheSizes {
  std::size_t first;   ///< L1
  std::size_t second;  ///< L2
};

/// Those of this processor, as the system reports them, or 32 KiB and 512 KiB where it does not;
/// after set_cache_sizes() those. Local.
CacheSizes cache_sizes() noexcept;

/// Sets the cache sizes for which dW is blocked: bits are the same, times are not. Not while
/// products run, nor between the size of their scratch and its use. For tests and measurements.
/// Local.
void set_cache_sizes(CacheSizes sizes) noexcept;

/// What strict products multiply by: "AVX2", "AVX-512", "NEON", or in bf16 "AMX".
///
/// Errors   throws ConfigError if there are no vectors, or this processor lacks them.
const char* simd_in_use(Simd simd, Precision precision);

/// Work of this rank's threads, and when they did it, on the steady clock of the host.
struct TimedWork {
  double amount = 0;  ///< floating-point operations, or bytes
  double begin = 0;   ///< seconds; of the first thread
  double end = 0;     ///< of the last thread

  double rate() const noexcept { return amount / (end - begin); }
};

/// Multiply-adds in registers, times two: floating-point operations of the threads of
/// set_product_threads() together. Each has 12 independent chains of fused multiply-adds
/// in the vectors of `simd`; in bf16 by AMX, four tiles of sums. Each thread works for
/// `seconds`. Local; call it on all ranks at the same time, because cores that compute alone are
/// clocked higher.
///
/// Errors   as simd_in_use().
TimedWork measured_flops(Simd simd, Precision precision, double seconds);

/// Measures the bandwidth of memory or a cache: passes of a[i] = s * b[i] + a[i] over two arrays of
/// floats, 12 bytes for each i, of which 8 are read and 4 written.
class BandwidthProbe {
 public:
  /// `bytes`: of both arrays, those of all threads of this rank; at least 4 KiB a thread.
  explicit BandwidthProbe(std::size_t bytes);

  /// Bytes of both arrays.
  std::size_t bytes() const noexcept { return 2 * a_.size() * sizeof(float); }

  /// Bytes of the threads of set_product_threads() together, each with its part of the arrays.
  /// Each works for `seconds`. Local; call it on all ranks at the same time.
  ///
  /// Errors   as simd_in_use().
  TimedWork measured(Simd simd, double seconds);

 private:
  AlignedBuffer<float> a_;
  AlignedBuffer<float> b_;
};

}  // namespace lockstep
