// Exponential and logarithm in fixed operations: the same bits on every IEEE machine.
//
// The C library's differ between versions and processors. These evaluate a fixed polynomial in
// double by additions, multiplications and one division, each rounded on its own (the build forbids
// contraction), and round once to float at the end. The double is off by less than 1e-15 of its
// value, so the float is the nearest one but for about one argument in ten million.
#pragma once

namespace lockstep {

/// e^x. Overflows to infinity and underflows gradually to 0; NaN gives the positive quiet NaN.
float strict_exp(float x) noexcept;

/// The natural logarithm. -infinity for both zeros; the positive quiet NaN below zero and for NaN.
float strict_log(float x) noexcept;

}  // namespace lockstep
