// How far values are from what is expected of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace lockstep::test {

enum class ErrorKind { absolute, relative };

/// The greatest error of `values`; a relative one is in units of the expected value. NaN, which is
/// below no limit, if an error is NaN or the sizes differ.
template <class Value, class Expected>
double greatest_error(const std::vector<Value>& values, const std::vector<Expected>& expected,
                      ErrorKind kind = ErrorKind::absolute) {
  if (values.size() != expected.size()) return std::numeric_limits<double>::quiet_NaN();
  double greatest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = expected[i];
    const double distance = std::abs(static_cast<double>(values[i]) - exact);
    const double error = kind == ErrorKind::relative ? distance / std::abs(exact) : distance;
    if (std::isnan(error)) return error;
    greatest = std::max(greatest, error);
  }
  return greatest;
}

}  // namespace lockstep::test
