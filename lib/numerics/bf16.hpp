// The strict products in bf16: as strict.hpp, but with factors rounded to bf16, sums in float32,
// and chains in chunks of 32 terms. Bias, sums, outputs and everything outside of the products are
// float32.
//
//   R(v)        v rounded to bf16: 0 if |v| is below 2^-126, else to nearest, ties to even (beyond
//               the largest finite value: infinity); any NaN is the positive quiet NaN.
//   F(v)        a real number rounded to float32, to nearest, ties to even, as if exponents had no
//               lower limit; then 0 if its absolute value is below 2^-126. So nothing is denormal.
//   fma, +      below: F of the exact result, for operands of which denormal ones count as 0.
//   chunk(A)    adds up to 32 products u[t] v[t] to A:
//                 e = 0;  for t = 0, 2, 4 ..:  e = fma(u[t], v[t], e)
//                 o = 0;  for t = 1, 3, 5 ..:  o = fma(u[t], v[t], o)
//                 A + (e + o)
//   chain(A)    chunks of 32 consecutive terms, one after the other; the last one may be short.
//
//   forward     y[i][j] = act(chain(b[j]) of R(x[i][k]) R(w[k][j]) over k)
//   dX          dx[i][k] = chain(0) of R(dz[i][j]) R(w[k][j]) over j
//               and 0 instead where the layer below is relu and not x[i][k] > 0 (not rounded)
//   dW          dw[k][j] = the tree over leaves of
//                          chain(0) of R(x[i][k]) R(dz[i][j]) over the i of the leaf
//   db          as in float32, of dz that is not rounded
//
// The activation, leaves, the tree, NaN and zero are those of strict.hpp. The tree adds by IEEE 754
// with denormals: its nodes are added between ranks, too.
//
// Why this expression. It is what Intel specifies for TDPBF16PS, the instruction of AMX: two chains
// of fused multiply-adds over 16 pairs, denormals zero in and out, their sum added to the
// accumulator (Software Developer's Manual, volume 2). A processor's AMX is used where it gives
// these bits, which has_amx() tries. A pair of terms in one chain is what VDPBF16PS (AVX512_BF16)
// adds, the upper half first; where it was measured, on a Xeon, it multiplies at half the rate of
// float32, so no kernel uses it.
//
// Why bits do not depend on ranks, rows, blocking, threads or vectors: the argument of strict.hpp.
// The right-hand side names its operands and their order; F is a function. Chains may be split
// between calls, but at multiples of 32 terms alone.
//
// Why terms with a factor that is zero may be left out: the argument of strict.hpp, whose steps
// hold for F, too, with zeros for what it flushes; a chain without terms is 0, and A + 0 is A. R
// may make an infinity of a finite factor, so terms are left out only if all R() of the other
// factors are finite.
//
// How F is computed. x86 has it: MXCSR's FTZ looks at the result that is rounded without limit, and
// DAZ at operands; kernels set both around their chains alone. AMX always computes so. ARM flushes
// what is below 2^-126 *before* it is rounded, which differs just below 2^-126. So its kernels
// multiply one factor, and with it the chain, by 2^24, where rounding is exact down to 2^-126, and
// zero what is less than that; a chunk that becomes infinite or NaN is computed again by
// flushed_fma.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "lockstep/numerics/strict.hpp"

namespace lockstep {
inline constexpr std::size_t bf16_chunk = 32;

/// R of the header, as a float32.
inline float round_to_bf16(float value) noexcept {
  if (value != value) return std::numeric_limits<float>::quiet_NaN();
  auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000U) == 0) return 0;
  bits += 0x7fffU + (bits >> 16 & 1U);
  return std::bit_cast<float>(bits & 0xffff0000U);
}

/// 0 instead of a denormal value.
[[gnu::always_inline]] inline float flushed(float value) noexcept {
  return std::abs(value) < std::numeric_limits<float>::min() ? 0.0F : value;
}

/// F(u v + a) for u and v in bf16 and none of the three denormal.
[[gnu::always_inline]] inline float flushed_fma(float u, float v, float a) noexcept {
  constexpr float smallest = std::numeric_limits<float>::min();  // 2^-126
  const float sum = __builtin_fmaf(u, v, a);
  if (std::abs(sum) != smallest) return flushed(sum);
  // Rounded up from a denormal? Then |a| is below 2^-101, as u v has 16 bits: a factor of 2^24
  // makes nothing overflow.
  constexpr float scale = 0x1p24F;
  const float scaled = __builtin_fmaf(u * scale, v, a * scale);
  return std::abs(scaled) < smallest * scale ? 0.0F : sum;
}

/// F(a + b): exact where it is denormal.
[[gnu::always_inline]] inline float flushed_add(float a, float b) noexcept {
  return flushed(flushed(a) + flushed(b));
}

/// The products in bf16, for one instruction set.
struct Bf16Products {
  /// Writes round_to_bf16 of each value; true if all are finite then. As many as are given. Null if
  /// the products take weights as they are; then forward leaves out no term.
  bool (*round)(std::span<const float> values, std::span<float> rounded);

  /// Of weights from `round`; x and dz are rounded by the products. Accumulating continues chains
  /// after a multiple of 32 terms. Forward with Zeros::automatic only if all weights are finite.
  StrictProducts products;
};

/// As strict_products() and scalar_products(); automatic is AMX where has_amx() (amx.hpp).
const Bf16Products& bf16_products(Simd simd);
const Bf16Products& scalar_bf16_products() noexcept;

/// The products as Products, like make_strict_products() of products.hpp.
std::unique_ptr<Products<float>> make_strict_products(const Bf16Products& bf16, Zeros zeros);

}  // namespace lockstep
