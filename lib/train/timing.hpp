// Measuring of times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::train {

/// The first steps of training, which do not count where times are summed.
inline constexpr std::uint64_t warm_up_steps = 10;

/// A timer: take() returns the seconds since its last call, or since construction.
class Lap {
 public:
  double take() {
    const double now = seconds();
    return now - std::exchange(last_, now);
  }

 private:
  static double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }
  double last_ = seconds();
};

/// The median of `values`, which are not empty; of an even number the lower one. Reorders them.
template <class Value>
Value median(std::vector<Value>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep::train
