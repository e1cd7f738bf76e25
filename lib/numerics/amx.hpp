// AMX, Intel's instructions for tiles of a matrix: whether bf16 is multiplied by it.
//
// All functions are local.
#pragma once

#include <cstddef>

#include "lockstep/numerics/bf16.hpp"

namespace lockstep {

/// True if this processor has AMX for bf16, the system lets this process use it, and its products
/// match the definition. Found once; the first call asks the system.
bool has_amx();

/// The products by AMX, whether or not this processor has it; null without AVX512_BF16, by which
/// they round, or in a build without AVX-512.
const Bf16Products* amx_products() noexcept;

/// Do these products have the bits of bf16.hpp? Tries forward of some small layers: ordinary
/// factors, sums about 2^-126, and denormal, infinite and NaN values.
bool match_definition(const Bf16Products& bf16);

/// Multiplies tiles with each other for some microseconds, by AMX, which this processor must have;
/// returns the floating-point operations of it.
std::size_t amx_operations() noexcept;

}  // namespace lockstep
