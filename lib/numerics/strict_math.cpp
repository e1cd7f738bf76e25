#include "lib/numerics/strict_math.hpp"

#include "lib/numerics/strict_math-inl.hpp"

namespace lockstep {

float strict_exp(float x) noexcept { return fixed_exp(x); }
float strict_log(float x) noexcept { return fixed_log(x); }

}  // namespace lockstep
