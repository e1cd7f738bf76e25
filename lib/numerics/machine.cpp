#include "lockstep/numerics/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/numerics/amx.hpp"
#include "lockstep/numerics/simd_targets.hpp"
#include "lockstep/numerics/strict.hpp"
#include "lockstep/numerics/threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/numerics/machine.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must come first.
#include <hwy/highway.h>

#ifndef LOCKSTEP_MACHINE_KERNELS  // once, not per target
#define LOCKSTEP_MACHINE_KERNELS
namespace lockstep {
namespace {

constexpr std::size_t chains = 12;  // of latency 4 or 5, on two units
constexpr std::size_t links = 4096;

// x * 0.75 + 0.25 stays near 1: no overflow, no denormal numbers.
constexpr float factor = 0.75F;
constexpr float summand = 0.25F;

struct MachineKernels {
  /// Computes `links` multiply-adds in each of `chains` chains; returns something of their results.
  float (*multiply_add)(float factor, float summand);
  std::size_t lanes;  ///< of a chain
  /// a[i] = s * b[i] + a[i]; `count` is a multiple of 16.
  void (*add_scaled)(float s, const float* b, float* a, std::size_t count);
};

}  // namespace
}  // namespace lockstep
#endif

#if LOCKSTEP_HAS_KERNELS

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
constexpr hn::ScalableTag<float> tag;
constexpr std::size_t lanes = hn::MaxLanes(tag);

float multiply_add(float factor, float summand) {
  const auto m = hn::Set(tag, factor);
  const auto c = hn::Set(tag, summand);
  // Not an array: it would not stay in registers.
  auto x0 = c, x1 = c, x2 = c, x3 = c, x4 = c, x5 = c, x6 = c, x7 = c, x8 = c, x9 = c, x10 = c,
       x11 = c;
  for (std::size_t i = 0; i < links; ++i) {
    x0 = hn::MulAdd(x0, m, c);
    x1 = hn::MulAdd(x1, m, c);
    x2 = hn::MulAdd(x2, m, c);
    x3 = hn::MulAdd(x3, m, c);
    x4 = hn::MulAdd(x4, m, c);
    x5 = hn::MulAdd(x5, m, c);
    x6 = hn::MulAdd(x6, m, c);
    x7 = hn::MulAdd(x7, m, c);
    x8 = hn::MulAdd(x8, m, c);
    x9 = hn::MulAdd(x9, m, c);
    x10 = hn::MulAdd(x10, m, c);
    x11 = hn::MulAdd(x11, m, c);
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
#if HWY_TARGET == HWY_NEON
#define LOCKSTEP_VECTOR "+w"
#else
#define LOCKSTEP_VECTOR "+v"
#endif
    // Equal chains would be computed once.
    asm("" : LOCKSTEP_VECTOR(x0.raw), LOCKSTEP_VECTOR(x1.raw), LOCKSTEP_VECTOR(x2.raw));
    asm("" : LOCKSTEP_VECTOR(x3.raw), LOCKSTEP_VECTOR(x4.raw), LOCKSTEP_VECTOR(x5.raw));
    asm("" : LOCKSTEP_VECTOR(x6.raw), LOCKSTEP_VECTOR(x7.raw), LOCKSTEP_VECTOR(x8.raw));
    asm("" : LOCKSTEP_VECTOR(x9.raw), LOCKSTEP_VECTOR(x10.raw), LOCKSTEP_VECTOR(x11.raw));
#endif
  }
  x0 = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  x6 = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  return hn::GetLane(hn::Add(x0, x6));
}

void add_scaled(float s, const float* HWY_RESTRICT b, float* HWY_RESTRICT a, std::size_t count) {
  const auto scale = hn::Set(tag, s);
  for (std::size_t i = 0; i < count; i += lanes) {
    hn::Store(hn::MulAdd(scale, hn::Load(tag, b + i), hn::Load(tag, a + i)), tag, a + i);
  }
}

}  // namespace

extern const MachineKernels kernels;
constexpr MachineKernels kernels = {multiply_add, lanes, add_scaled};

}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_KERNELS

#if HWY_ONCE
namespace lockstep {
namespace {

CacheSizes& cache_sizes_in_use() {
  const auto bytes = [](int name, std::size_t otherwise) {
    const long found = ::sysconf(name);
    return found > 0 ? static_cast<std::size_t>(found) : otherwise;
  };
  static CacheSizes sizes = {.first = bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10),
                             .second = bytes(_SC_LEVEL2_CACHE_SIZE, 512 << 10)};
  return sizes;
}

const MachineKernels& kernels_of(Simd simd) {
  switch (strict_products(simd).simd) {
#if HWY_TARGETS & HWY_AVX3
    case Simd::avx512: return N_AVX3::kernels;
#endif
#if HWY_TARGETS & HWY_AVX2
    case Simd::avx2: return N_AVX2::kernels;
#endif
#if HWY_TARGETS & HWY_NEON
    case Simd::neon: return N_NEON::kernels;
#endif
    default:
      throw ConfigError("simd scalar: the limits of a processor are measured in its vectors",
                        "use `simd=auto`, on a processor with AVX2 or NEON");
  }
}

bool multiplies_by_amx(Simd simd, Precision precision) {
  return precision == Precision::bf16 && &bf16_products(simd) == amx_products();
}

double seconds_now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Calls `work(thread)`, which returns an amount of work, on each product thread until `seconds`
/// have passed there. The rates of single threads cannot be added: threads that share a core do not
/// work at the same time.
template <class Work>
TimedWork timed(double seconds, const Work& work) {
  const std::size_t threads = product_threads();
  std::vector<TimedWork> each(threads);
  share(threads, 1, min_shared_operations, [&](Range part, std::size_t) {
    TimedWork mine{.begin = seconds_now()};
    do {
      mine.amount += work(part.begin);
      mine.end = seconds_now();
    } while (mine.end - mine.begin < seconds);
    each[part.begin] = mine;
  });
  TimedWork all = each[0];
  for (std::size_t i = 1; i < threads; ++i) {
    all.amount += each[i].amount;
    all.begin = std::min(all.begin, each[i].begin);
    all.end = std::max(all.end, each[i].end);
  }
  return all;
}

}  // namespace

CacheSizes cache_sizes() noexcept { return cache_sizes_in_use(); }

void set_cache_sizes(CacheSizes sizes) noexcept { cache_sizes_in_use() = sizes; }

const char* simd_in_use(Simd simd, Precision precision) {
  static_cast<void>(kernels_of(simd));
  return multiplies_by_amx(simd, precision) ? "AMX" : simd_name(strict_products(simd).simd);
}

TimedWork measured_flops(Simd simd, Precision precision, double seconds) {
  const MachineKernels& kernels = kernels_of(simd);
  if (multiplies_by_amx(simd, precision)) {
    return timed(seconds, [](std::size_t) { return static_cast<double>(amx_operations()); });
  }
  return timed(seconds, [&](std::size_t) {
    volatile float used = kernels.multiply_add(factor, summand);
    static_cast<void>(used);
    return static_cast<double>(2 * chains * links * kernels.lanes);
  });
}

namespace {

constexpr std::size_t unit = 16;  // floats of the widest vector

std::size_t floats_of_array(std::size_t bytes) {
  const std::size_t least = product_threads() * 512;
  return round_up(std::max(bytes / (2 * sizeof(float)), least), unit);
}

}  // namespace

BandwidthProbe::BandwidthProbe(std::size_t bytes)
    : a_(floats_of_array(bytes)), b_(floats_of_array(bytes)) {
  std::fill(b_.span().begin(), b_.span().end(), 1.0F);
}

TimedWork BandwidthProbe::measured(Simd simd, double seconds) {
  const MachineKernels& kernels = kernels_of(simd);
  const std::size_t threads = product_threads();
  const std::size_t each = ceil_divide(a_.size() / unit, threads) * unit;
  constexpr std::size_t most = std::size_t{1} << 17;  // at a time, so that all end together
  std::vector<std::size_t> done(threads);             // of the current pass
  return timed(seconds, [&](std::size_t thread) {
    const std::size_t end = std::min(a_.size(), (thread + 1) * each);
    const std::size_t first = std::min(end, thread * each + done[thread]);
    const std::size_t count = std::min(most, end - first);
    done[thread] = first + count == end ? 0 : done[thread] + count;
    kernels.add_scaled(factor, b_.data() + first, a_.data() + first, count);
    return static_cast<double>(count) * 3 * sizeof(float);
  });
}

}  // namespace lockstep
#endif
