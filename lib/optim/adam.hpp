// Adam on flat spans: options, state, the factors of a step, and the update on the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/aligned.hpp"

namespace lockstep::optim {
/// Defaults are the tutorial's. `epsilon` is added after the root and after bias correction.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-7;
};

/// The scalar state of the optimizer: steps taken, beta1^steps and beta2^steps. The powers are
/// running products, one multiplication per step rounded as IEEE 754 defines, because std::pow()
/// differs between mathematics libraries.
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

/// The constants of one step; a weight's update then needs one division and one square root.
struct AdamFactors {
  float inverse_examples;  ///< 1 / examples
  float beta1, rest1;
  float beta2, rest2;
  float corrected_rate;       ///< rate / (1 - beta1^t)
  float inverse_correction2;  ///< 1 / (1 - beta2^t)
  float epsilon;
};

/// The factors of the step that `state` was advanced to, over `examples` (at least 1) examples:
/// computed in double, rounded once.
AdamFactors adam_factors(const AdamOptions& options, const AdamState& state,
                         std::uint64_t examples);

/// Gradients and moments below these magnitudes are set to zero before they become denormal
/// numbers, which slow processors down a hundredfold: after two epochs of MNIST a step took 1.5
/// times as long. The effect on a weight is below 1e-13.
inline constexpr float min_gradient = 0x1p-56F;
inline constexpr float min_first_moment = 0x1p-80F;
inline constexpr float min_second_moment = 0x1p-120F;

/// Adam's moments of a weight: the running means of the gradient (m) and of its square (v).
enum class Moment { first, second };

/// Adam's state of a contiguous range of the parameter block, on the processor or on a device: what
/// is saved and restored.
class OptimizerState {
 public:
  OptimizerState() = default;
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;
  virtual ~OptimizerState() = default;

  virtual const AdamState& scalars() const noexcept = 0;

  /// Copies one moment to `into`, of the length of the range. Local; blocks.
  virtual void copy(Moment moment, std::span<float> into) = 0;

  /// Overwrites scalars and both moments, of the length of the range. Local; blocks.
  virtual void restore(const AdamState& scalars, std::span<const float> first,
                       std::span<const float> second) = 0;
};

/// True if the mean over `examples` (at least 1) examples of every gradient and its square, which
/// enter Adam's moments, are finite in float32. Local.
bool is_finite(std::span<const float> gradient_sums, std::uint64_t examples);

/// One moment pair per weight of a contiguous range of the parameter block.
///
///   g = gradient_sum * (1 / examples)
///   m <- b1 m + (1 - b1) g           v <- b2 v + (1 - b2) g^2
///   w <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon),   t from 1
///
/// Gradients and moments below min_gradient, min_first_moment and min_second_moment become zero.
/// The factors 1 / examples, rate / (1 - b1^t) and 1 / (1 - b2^t) are computed in double, with
/// b1^t and b2^t of AdamState, and rounded once; then every operation is rounded to float32, in one
/// order, without contraction. So an update depends neither on the vector width nor on the division
/// of the range. One thread; local.
/// Source   Kingma & Ba 2015, alg. 1, arXiv:1412.6980.
class Adam final : public OptimizerState {
 public:
  /// Moments for `weights` weights, all zero. Throws std::bad_alloc.
  Adam(std::size_t weights, const AdamOptions& options);

  /// One step. `examples` (at least 1) is the number of examples that `gradient_sums` were summed
  /// over.
  ///
  /// Returns false if a second moment is not finite: a gradient was not finite, or its square
  /// exceeded float32 (beyond 1.8e19), and the weight could no longer change.
  /// Errors   throws std::invalid_argument if the spans do not have the constructor's length.
  bool update(std::span<float> values, std::span<const float> gradient_sums,
              std::uint64_t examples);

  const AdamState& scalars() const noexcept override { return state_; }
  void copy(Moment moment, std::span<float> into) override;
  void restore(const AdamState& scalars, std::span<const float> first,
               std::span<const float> second) override;

 private:
  AdamOptions options_;
  AdamState state_;
  AlignedBuffer<float> first_;   // m
  AlignedBuffer<float> second_;  // v
};

}  // namespace lockstep::optim
