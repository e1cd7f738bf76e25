// Adam on flat spans.
#pragma once

#include <cstdint>
#include <span>

#include "lib/base/aligned.hpp"

namespace lockstep::optim {

/// The tutorial's constants. `epsilon` stands outside the root, after bias correction.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-7;
};

/// How many steps were taken, and beta1 and beta2 to that power. The powers are products of one
/// rounded factor a step, which IEEE 754 fixes; std::pow() differs between mathematics libraries.
/// A checkpoint holds all three.
struct AdamState {
  std::uint64_t steps = 0;
  double beta1_power = 1;
  double beta2_power = 1;

  /// Begins the next step.
  void advance(const AdamOptions& options) noexcept {
    ++steps;
    beta1_power *= options.beta1;
    beta2_power *= options.beta2;
  }
};

/// One moment pair per weight of a contiguous range of the parameter block.
///
///   g = gradient_sum * (1 / examples)
///   m <- b1 m + (1 - b1) g           v <- b2 v + (1 - b2) g^2
///   w <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon),   t from 1
///
/// Gradients and moments next to nothing become zero (adam_kernel.hpp says which, and why).
/// The factors 1 / examples, rate / (1 - b1^t) and 1 / (1 - b2^t) are computed in double and
/// rounded once, with b1^t and b2^t of AdamState; then every operation is rounded to float32, in
/// one order, without contraction. So an update depends neither on the machine's vector width nor
/// on how the range is divided. One thread; local. Source   Kingma & Ba 2015, alg. 1,
/// arXiv:1412.6980.
class Adam {
 public:
  /// Moments for `weights` weights, all zero. Throws std::bad_alloc.
  Adam(std::size_t weights, const AdamOptions& options);

  /// One step. `examples` is the number of examples that `gradient_sums` runs over, at least 1.
  ///
  /// Returns false where a second moment is not finite: a gradient was not, or its square was too
  /// large for float32 (beyond 1.8e19), and the weight could never move again.
  /// Errors   throws std::invalid_argument where the spans are not of the constructor's length.
  bool update(std::span<float> values, std::span<const float> gradient_sums,
              std::uint64_t examples);

  /// Steps taken.
  std::uint64_t steps() const noexcept { return state_.steps; }
  const AdamState& state() const noexcept { return state_; }

 private:
  AdamOptions options_;
  AdamState state_;
  AlignedBuffer<float> first_;   // m
  AlignedBuffer<float> second_;  // v
};

}  // namespace lockstep::optim
