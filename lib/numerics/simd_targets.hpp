// The instruction sets with kernels of their own: those of the strict products, and of machine.cpp.
// Include it before hwy/foreach_target.h.
//
// SVE is not among them: its vectors have no size known to the compiler, so that a register tile
// cannot be an array of them. Processors with SVE have NEON.
#pragma once

// Keeps AVX2 selectable in a build for newer processors, which Highway 1.0.3 otherwise rejects.
#define HWY_COMPILE_ALL_ATTAINABLE
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

/// Is HWY_TARGET one of them? In `#if`, after Highway's headers.
#define LOCKSTEP_HAS_KERNELS (HWY_TARGET & (HWY_AVX2 | HWY_AVX3 | HWY_NEON))
